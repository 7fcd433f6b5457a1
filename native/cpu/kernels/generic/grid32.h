// Many rows against weights with one float scale per 32 columns, two panels by up to six rows at a time: a broadcast of
// four activations is used for both panels, and all sums stay in registers (one panel by 8 rows, as in Open32,
// broadcasts twice as often). Activations are packed in tiles of 16 rows, processed as 6, 5 and 5. The float operations
// are those of blocks32.h, so results are bit-identical.

namespace woolly::WOOLLY_TARGET {

// Types with equal parameters share the code.
template <int offset, bool has_min>
struct GridDots32 : GridPairs<GridDots32<offset, has_min>, kTile32Bytes> {
    using Opened = Opened32<offset, false, has_min>;
    static constexpr int weights = Opened::weights, bytes = Opened::bytes;
    static_assert((offset & (offset - 1)) == 0, "a shift multiplies with the offset");

    // Computes rows [row, row + M) of a tile of each block, for two panels.
    template <int M>
    [[gnu::noinline]] static void rows(const GridBlocks& of, const PanelPair& pair, const uint8_t* tile, int row) {
        constexpr int P = 2;
        const uint8_t* open = pair.open[0];
        float* const acc[P] = {pair.acc[0] + 16 * row, pair.acc[1] + 16 * row};
        constexpr int shift = offset == 0 ? 0 : __builtin_ctz(unsigned(offset == 0 ? 1 : offset));
        const int64_t panel = pair.open[1] - open;
        F32 sum[P][M];
        for (int p = 0; p < P; ++p)
            for (int m = 0; m < M; ++m) sum[p][m] = load(acc[p] + 16 * m);
        for (int b = 0; b < of.n_blocks; ++b, open += bytes, tile += of.tiles_step) {
            const float* scales = reinterpret_cast<const float*>(tile + kTile32Scales) + row;
            const float* lows = reinterpret_cast<const float*>(tile + kTile32Lows) + row;
            const int32_t* less = reinterpret_cast<const int32_t*>(tile + kTile32Less) + row;
            const int8_t* q = reinterpret_cast<const int8_t*>(tile) + 32 * row;
            I32 dots[P][M];
            for (int m = 0; m < M; ++m) {
                const I32 start = offset == 0 ? izero() : ishift_left<shift>(iset1(less[m]));
                for (int p = 0; p < P; ++p) dots[p][m] = start;
            }
            each<8>([&]<int v>() __attribute__((always_inline)) {
                U8 w[P];
                for (int p = 0; p < P; ++p) w[p] = load_bytes(open + p * panel + weights + 64 * v);
                for (int m = 0; m < M; ++m)
                    for (int p = 0; p < P; ++p) dots[p][m] = dot4<v>(dots[p][m], w[p], q + 32 * m);
            });
            for (int p = 0; p < P; ++p) {
                const F32 d = load(reinterpret_cast<const float*>(open + p * panel));
                for (int m = 0; m < M; ++m) sum[p][m] = fma(to_float(dots[p][m]), mul(d, set1(scales[m])), sum[p][m]);
                if constexpr (has_min) {
                    const F32 least = load(reinterpret_cast<const float*>(open + p * panel + 64));
                    for (int m = 0; m < M; ++m) sum[p][m] = fma(least, set1(lows[m]), sum[p][m]);
                }
            }
        }
        for (int p = 0; p < P; ++p)
            for (int m = 0; m < M; ++m) store(acc[p] + 16 * m, sum[p][m]);
    }
};

template <class Type>
struct Grid32 : GridDots32<Open32<Type>::offset, Type::has_min> {
    static_assert(Grid32::bytes == Open32<Type>::bytes);
    static void open(const uint8_t* panel, int, uint8_t* to) { Open32<Type>::open(panel, 1, to); }
};

using Grids32 = Grids<Blocks32, Grid32, 32>;

}  // namespace woolly::WOOLLY_TARGET
