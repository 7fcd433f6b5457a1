// Many rows against weights with one float scale per 32 columns: opened once per panel, then used for all rows of the
// batch. The float operations are those of blocks32.h, so results are bit-identical.

namespace woolly::WOOLLY_TARGET {

// Opened blocks; types with equal parameters share the code. Weights still include `offset_`, because the level's dot
// takes only unsigned ones, up to `most`.
template <int offset_, bool signed_dot, bool has_min, int most = 255>
struct Opened32 {
    static constexpr int offset = offset_;
    // An opened block: f32 scales of 16 rows, f32 minima, weights.
    static constexpr int weights = has_min ? 128 : 64, bytes = weights + 512;

    template <int M>
    static void dot(const uint8_t* open, int64_t n_blocks, const ActivationRow* rows, int64_t first, float* acc,
                    Ahead& ahead) {
        for (int lane = 0; lane < 16; lane += kStrip) {
            const uint8_t* p = open + 4 * lane;
            StripF sum[M];
            // Copies: the compiler assumes that a prefetch changes memory, and would reload these each time.
            const int8_t* q[M];
            const float *scale[M], *lows[M];
            for (int m = 0; m < M; ++m) {
                sum[m] = strip_load(acc + 16 * m + lane);
                q[m] = rows[m].q, scale[m] = rows[m].scale, lows[m] = rows[m].lows;
            }
            for (int64_t b = first; b < first + n_blocks; ++b, p += bytes) {
                if (b % 8 == 0) fetch(ahead);
                StripI dots[M];
                for (int m = 0; m < M; ++m)
                    if constexpr (offset != 0) {
                        dots[m] = biased(-offset * rows[m].sums[b]);
                    } else {
                        dots[m] = strip_biased();
                    }
#if defined(WOOLLY_PAIR_SUMS)
                constexpr bool by_pairs = !signed_dot && most <= kMaxPairQuant;
                StripI pairs[M];
                for (int m = 0; m < M; ++m) pairs[m] = strip_zero();
#endif
                each<2>([&]<int c>() __attribute__((always_inline)) {
                    Columns a[M];
                    for (int m = 0; m < M; ++m) a[m] = columns(q[m] + 32 * b + 16 * c);
                    each<4>([&]<int v>() __attribute__((always_inline)) {
                        const StripU w = strip_load(p + weights + 64 * (4 * c + v));
#if defined(WOOLLY_PAIR_SUMS)
                        if constexpr (by_pairs) {
                            for (int m = 0; m < M; ++m) pairs[m] = add_pairs<v>(pairs[m], w, a[m]);
                            return;
                        }
#endif
                        for (int m = 0; m < M; ++m)
                            dots[m] =
                                signed_dot ? strip_dot_signed<v>(dots[m], w, a[m]) : strip_dot<v>(dots[m], w, a[m]);
                    });
                });
#if defined(WOOLLY_PAIR_SUMS)
                if constexpr (by_pairs)
                    for (int m = 0; m < M; ++m) dots[m] = add_widened(dots[m], pairs[m]);
#endif
                const StripF d = strip_load(reinterpret_cast<const float*>(p));
                for (int m = 0; m < M; ++m) {
                    sum[m] = fma(unbiased(dots[m]), scaled(d, scale[m][b]), sum[m]);
                    if constexpr (has_min)
                        sum[m] = fma(strip_load(reinterpret_cast<const float*>(p + 64)), lows[m][b], sum[m]);
                }
            }
            for (int m = 0; m < M; ++m) store(acc + 16 * m + lane, sum[m]);
        }
    }
};

// Maximum opened weight, for types that define it.
template <class Type>
constexpr int max_quant() {
    if constexpr (requires { Type::most; }) return Type::most;
    return 255;
}

// As in Open256.
template <class Type>
using Opened32Of = Opened32<Type::is_signed ? kSignedOffset
                            : kSigned       ? 0
                                            : Type::offset,
                            kSigned || (Type::is_signed && kSignedOffset == 0), Type::has_min, max_quant<Type>()>;

template <class Type>
struct Open32 : Opened32Of<Type> {
    using Opened = Opened32Of<Type>;
    using Opened::weights, Opened::bytes;

    static void open(const uint8_t* panel, int64_t n_blocks, uint8_t* to) {
        for (int64_t b = 0; b < n_blocks; ++b, panel += Type::bytes, to += bytes) {
            for (int line = 0; line < Type::bytes; line += 64) prefetch(panel + kPrefetch + line);
            store(reinterpret_cast<float*>(to), Type::scale(panel));
            if constexpr (Type::has_min) store(reinterpret_cast<float*>(to + 64), halves(panel + 32));
            Type::unpack(panel, [&]<int v>(U8 w) __attribute__((always_inline)) {
                if constexpr (Type::is_signed && kSignedOffset != 0) w = flip_sign(w);
                if constexpr (!Type::is_signed && kSigned && Type::offset != 0) w = minus<Type::offset>(w);
                store_bytes(to + weights + 64 * v, w);
            });
        }
    }
};

}  // namespace woolly::WOOLLY_TARGET
