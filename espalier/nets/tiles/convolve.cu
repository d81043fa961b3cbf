// y = x convolved with `weight`, (member, output, tap, input). Two warpgroups multiply in turn, a tile each: while one
// does, the other gives its last results out. What happens to them on their way, by the macros this is compiled with:
//
//   ADDED     + other
//   NORMED    + shift, then ReLU
//   MASKED    they are a gradient, of which ReLU(other·scale + shift) lets a part back; `sums` are what a norm's
//             gradient needs: of that part, and of it times the normalised `other`
//   SUMMED    `sums` are of them and of their squares
//
// Before that they are rounded, as all activations are. `sums` is (shares, 2, columns). `x` and an added `other` may be
// of one member, shared by all.

constexpr int WEIGHTS = 9 * C * C * 2;
constexpr int OUT_PITCH = PLACE + 16;  // from place to place of what goes out
constexpr int HALF = 8 * SIDE;         // places: 8 columns of a tile
constexpr int OUT = HALF * OUT_PITCH;
static_assert(MEMORY == ROOM + WEIGHTS + STAGES * INPUT + 2 * OUT);

constexpr bool READS = ADDED || MASKED;
constexpr int ROUNDS = HALF * CHUNKS / GROUP;  // until a warpgroup has given half a tile out

// The end of the results' way, by a thread that always has the same eight channels.
struct Ending {
    u16* y;
    const u16* other;
    int columns, other_columns, first, other_first;
    float scale[8], shift[8], total[8] = {}, along[8] = {};

    __device__ long long row(const Shape& shape, const Corner& corner, int half, int round, int thread) const {
        int place = thread / CHUNKS + round * (GROUP / CHUNKS);
        return row_of(shape, corner, place / 8, half * 8 + place % 8);
    }

    // What is read beside, early enough to be there when it is needed.
    __device__ void fetch(uint4 (&found)[ROUNDS], const Shape& shape, const Corner& corner, int half, int thread) const {
#pragma unroll
        for (int i = 0; i < ROUNDS; i++)
            found[i] = load16(other + row(shape, corner, half, i, thread) * other_columns + other_first);
    }

    __device__ void give(long long row, uint4 eight, uint4 found) {
        float value[8], beside[8];
        unpack(eight, value);
        if (READS) unpack(found, beside);
        for (int i = 0; i < 8; i++) {
            if (ADDED) value[i] += beside[i];
            if (NORMED) value[i] = fmaxf(value[i] + shift[i], 0.0f);
            if (MASKED) value[i] = beside[i] * scale[i] + shift[i] > 0.0f ? value[i] : 0.0f;
            if (SUMMED || MASKED) total[i] += value[i], along[i] += value[i] * (MASKED ? beside[i] : value[i]);
        }
        *(uint4*)(y + row * columns + first) = pack(value);
    }
};

__device__ void load_weights(const u16* weight, u32 to) {
    for (int i = threadIdx.x; i < 9 * C * CHUNKS; i += blockDim.x) {
        int chunk = i % CHUNKS, tap = i / CHUNKS % 9, output = i / (CHUNKS * 9);
        copy16(to + ((tap * CHUNKS + chunk) * C + output) * 16, weight + (output * 9 + tap) * C + chunk * 8, true);
    }
    copied();
    show_to_matrix_units();
}

// Of both halves of a tile, 8 columns each: (64 channels × 128 places).
__device__ void multiply_tile(u32 weights, u32 input, float (&d)[2][64]) {
    u64 a = descriptor(weights, C * 16, 128, 0), b = places(input, RIM * PLACE);
    products_begin();
#pragma unroll
    for (int tap = 0; tap < 9; tap++)
#pragma unroll
        for (int k = 0; k < C / 16; k++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int moved = (tap / 3 * RIM + tap % 3 + half * 8) * PLACE + k * 32;
                multiply128(d[half], further(a, (tap * CHUNKS + 2 * k) * C * 16), further(b, moved), tap + k > 0);
            }
    products_commit();
}

// A half into shared memory, from where a thread gets a place and eight channels, not a channel and many places.
__device__ void turn(const float (&d)[64], u32 out, int thread) {
    int warp = thread / 32, lane = thread % 32;
    // of the 8×8 blocks that a warp stores, four at once: 16 channels of 16 places
    u32 block = out + (8 * (lane / 16) + lane % 8) * OUT_PITCH + (2 * warp + lane / 8 % 2) * 16;
#pragma unroll
    for (int j = 0; j < 64; j += 8)
        store_turned(block + 2 * j * OUT_PITCH, pack(d[j], d[j + 1]), pack(d[j + 2], d[j + 3]),
                     pack(d[j + 4], d[j + 5]), pack(d[j + 6], d[j + 7]));
}

// Over the threads of both warpgroups, in a fixed order; `room` is for 17 numbers of each.
__device__ void add_up(const Ending& ending, float* room, int thread, const float* mean, const float* deviation,
                       float* sums, int columns) {
    group_sync(5, 2 * GROUP);
    for (int i = 0; i < 8; i++) room[thread * 17 + i] = ending.total[i], room[thread * 17 + 8 + i] = ending.along[i];
    group_sync(5, 2 * GROUP);
    if (thread >= C) return;
    float total = 0.0f, along = 0.0f;
    for (int i = 0; i < 2 * GROUP / CHUNKS; i++) {
        const float* from = room + (i * CHUNKS + thread / 8) * 17 + thread % 8;
        total += from[0], along += from[8];
    }
    float* to = sums + blockIdx.x * 2 * columns + thread;
    to[0] = total;
    to[columns] = MASKED ? (along - mean[thread] * total) * deviation[thread] : along;
}

extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)
convolve(const u16* x, int x_columns, const u16* weight, u16* y, float* sums, const float* scale, const float* shift,
         const float* mean, const float* deviation, const u16* other, int other_columns,
         int images, int side, int columns) {
    extern __shared__ unsigned char memory[];
    u32 weights = aligned(memory), inputs = weights + WEIGHTS, outs = inputs + STAGES * INPUT;
    u32 full = outs + 2 * OUT, empty = full + 8 * STAGES;
    Shape from{images, side, x_columns}, to{images, side, columns};
    int member = blockIdx.y, thread = threadIdx.x % GROUP, group = same_in_warp(threadIdx.x / GROUP);
    load_weights(weight + (long long)member * 9 * C * C, weights);
    barriers_init(full, empty, STAGES, GROUP);

    int step = gridDim.x, count = (to.tiles() - (int)blockIdx.x + step - 1) / step;
    if (group == 2) {
        fewer_registers<56>();
        RimLoader loader(x + member * C % x_columns, from, thread);
        for (int i = 0; i < count; i++) {
            int stage = i % STAGES;
            if (i >= STAGES) await(empty + 8 * stage, (i / STAGES - 1) & 1);
            loader.load(blockIdx.x + i * step, inputs + stage * INPUT, thread);
            arrive_when_copied(full + 8 * stage);
        }
    } else {
        more_registers<224>();
        int first = member * C + thread % CHUNKS * 8;
        Ending ending{y, other, columns, other_columns, first, READS ? first % other_columns : 0};
        for (int i = 0; i < 8; i++) {
            if (MASKED) ending.scale[i] = scale[first + i];
            if (NORMED || MASKED) ending.shift[i] = shift[first + i];
        }
        u32 out = outs + group * OUT;
        for (int i = group; i < count; i += 2) {
            int stage = i % STAGES;
            await(full + 8 * stage, i / STAGES & 1);
            show_to_matrix_units();
            if (i > 0) group_sync(3 + group, 2 * GROUP);  // it is this one's turn
            float d[2][64];
            multiply_tile(weights, inputs + stage * INPUT, d);
            if (i + 1 < count) group_arrive(4 - group, 2 * GROUP);  // and then the other's
            Corner corner(to, blockIdx.x + i * step);
            uint4 found[2][ROUNDS];
            if (READS) ending.fetch(found[0], to, corner, 0, thread);
            products_done<0>();
            settled(d[0]);
            settled(d[1]);
            arrive(empty + 8 * stage);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                turn(d[half], out, thread);
                if (READS && half == 0) ending.fetch(found[1], to, corner, 1, thread);
                group_sync(1 + group, GROUP);
#pragma unroll
                for (int n = 0; n < ROUNDS; n++)
                    ending.give(ending.row(to, corner, half, n, thread),
                                load_shared(out + (thread / CHUNKS + n * (GROUP / CHUNKS)) * OUT_PITCH + thread % CHUNKS * 16),
                                found[half][n]);
                group_sync(1 + group, GROUP);
            }
        }
        if (SUMMED || MASKED)  // where the weights were
            add_up(ending, (float*)(memory + (weights - address(memory))), threadIdx.x, mean + member * C,
                   deviation + member * C, sums + member * C, columns);
    }
}
