// The gradient of the weights for a share of the tiles: `slopes` is (shares, members, output, input, tap). Three
// warpgroups multiply, each for a line of the 3×3 kernel.

constexpr int GIVEN = SIDE * SIDE * PLACE;  // bytes of a tile without its rim
static_assert(MEMORY == ROOM + STAGES * (INPUT + GIVEN));

extern "C" __global__ void __launch_bounds__(4 * GROUP, 1)
of_weights(const u16* x, const u16* given, float* slopes, int images, int side, int columns) {
    extern __shared__ unsigned char memory[];
    u32 inputs = aligned(memory), full = inputs + STAGES * (INPUT + GIVEN), empty = full + 8 * STAGES;
    Shape shape{images, side, columns};
    int member = blockIdx.y, thread = threadIdx.x % GROUP, group = same_in_warp(threadIdx.x / GROUP);
    barriers_init(full, empty, STAGES, 3 * GROUP);

    int step = gridDim.x, count = (shape.tiles() - (int)blockIdx.x + step - 1) / step;
    if (group == 3) {
        fewer_registers<56>();
        RimLoader loader(x + member * C, shape, thread);
        for (int i = 0; i < count; i++) {
            int stage = i % STAGES, tile = blockIdx.x + i * step;
            if (i >= STAGES) await(empty + 8 * stage, (i / STAGES - 1) & 1);
            u32 to = inputs + stage * (INPUT + GIVEN);
            loader.load(tile, to, thread);
            load(given + member * C, shape, tile, to + INPUT, thread);
            arrive_when_copied(full + 8 * stage);
        }
    } else {
        more_registers<152>();
        float d[3][32] = {};  // of the three taps of the line
        for (int i = 0; i < count; i++) {
            int stage = i % STAGES;
            await(full + 8 * stage, i / STAGES & 1);
            show_to_matrix_units();
            u32 to = inputs + stage * (INPUT + GIVEN);
            u64 a = places(to + INPUT, 8 * PLACE), b = places(to + group * RIM * PLACE, 8 * PLACE);
            products_begin();
#pragma unroll
            for (int line = 0; line < SIDE; line++)
#pragma unroll
                for (int tap = 0; tap < 3; tap++)
                    multiply_turned(d[tap], further(a, line * SIDE * PLACE), further(b, (line * RIM + tap) * PLACE));
            products_commit();
            products_done<1>();
            if (i > 0) arrive(empty + 8 * ((i - 1) % STAGES));
        }
        products_done<0>();
        for (int tap = 0; tap < 3; tap++) settled(d[tap]);

        float* own = slopes + ((long long)blockIdx.x * gridDim.y + member) * C * C * 9;
        int warp = thread / 32, lane = thread % 32;
#pragma unroll
        for (int tap = 0; tap < 3; tap++)
#pragma unroll
            for (int i = 0; i < 32; i++) {
                int output = 16 * warp + lane / 4 + i / 2 % 2 * 8, input = i / 4 * 8 + lane % 4 * 2 + i % 2;
                own[(output * C + input) * 9 + group * 3 + tap] = d[tap][i];
            }
    }
}
