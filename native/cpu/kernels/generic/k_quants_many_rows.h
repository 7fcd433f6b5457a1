// Many rows against super-blocks of 256 columns. The weights of a panel are opened once, to one byte each with integer
// sub-scales, and used for all rows of the batch. The float operations are those of k_quants.h, so results are
// bit-identical.

namespace woolly::WOOLLY_TARGET {

// Opened super-blocks of n groups. Weights still include their offset, because the level's dot takes only unsigned
// ones. Types with equal parameters share this code.
template <int n, bool has_offset, bool signed_dot, bool has_min>
struct Opened256 {
    // Layout of an opened super-block: f32 scales and minima of 16 rows, int32 sub-scales of 16 rows per group; with an
    // offset, minus the offset for 16 rows, and the sub-scales in bytes; sub-minima in bytes; weights.
    static constexpr int low = 64, factors = has_min ? 128 : 64, less = factors + 64 * n,
                         packed = less + (has_offset ? 64 : 0), minima = packed + (has_offset ? 16 * n : 0),
                         weights = minima + (has_min ? 16 * n : 0), bytes = weights + 4096;

    // Sum over all groups of minimum * (sum of the activations), biased.
    [[gnu::always_inline]] static StripI dot_minima(const uint8_t* p, const int8_t* planes) {
        StripI start = strip_biased(), high = strip_zero();
        const auto add = [&]<int k>(StripI& to, Columns a) __attribute__((always_inline)) {
            to = strip_dot<k>(to, strip_load(p + 64 * (k % (n / 4))), a);
        };
        if constexpr (n == 8) {
            const Columns a = columns(planes + 32);
            add.template operator()<0>(start, a);
            add.template operator()<1>(start, a);
            add.template operator()<2>(high, a);
            add.template operator()<3>(high, a);
        } else {
            const Columns first = columns(planes), second = columns(planes + 16);
            each<4>([&]<int k>() __attribute__((always_inline)) {
                add.template operator()<k>(start, first);
                add.template operator()<k>(high, second);
            });
        }
        return add_64(start, high);
    }

    // Initial value of the sum over all groups: the offsets of all weights.
    [[gnu::always_inline]] static StripI begin(const uint8_t* p, const ActivationRow& row, int64_t b) {
        if constexpr (has_offset) {
            U8 scales[n / 4];
            for (int k = 0; k < n / 4; ++k) scales[k] = load_bytes(p + packed + 64 * k);
            return imul(dot_sums<n, true>(scales, row.planes + kPlanes * b),
                        load_ints(reinterpret_cast<const int32_t*>(p + less)));
        }
        return strip_zero();
    }
    // Adds the sum over all groups to `acc`, with the scale and the planes of the activations.
    [[gnu::always_inline]] static void end(const uint8_t* p, StripI total, float scale, const int8_t* planes,
                                           float* acc) {
        const StripF d = strip_load(reinterpret_cast<const float*>(p));
        StripF sum = fma(to_float(total), scaled(d, scale), strip_load(acc));
        if constexpr (has_min) {
            const StripI lows = dot_minima(p + minima, planes);
            const StripF least = strip_load(reinterpret_cast<const float*>(p + low));
            sum = fma(unbiased(lows), scaled(least, -scale), sum);
        }
        store(acc, sum);
    }

    template <int M>
    static void dot(const uint8_t* open, int64_t n_blocks, const ActivationRow* rows, int64_t first, float* acc,
                    Ahead& ahead) {
        constexpr int width = 256 / n;
        // As in Open32::dot.
        const int8_t *q[M], *planes[M];
        const float* scale[M];
        for (int m = 0; m < M; ++m) q[m] = rows[m].q, planes[m] = rows[m].planes, scale[m] = rows[m].scale;
        for (int lane = 0; lane < 16; lane += kStrip) {
            const uint8_t* p = open + 4 * lane;
            for (int64_t b = first; b < first + n_blocks; ++b, p += bytes) {
                fetch(ahead);
                StripI total[M];
                for (int m = 0; m < M; ++m) total[m] = begin(p, rows[m], b);
                for (int g = 0; g < n; ++g) {
                    StripI dots[M];
                    for (int m = 0; m < M; ++m) dots[m] = strip_zero();
                    each<width / 16>([&]<int c>() __attribute__((always_inline)) {
                        Columns a[M];
                        for (int m = 0; m < M; ++m) a[m] = columns(q[m] + 256 * b + width * g + 16 * c);
                        each<4>([&]<int v>() __attribute__((always_inline)) {
                            const StripU w = strip_load(p + weights + 16 * width * g + 64 * (4 * c + v));
                            for (int m = 0; m < M; ++m)
                                dots[m] =
                                    signed_dot ? strip_dot_signed<v>(dots[m], w, a[m]) : strip_dot<v>(dots[m], w, a[m]);
                        });
                    });
                    const StripI factor = strip_load(reinterpret_cast<const int32_t*>(p + factors + 64 * g));
                    for (int m = 0; m < M; ++m) total[m] = multiply_add(total[m], factor, dots[m]);
                }
                for (int m = 0; m < M; ++m) end(p, total[m], scale[m][b], planes[m] + kPlanes * b, acc + 16 * m + lane);
            }
        }
    }
};

template <class Type>
constexpr int open_offset = Type::signed_quants ? kSignedOffset
                            : kSigned           ? 0
                                                : Type::offset;

template <class Type>
using OpenedOf = Opened256<Type::n_groups, open_offset<Type> != 0,
                           kSigned || (Type::signed_quants && kSignedOffset == 0), Type::has_min>;

template <class Type>
struct Open256 : OpenedOf<Type> {
    using Opened = OpenedOf<Type>;
    static constexpr int n = Type::n_groups, offset = open_offset<Type>;
    using Opened::low, Opened::factors, Opened::less, Opened::packed, Opened::minima, Opened::weights, Opened::bytes;

    static void open(const uint8_t* panel, int64_t n_blocks, uint8_t* to) {
        for (int64_t b = 0; b < n_blocks; ++b, panel += Type::bytes, to += bytes) {
            for (int line = 0; line < Type::bytes; line += 64) prefetch(panel + Type::bytes + line);
            store(reinterpret_cast<float*>(to), Type::scale(panel));
            U8 scales[n / 4];
            Type::scales(panel, scales);
            in_rounds<n / 4>([&](int k) __attribute__((always_inline)) {
                each<4>([&]<int g>() __attribute__((always_inline)) {
                    const I32 factor = sub_scale<Type, g>(scales + k);
                    store(reinterpret_cast<int32_t*>(to + factors + 64 * (4 * k + g)), factor);
                });
            });
            if constexpr (offset != 0) {
                store(reinterpret_cast<int32_t*>(to + less), iset1(-offset));
                for (int k = 0; k < n / 4; ++k) store_bytes(to + packed + 64 * k, scales[k]);
            }
            if constexpr (Type::has_min) open_minima<Type>(panel, to + low, to + minima);
            open_quants<Type>(panel, [&](int at, U8 w) __attribute__((always_inline)) {
                if constexpr (Type::signed_quants && kSignedOffset != 0) w = flip_sign(w);
                if constexpr (!Type::signed_quants && kSigned && Type::offset != 0) w = minus<Type::offset>(w);
                store_bytes(to + weights + at, w);
            });
        }
    }
};

}  // namespace woolly::WOOLLY_TARGET
