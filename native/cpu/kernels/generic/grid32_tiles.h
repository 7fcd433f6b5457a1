// Many rows against weights with one float scale per 32 columns with int8 matrix tiles: a tile dot sums a block for up
// to 16 rows exactly, and vectors finish it. The float operations are those of blocks32.h, so results are
// bit-identical.
//
// The tile dots of the next two blocks run while a block is finished. Tiles 0 and 3 are sums, 4 and 5 activations, 6
// and 7 weights; the level supplies the same functions as for grid256.h.

namespace woolly::WOOLLY_TARGET {

template <bool has_min>
struct GridSums32 {
    // As in Open32, but weights are signed.
    static constexpr int weights = has_min ? 128 : 64, bytes = weights + 512;

    // start<odd>(b) begins the tile dot of block b; end(b, sums) finishes it with its sums, 16 per row.
    template <class Start, class End>
    [[gnu::always_inline]] static void in_turn(int n, const Start& start, const End& end) {
        alignas(64) int32_t sums[2][256];
        start.template operator()<false>(0);
        int b = 0;
        for (; b + 2 <= n; b += 2) {
            start.template operator()<true>(b + 1);
            tile_store<0>(sums[0], 64);
            if (b > 0) end(b - 1, sums[1]);
            if (b + 2 < n) start.template operator()<false>(b + 2);
            tile_store<3>(sums[1], 64);
            end(b, sums[0]);
        }
        if (b < n) tile_store<0>(sums[0], 64);
        if (b > 0) end(b - 1, sums[1]);
        if (b < n) end(b, sums[0]);
    }

    // Computes M rows of a tile of each block, for one panel.
    template <int M>
    [[gnu::noinline]] static void rows(const GridBlocks& of, const uint8_t* open, const uint8_t* tiles, float* acc) {
        F32 sum[M];
        // By `each`, not by a loop: GCC keeps an array in registers only if its indices are numbers from the start.
        each<M>([&]<int m>() __attribute__((always_inline)) { sum[m] = load(acc + 16 * m); });
        in_turn(
            of.n_blocks,
            [&]<bool odd>(int b) __attribute__((always_inline)) {
                constexpr int c = odd ? 3 : 0, a = odd ? 5 : 4, w = odd ? 7 : 6;
                tile_zero<c>();
                tile_load<a>(tiles + b * of.tiles_step, 32);
                tile_load<w>(open + b * bytes + weights, 64);
                tile_dot<c, a, w>();
            },
            [&](int b, const int32_t* sums) __attribute__((always_inline)) {
                const uint8_t *at = open + b * bytes, *row = tiles + b * of.tiles_step;
                const float* scales = reinterpret_cast<const float*>(row + kTile32Scales);
                const float* lows = reinterpret_cast<const float*>(row + kTile32Lows);
                const F32 d = load(reinterpret_cast<const float*>(at));
                each<M>([&]<int m>() __attribute__((always_inline)) {
                    sum[m] = fma(to_float(load_ints(sums + 16 * m)), mul(d, set1(scales[m])), sum[m]);
                    if constexpr (has_min) {
                        const F32 least = load(reinterpret_cast<const float*>(at + 64));
                        sum[m] = fma(least, set1(lows[m]), sum[m]);
                    }
                });
            });
        each<M>([&]<int m>() __attribute__((always_inline)) { store(acc + 16 * m, sum[m]); });
    }

    // Tiles of 16 rows, or of 8 for the last ones.
    static void dot(const GridBlocks& of, int n_rows) {
        const int n_tiles = (n_rows + kTileRows - 1) / kTileRows, left = n_rows - (n_tiles - 1) * kTileRows;
        const int whole = left <= 8 ? n_tiles - 1 : n_tiles;
        const auto all = [&]<int M>(int tile) __attribute__((always_inline)) {
            for (int p = 0; p < of.n_panels; ++p)
                rows<M>(of, of.open + int64_t(p) * of.n_blocks * bytes, of.tiles + tile * int64_t{kTile32Bytes},
                        of.acc + p * of.acc_step + tile * int64_t{kTileRows * kPanel});
        };
        if (whole > 0) {
            tiles_begin(16, 16, 32);
            for (int t = 0; t < whole; ++t) all.template operator()<16>(t);
        }
        if (whole < n_tiles) {
            tiles_begin(8, 8, 32);
            all.template operator()<8>(whole);
        }
        tiles_end();
    }
};

template <class Type>
struct GridTiles32 : GridSums32<Type::has_min> {
    using GridSums32<Type::has_min>::weights, GridSums32<Type::has_min>::bytes;

    static void open(const uint8_t* panel, int, uint8_t* to) {
        for (int line = 0; line < Type::bytes; line += 64) prefetch(panel + kPrefetch + line);
        store(reinterpret_cast<float*>(to), Type::scale(panel));
        if constexpr (Type::has_min) store(reinterpret_cast<float*>(to + 64), halves(panel + 32));
        Type::unpack(panel, [&]<int v>(U8 w) __attribute__((always_inline)) {
            store_bytes(to + weights + 64 * v, Type::offset == 0 ? w : minus<Type::offset>(w));
        });
    }
};

using GridsTiles32 = Grids<Blocks32, GridTiles32, 32>;

}  // namespace woolly::WOOLLY_TARGET
