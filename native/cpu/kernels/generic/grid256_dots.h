// Many rows against super-blocks of 256 columns on levels without matrix tiles, two panels by up to six rows at a time:
// a broadcast of four activations is used for both panels, and the sums of all groups stay in registers. A tile of 16
// rows is processed as 6, 5 and 5. The float operations are those of k_quants.h, so results are bit-identical.
//
// The level supplies pair_of and pair_dot.

namespace woolly::WOOLLY_TARGET {

// Opened super-blocks of n groups. The offset is subtracted from each weight because the level's dot takes only
// unsigned ones. Types with equal parameters share this code.
template <int n, bool has_offset, bool has_min>
struct GridDots256 : GridPairs<GridDots256<n, has_offset, has_min>, kTileBytes> {
    static_assert(!has_offset || !has_min, "the sums of activations are multiplied with one kind of factors");
    static constexpr bool has_pairs = has_offset || has_min;
    // f32 scales of 16 rows, f32 minima, int32 sub-scales of each group; sub-minima, or sub-scales times minus the
    // offset, in pairs of 16 bits; weights.
    static constexpr int low = 64, factors = has_min ? 128 : 64, pairs = factors + 64 * n,
                         weights = pairs + (has_pairs ? 32 * n : 0), bytes = weights + 4096;

    // Sum over all groups of factor * (sum of the activations).
    [[gnu::always_inline]] static I32 dot_sums(const uint8_t* p, const uint8_t* sums) {
        I32 sum = izero();
        each<n / 2>([&]<int k>() __attribute__((always_inline)) {
            sum = pair_dot(sum, load_bytes(p + pairs + 64 * k), sums + 4 * k);
        });
        return sum;
    }

    // Computes rows [row, row + M) of a tile of each block, for two panels.
    template <int M>
    [[gnu::noinline]] static void rows(const GridBlocks& of, const PanelPair& pair, const uint8_t* tile, int row) {
        constexpr int P = 2;
        const uint8_t* open = pair.open[0];
        float* const acc[P] = {pair.acc[0] + 16 * row, pair.acc[1] + 16 * row};
        constexpr int dots_of_group = 64 / n, groups = n / 4;  // of a chunk of 64 columns
        const int64_t panel = pair.open[1] - open;
        for (int b = 0; b < of.n_blocks; ++b, open += bytes, tile += of.tiles_step) {
            const uint8_t* sums = tile + (n == 8 ? kTileSums32 : kTileSums16) + 2 * n * row;
            I32 total[P][M];
            for (int p = 0; p < P; ++p)
                for (int m = 0; m < M; ++m)
                    total[p][m] = has_offset ? dot_sums(open + p * panel, sums + 2 * n * m) : izero();
            for (int k = 0; k < 4; ++k) {
                const uint8_t *w = open + weights + 1024 * k, *f = open + factors + 64 * groups * k;
                const int8_t* q = reinterpret_cast<const int8_t*>(tile) + 1024 * k + 64 * row;
                each<groups>([&]<int g>() __attribute__((always_inline)) {
                    I32 dots[P][M];
                    for (int p = 0; p < P; ++p)
                        for (int m = 0; m < M; ++m) dots[p][m] = izero();
                    each<dots_of_group>([&]<int i>() __attribute__((always_inline)) {
                        constexpr int v = dots_of_group * g + i;
                        U8 one[P];
                        for (int p = 0; p < P; ++p) one[p] = load_bytes(w + p * panel + 64 * v);
                        for (int m = 0; m < M; ++m)
                            for (int p = 0; p < P; ++p) dots[p][m] = dot4<v>(dots[p][m], one[p], q + 64 * m);
                    });
                    for (int p = 0; p < P; ++p) {
                        const I32 factor = load_ints(reinterpret_cast<const int32_t*>(f + p * panel + 64 * g));
                        for (int m = 0; m < M; ++m) total[p][m] = iadd(total[p][m], imul(factor, dots[p][m]));
                    }
                });
            }
            const float* scales = reinterpret_cast<const float*>(tile + kTileScales) + row;
            for (int p = 0; p < P; ++p) {
                const uint8_t* at = open + p * panel;
                const F32 d = load(reinterpret_cast<const float*>(at));
                for (int m = 0; m < M; ++m) {
                    float* to = acc[p] + 16 * m;
                    F32 sum = fma(to_float(total[p][m]), mul(d, set1(scales[m])), load(to));
                    if constexpr (has_min) {
                        const F32 least = load(reinterpret_cast<const float*>(at + low));
                        const I32 lows = dot_sums(at, sums + 2 * n * m);
                        sum = fma(to_float(lows), mul(least, set1(-scales[m])), sum);
                    }
                    store(to, sum);
                }
            }
        }
    }
};

template <class Type>
constexpr int kDotsOffset = Type::signed_quants ? kSignedOffset : Type::offset;

template <class Type>
struct GridOpen256 : GridDots256<Type::n_groups, kDotsOffset<Type> != 0, Type::has_min> {
    static constexpr int n = Type::n_groups, offset = kDotsOffset<Type>;
    using Dots = GridDots256<n, offset != 0, Type::has_min>;
    using Dots::low, Dots::factors, Dots::pairs, Dots::weights, Dots::bytes;

    static void open(const uint8_t* panel, int, uint8_t* to) {
        for (int line = 0; line < Type::bytes; line += 64) prefetch(panel + Type::bytes + line);
        store(reinterpret_cast<float*>(to), Type::scale(panel));
        U8 scales[n / 4];
        Type::scales(panel, scales);
        in_rounds<n / 4>([&](int k) __attribute__((always_inline)) {
            each<4>([&]<int g>() __attribute__((always_inline)) {
                store(reinterpret_cast<int32_t*>(to + factors + 64 * (4 * k + g)), sub_scale<Type, g>(scales + k));
            });
        });
        if constexpr (Type::has_min) {
            store(reinterpret_cast<float*>(to + low), halves(panel + 32));
            U8 lows[n / 4];
            Type::minima(panel, lows);
            each<n / 2>([&]<int k>() __attribute__((always_inline)) {
                constexpr int at = 2 * k % 4;
                store_bytes(to + pairs + 64 * k, pair_of(byte<at>(lows[k / 2]), byte<at + 1>(lows[k / 2])));
            });
        } else if constexpr (offset != 0) {
            static_assert(offset <= 128, "times a signed byte it fits 16 bits");
            each<n / 2>([&]<int k>() __attribute__((always_inline)) {
                const I32 a = sub_scale<Type, 2 * k>(scales), b = sub_scale<Type, 2 * k + 1>(scales);
                store_bytes(to + pairs + 64 * k, pair_of(imul(a, iset1(-offset)), imul(b, iset1(-offset))));
            });
        }
        open_quants<Type>(panel, [&](int at, U8 w) __attribute__((always_inline)) {
            if constexpr (Type::signed_quants && kSignedOffset != 0) w = flip_sign(w);
            store_bytes(to + weights + at, w);
        });
    }
};

#if defined(WOOLLY_SHARED)
WOOLLY_SHARED struct GridPairs<GridDots256<8, true, false>, kTileBytes>;
WOOLLY_SHARED struct GridPairs<GridDots256<16, true, false>, kTileBytes>;
#endif

using Grids256 = Grids<Blocks256, GridOpen256, 256>;

}  // namespace woolly::WOOLLY_TARGET
