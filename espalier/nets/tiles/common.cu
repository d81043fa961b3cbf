// What the kernels beside this share: 3×3 convolutions of 64 channels, stride 1, on Hopper's matrix units.
//
// Activations are matrices in bfloat16: a row for each place of each image, 64 columns for each member. A block of
// threads works for one member. It takes tiles of 16×16 places, each with a rim of one place around it, into shared
// memory: 128 bytes for each place. There every shift by a tap of the 3×3 kernel is the same data from another place
// on, and nothing has to be copied for it. One warpgroup loads, the others multiply.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

constexpr int C = 64;          // channels of a member
constexpr int SIDE = 16;       // of a tile
constexpr int RIM = SIDE + 2;  // with the places around it
constexpr int CHUNKS = C / 8;
constexpr int PLACE = C * 2;                                        // bytes of a place
constexpr int INPUT = (RIM * RIM * PLACE + 1023) / 1024 * 1024;     // bytes of a tile with its rim
constexpr int ROOM = 1024 + 64;                                     // to begin at a multiple of 1024; barriers
constexpr int GROUP = 128;                                          // threads of a warpgroup

__device__ u32 address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ u32 aligned(const void* p) { return (address(p) + 1023) & ~1023u; }

// ---- barriers in shared memory: each side waits for the other's `arrive`s of a phase

__device__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
__device__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ void await(u32 barrier, u32 phase) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier), "r"(phase) : "memory");
}
__device__ void barriers_init(u32 full, u32 empty, int stages, int readers) {
    if (threadIdx.x == 0)
        for (int stage = 0; stage < stages; stage++) {
            barrier_init(full + 8 * stage, GROUP);
            barrier_init(empty + 8 * stage, readers);
        }
    __syncthreads();
}
__device__ void group_sync(int which, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(which), "r"(threads) : "memory");
}
__device__ void group_arrive(int which, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(which), "r"(threads) : "memory");
}
template <int COUNT>
__device__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT>
__device__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// ---- loads

__device__ void copy16(u32 to, const void* from, bool there) {  // zeros where there is nothing
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ void copied() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ void arrive_when_copied(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ void show_to_matrix_units() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// So that the compiler knows it, and keeps what follows from it where matrix units read their descriptors.
__device__ int same_in_warp(int value) { return __shfl_sync(0xFFFFFFFF, value, 0); }

// ---- matrix products: a descriptor says where 8×8 blocks of 128 bytes lie, and how far they are apart both ways

__device__ u64 descriptor(u32 start, u32 along, u32 across, u64 swizzled) {
    return (u64)((start & 0x3FFFF) >> 4) | (u64)(along >> 4) << 16 | (u64)(across >> 4) << 32 | swizzled << 62;
}
// Of places as `place_of` lays them out; groups of 8 are `across` bytes apart.
__device__ u64 places(u32 start, u32 across) { return descriptor(start, 0, across, 1); }
__device__ u64 further(u64 described, u32 bytes) { return described + (bytes >> 4); }
__device__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
__device__ void products_done() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
// No use of d may be moved before the wait for the products that write it: the compiler does not see that they do.
template <int COUNT>
__device__ void settled(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#define R8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

// d (64×128) = a (64×16) · b (128×16)ᵀ, or added to it
__device__ void multiply128(float (&d)[64], u64 a, u64 b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n}"
        : R8(d, 0), R8(d, 8), R8(d, 16), R8(d, 24), R8(d, 32), R8(d, 40), R8(d, 48), R8(d, 56)
        : "l"(a), "l"(b), "r"(add));
}

// d (64×64) += aᵀ (16×64) · b (16×64)
__device__ void multiply_turned(float (&d)[32], u64 a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, 1, 1, 1, 1, 1;"
        : R8(d, 0), R8(d, 8), R8(d, 16), R8(d, 24)
        : "l"(a), "l"(b));
}

// Four 8×8 blocks from the layout of products into rows of 16 bytes, columns becoming rows.
__device__ void store_turned(u32 row, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b),
                 "r"(c), "r"(d) : "memory");
}
__device__ uint4 load_shared(u32 from) {
    uint4 eight;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w) : "r"(from));
    return eight;
}

// ---- bfloat16, two in a number

__device__ u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ float low(u32 both) { return __uint_as_float(both << 16); }
__device__ float high(u32 both) { return __uint_as_float(both & 0xFFFF0000u); }

__device__ void unpack(uint4 eight, float (&value)[8]) {
    value[0] = low(eight.x), value[1] = high(eight.x), value[2] = low(eight.y), value[3] = high(eight.y);
    value[4] = low(eight.z), value[5] = high(eight.z), value[6] = low(eight.w), value[7] = high(eight.w);
}
__device__ uint4 pack(const float (&value)[8]) {
    return make_uint4(pack(value[0], value[1]), pack(value[2], value[3]), pack(value[4], value[5]), pack(value[6], value[7]));
}
__device__ uint4 load16(const u16* from) { return __ldg((const uint4*)from); }

// ---- tiles

struct Shape {
    int images, side, columns;  // of a matrix of activations
    __device__ int per_row() const { return side / SIDE; }
    __device__ int tiles() const { return images * per_row() * per_row(); }
};

struct Corner {
    int image, line, column;
    __device__ Corner(const Shape& shape, int tile) {
        int per_row = shape.per_row(), inside = tile % (per_row * per_row);
        image = tile / (per_row * per_row), line = inside / per_row * SIDE, column = inside % per_row * SIDE;
    }
};

__device__ long long row_of(const Shape& shape, const Corner& corner, int line, int column) {
    return ((long long)corner.image * shape.side + corner.line + line) * shape.side + corner.column + column;
}

// Where 8 channels of a place are: chunks are exchanged as the matrix units' swizzle over 128 bytes wants them.
__device__ u32 place_of(u32 tile, int place, int chunk) { return tile + place * PLACE + ((chunk ^ place % 8) * 16); }

// Loads tiles with their rims, by one warpgroup. What depends on the thread alone is computed once: a thread takes every
// 16th place, so it always writes to the same banks, and reads from the same places relative to the corner.
struct RimLoader {
    static constexpr int COUNT = (RIM * RIM + GROUP / CHUNKS - 1) / (GROUP / CHUNKS);
    const u16* x;
    Shape shape;
    u32 to;
    int ahead[COUNT];                        // from the tile's corner, in numbers
    u32 top = 0, bottom = 0, left = 0, right = 0;  // which of them are in the rim, a bit each

    __device__ RimLoader(const u16* x, const Shape& shape, int thread) : x(x), shape(shape) {
        int chunk = thread % CHUNKS, place = thread / CHUNKS;
        to = place_of(0, place, chunk);
#pragma unroll
        for (int i = 0; i < COUNT; i++, place += GROUP / CHUNKS) {
            int line = place / RIM - 1, column = place % RIM - 1;
            ahead[i] = (line * shape.side + column) * shape.columns + chunk * 8;
            u32 bit = 1u << i;
            if (line < 0) top |= bit;
            if (line >= SIDE) bottom |= bit;
            if (column < 0) left |= bit;
            if (column >= SIDE) right |= bit;
        }
    }

    __device__ void load(int tile, u32 input, int thread) const {
        Corner corner(shape, tile);
        u32 outside = (corner.line == 0 ? top : 0) | (corner.line + SIDE == shape.side ? bottom : 0) |
                      (corner.column == 0 ? left : 0) | (corner.column + SIDE == shape.side ? right : 0);
        const u16* from = x + row_of(shape, corner, 0, 0) * shape.columns;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            bool inside = !(outside >> i & 1);
            if (i < COUNT - 1 || thread / CHUNKS + i * (GROUP / CHUNKS) < RIM * RIM)
                copy16(input + to + i * (GROUP / CHUNKS) * PLACE, inside ? from + ahead[i] : x, inside);
        }
    }
};

// A tile without a rim: every 16th place is the next line.
__device__ void load(const u16* x, const Shape& shape, int tile, u32 to, int thread) {
    static_assert(GROUP / CHUNKS == SIDE);
    Corner corner(shape, tile);
    int chunk = thread % CHUNKS, column = thread / CHUNKS;
    const u16* from = x + row_of(shape, corner, 0, column) * shape.columns + chunk * 8;
#pragma unroll
    for (int line = 0; line < SIDE; line++)
        copy16(place_of(to, column, chunk) + line * SIDE * PLACE, from + line * shape.side * shape.columns, true);
}
