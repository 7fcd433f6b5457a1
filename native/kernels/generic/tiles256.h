// Many rows against super-blocks of 256 columns by matrix tiles of bytes. Opening multiplies the sub-scale into each
// weight; the product has up to 13 bits and becomes two planes, product = low + 128 * high, so that a tile sums all 256
// columns without a pause, exactly. One conversion and one fma (two with minima) end it, as in blocks256.h.
//
// The level supplies split_planes and the tiles: tiles_begin(rows, more), tiles_end(), and by number tile_zero,
// tile_load, tile_dot, tile_store. Tiles 0 to 3 are sums: low and high planes of 16 rows, then of 16 more; 4 and 5 are
// activations, 6 and 7 weights.

namespace woolly::WOOLLY_TARGET {

template <class Type>
struct Tiles256 {
    static constexpr int n = Type::n_groups;
    static constexpr int low = 64, minima = Type::has_min ? 128 : 64,
                         planes = (minima + (Type::has_min ? 16 * n : 0) + 63) / 64 * 64, bytes = planes + 2 * 4096;

    static void open(const uint8_t* panel, int64_t n_blocks, uint8_t* to) {
        for (int64_t b = 0; b < n_blocks; ++b, panel += Type::bytes, to += bytes) {
            for (int line = 0; line < Type::bytes; line += 64) prefetch(panel + Type::bytes + line);
            store(reinterpret_cast<float*>(to), halves(panel));
            U8 scales[n / 4];
            Type::scales(panel, scales);
            if constexpr (Type::has_min) open_minima<Type>(panel, to + low, to + minima);
            each<256 / Type::unit>([&]<int u>() __attribute__((always_inline)) {
                Type::template unpack<u>(panel + Type::quants, [&]<int v>(U8 w) __attribute__((always_inline)) {
                    constexpr int g = (Type::unit * u + 4 * v) / (256 / n);
                    const I32 factor = sub_scale<Type, g>(scales);
                    U8 first, second;
                    split_planes<Type::offset, Type::signed_quants>(w, factor, &first, &second);
                    uint8_t* at = to + planes + 16 * Type::unit * u + 64 * v;
                    store_bytes(at, first);
                    store_bytes(at + 4096, second);
                });
            });
        }
    }

    // Sums of one row from its two planes.
    static void finish(const uint8_t* p, const ActivationRow& row, int64_t b, const int32_t* first,
                       const int32_t* second, float* acc) {
        const I32 total = iadd(load_ints(first), ishift_left<7>(load_ints(second)));
        const F32 d = load(reinterpret_cast<const float*>(p));
        F32 sum = fma(to_float(total), mul(d, set1(row.scale[b])), load(acc));
        if constexpr (Type::has_min) {
            U8 lows[n / 4];
            for (int k = 0; k < n / 4; ++k) lows[k] = load_bytes(p + minima + 64 * k);
            const F32 least = load(reinterpret_cast<const float*>(p + low));
            sum = fma(to_float(dot_sums<n, false>(lows, row, b)), mul(least, set1(-row.scale[b])), sum);
        }
        store(acc, sum);
    }

    // n_rows <= 32, at equal distances.
    template <bool two>
    static void dot_rows(const uint8_t* open, int64_t n_blocks, const ActivationRow* rows, int64_t first, int n_rows,
                         float* acc, Ahead& ahead) {
        alignas(64) int32_t sums[4][16 * 16];
        const int64_t stride = n_rows > 1 ? rows[1].q - rows[0].q : 64;
        const uint8_t* p = open;
        for (int64_t b = first; b < first + n_blocks; ++b, p += bytes) {
            fetch(ahead);
            tile_zero<0>(), tile_zero<1>();
            if constexpr (two) tile_zero<2>(), tile_zero<3>();
            for (int k = 0; k < 4; ++k) {
                tile_load<6>(p + planes + 1024 * k, 64);
                tile_load<7>(p + planes + 4096 + 1024 * k, 64);
                tile_load<4>(rows[0].q + 256 * b + 64 * k, stride);
                tile_dot<0, 4, 6>();
                tile_dot<1, 4, 7>();
                if constexpr (two) {
                    tile_load<5>(rows[16].q + 256 * b + 64 * k, stride);
                    tile_dot<2, 5, 6>();
                    tile_dot<3, 5, 7>();
                }
            }
            tile_store<0>(sums[0], 64), tile_store<1>(sums[1], 64);
            if constexpr (two) tile_store<2>(sums[2], 64), tile_store<3>(sums[3], 64);
            for (int m = 0; m < n_rows; ++m) {
                const int at = 2 * (m / 16), row = 16 * (m % 16);
                finish(p, rows[m], b, sums[at] + row, sums[at + 1] + row, acc + 16 * m);
            }
        }
    }

    static void dot(const uint8_t* open, int64_t n_blocks, const ActivationRow* rows, int64_t first, int n_rows,
                    float* acc, Ahead& ahead) {
        int shape = -1;
        for (int m = 0; m < n_rows; m += 32) {
            const int count = n_rows - m < 32 ? n_rows - m : 32;
            if (count != shape) tiles_begin(count < 16 ? count : 16, count > 16 ? count - 16 : 0);
            shape = count;
            if (count > 16) {
                dot_rows<true>(open, n_blocks, rows + m, first, count, acc + 16 * m, ahead);
            } else {
                dot_rows<false>(open, n_blocks, rows + m, first, count, acc + 16 * m, ahead);
            }
        }
        tiles_end();
    }
};

template <class Type>
constexpr Wide tiles_256() {
    return {Tiles256<Type>::open, Tiles256<Type>::dot, 256, Type::bytes, Tiles256<Type>::bytes};
}

constexpr void set_tiles(KernelTable& t) {
    const auto wide = [&](WeightType type, Wide kernels) { t.wide[int(type)] = kernels; };
    wide(WeightType::q2_k, tiles_256<Q2_K>());
    wide(WeightType::q3_k, tiles_256<Q3_K>());
    wide(WeightType::q4_k, tiles_256<Q4_K>());
    wide(WeightType::q5_k, tiles_256<Q5_K>());
    wide(WeightType::q6_k, tiles_256<Q6_K>());
    t.row_block = 512;
}

}  // namespace woolly::WOOLLY_TARGET
