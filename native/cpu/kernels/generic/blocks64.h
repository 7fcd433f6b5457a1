// Kernels for weights in blocks of 64 columns with a float scale per 16, for few rows and for many. Activations have a
// scale and a sum per 32 columns, two of each per block.
//
// A packed block of a panel: the scales of 16 rows in chunks of 4 bytes, then the quants in chunks of 4 bytes.

namespace woolly::WOOLLY_TARGET {

struct NVFP4 : Packed<BlockNVFP4> {
    // The float scales of group g.
    template <int g>
    [[gnu::always_inline]] static F32 scale(const uint8_t* p) {
        float scales[16];
        store_bytes(reinterpret_cast<uint8_t*>(scales), look_up(kUe4m3.halves, byte<g>(load_bytes(p))));
        return load(scales);
    }
    // The four vectors of group g.
    template <int g, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, const Use& use) {
        const auto signed_use = [&]<int v>(U8 index) __attribute__((always_inline)) {
            use.template operator()<v>(lookup(kMxfp4Values, index));
        };
        four_bits<0, 2>(p + quants + 128 * g, signed_use);
        four_bits<1, 2>(p + quants + 128 * g + 64, signed_use);
    }
};

// For levels whose dots take only unsigned weights, each weight is kSignedOffset too large: subtracts kSignedOffset
// times the sum of the 16 activations of group g. `first` keeps the sum of an even group for the odd one that follows;
// `both` is their sum.
template <int g>
[[gnu::always_inline]] inline I32 without_offset(Columns a, int32_t both, I32& first) {
    if constexpr (kSignedOffset == 0) return izero();
    if constexpr (g % 2 == 0) {
        const U8 ones = as_bytes(iset1(0x01010101));
        first = izero();
        each<4>([&]<int v>() __attribute__((always_inline)) { first = dot4<v>(first, ones, a); });
        return imul(first, iset1(-kSignedOffset));
    }
    return imul(isub(iset1(both), first), iset1(-kSignedOffset));
}

template <class Type, int M>
inline void dot_blocks64(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, float* tile) {
    F32 acc[M];
    I32 first[M];
    for (int m = 0; m < M; ++m) acc[m] = zero(), first[m] = izero();
    for (int64_t b = 0; b < n_columns / 64; ++b, panel += Type::bytes) {
        for (int line = 0; line < Type::bytes; line += 64) prefetch(panel + kPrefetch + line);
        each<4>([&]<int g>() __attribute__((always_inline)) {
            const int64_t at = 2 * b + g / 2;
            Columns a[M];
            I32 dot[M];
            for (int m = 0; m < M; ++m) {
                a[m] = columns(rows[m].q + 64 * b + 16 * g);
                dot[m] = without_offset<g>(a[m], rows[m].sums[at], first[m]);
            }
            Type::template unpack<g>(panel, [&]<int v>(U8 w) __attribute__((always_inline)) {
                for (int m = 0; m < M; ++m) dot[m] = dot4_signed<v>(dot[m], w, a[m]);
            });
            const F32 d = Type::template scale<g>(panel);
            for (int m = 0; m < M; ++m) acc[m] = fma(to_float(dot[m]), mul(d, set1(rows[m].scale[at])), acc[m]);
        });
    }
    for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
}

template <class Type>
struct Open64 {
    static constexpr bool signed_dot = kSigned || kSignedOffset == 0;
    // An opened block: f32 scales of 16 rows for each group, weights.
    static constexpr int weights = 256, bytes = weights + 1024;

    static void open(const uint8_t* panel, int64_t n_blocks, uint8_t* to) {
        for (int64_t b = 0; b < n_blocks; ++b, panel += Type::bytes, to += bytes) {
            for (int line = 0; line < Type::bytes; line += 64) prefetch(panel + kPrefetch + line);
            each<4>([&]<int g>() __attribute__((always_inline)) {
                store(reinterpret_cast<float*>(to + 64 * g), Type::template scale<g>(panel));
                Type::template unpack<g>(panel, [&]<int v>(U8 w) __attribute__((always_inline)) {
                    store_bytes(to + weights + 256 * g + 64 * v, signed_dot ? w : flip_sign(w));
                });
            });
        }
    }

    template <int M>
    static void dot(const uint8_t* open, int64_t n_blocks, const ActivationRow* rows, int64_t first, float* acc,
                    Ahead& ahead) {
        for (int lane = 0; lane < 16; lane += kStrip) {
            const uint8_t* p = open + 4 * lane;
            StripF sum[M];
            StripI even[M];
            // As in Open32::dot.
            const int8_t* q[M];
            const float* scale[M];
            for (int m = 0; m < M; ++m) {
                sum[m] = strip_load(acc + 16 * m + lane), even[m] = strip_zero();
                q[m] = rows[m].q, scale[m] = rows[m].scale;
            }
            for (int64_t b = first; b < first + n_blocks; ++b, p += bytes) {
                if (b % 4 == 0) fetch(ahead);
                each<4>([&]<int g>() __attribute__((always_inline)) {
                    const int64_t at = 2 * b + g / 2;
                    Columns a[M];
                    StripI dots[M];
                    for (int m = 0; m < M; ++m) {
                        a[m] = columns(q[m] + 64 * b + 16 * g);
                        if constexpr (signed_dot) {
                            dots[m] = strip_zero();
                        } else {
                            dots[m] = without_offset<g>(a[m], rows[m].sums[at], even[m]);
                        }
                    }
                    each<4>([&]<int v>() __attribute__((always_inline)) {
                        const StripU w = strip_load(p + weights + 256 * g + 64 * v);
                        for (int m = 0; m < M; ++m)
                            dots[m] =
                                signed_dot ? strip_dot_signed<v>(dots[m], w, a[m]) : strip_dot<v>(dots[m], w, a[m]);
                    });
                    const StripF d = strip_load(reinterpret_cast<const float*>(p + 64 * g));
                    for (int m = 0; m < M; ++m) sum[m] = fma(to_float(dots[m]), scaled(d, scale[m][at]), sum[m]);
                });
            }
            for (int m = 0; m < M; ++m) store(acc + 16 * m + lane, sum[m]);
        }
    }
};

}  // namespace woolly::WOOLLY_TARGET
