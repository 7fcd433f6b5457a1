// Many rows with int8 matrix products (i8mm): one instruction multiplies two rows of weights by two rows of activations
// over eight columns, twice the work of a dot. A sum register holds (weights 0, activations 0), (0, 1), (1, 0), (1, 1).
// The float operations are those of blocks32_many_rows.h and k_quants_many_rows.h, lane by lane.

namespace woolly::WOOLLY_TARGET {

// Eight rows of weights by two rows of activations.
struct PairI {
    int32x4_t v[4];
};
struct PairF {
    float32x4_t v[4];
};

#define WOOLLY_PAIRS WOOLLY_FOUR_TIMES

[[gnu::always_inline]] inline PairI pair_izero() {
    const int32x4_t zero_ = vdupq_n_s32(0);
    return {{zero_, zero_, zero_, zero_}};
}
// Eight columns of two rows of activations, side by side.
[[gnu::always_inline]] inline int8x16_t both(const int8_t* a, const int8_t* b) {
    return vcombine_s8(vld1_s8(a), vld1_s8(b));
}
// `w`: four registers, each with eight columns of one row and of the next.
[[gnu::always_inline]] inline PairI mmla(PairI acc, const uint8_t* w, int8x16_t a) {
    WOOLLY_PAIRS(acc.v[i] = vmmlaq_s32(acc.v[i], vreinterpretq_s8_u8(vld1q_u8(w + 16 * i)), a));
    return acc;
}
// Broadcasts one number per row of eight weight rows to both rows of activations.
[[gnu::always_inline]] inline PairI twice(const int32_t* p) {
    const int32x4_t a = vld1q_s32(p), b = vld1q_s32(p + 4);
    return {{vzip1q_s32(a, a), vzip2q_s32(a, a), vzip1q_s32(b, b), vzip2q_s32(b, b)}};
}
[[gnu::always_inline]] inline PairF twice(const float* p) {
    const float32x4_t a = vld1q_f32(p), b = vld1q_f32(p + 4);
    return {{vzip1q_f32(a, a), vzip2q_f32(a, a), vzip1q_f32(b, b), vzip2q_f32(b, b)}};
}
// Broadcasts one number per row of the two rows of activations.
[[gnu::always_inline]] inline float32x4_t alternate(float a, float b) {
    const float32x2_t two = vset_lane_f32(b, vdup_n_f32(a), 1);
    return vcombine_f32(two, two);
}
[[gnu::always_inline]] inline PairF to_float(PairI a) {
    PairF r;
    WOOLLY_PAIRS(r.v[i] = vcvtq_f32_s32(a.v[i]));
    return r;
}
[[gnu::always_inline]] inline PairF load_pair(const float* a, const float* b) {
    const float32x4_t a0 = vld1q_f32(a), a1 = vld1q_f32(a + 4), b0 = vld1q_f32(b), b1 = vld1q_f32(b + 4);
    return {{vzip1q_f32(a0, b0), vzip2q_f32(a0, b0), vzip1q_f32(a1, b1), vzip2q_f32(a1, b1)}};
}
// Stores b, then a: for an odd row count b aliases a, and the sums of a must win.
[[gnu::always_inline]] inline void store_pair(float* a, float* b, PairF x) {
    for (int i = 0; i < 2; ++i) vst1q_f32(b + 4 * i, vuzp2q_f32(x.v[2 * i], x.v[2 * i + 1]));
    for (int i = 0; i < 2; ++i) vst1q_f32(a + 4 * i, vuzp1q_f32(x.v[2 * i], x.v[2 * i + 1]));
}

// Reorders vectors of four columns by 16 rows into registers of eight columns by two rows, in place: 128 bytes are
// eight columns of the panel.
inline void pair_columns(uint8_t* p, int n) {
    for (int at = 0; at < n; at += 128) {
        uint32x4_t low[4], high[4];
        for (int i = 0; i < 4; ++i) {
            low[i] = vld1q_u32(reinterpret_cast<const uint32_t*>(p + at + 16 * i));
            high[i] = vld1q_u32(reinterpret_cast<const uint32_t*>(p + at + 64 + 16 * i));
        }
        for (int i = 0; i < 4; ++i) {
            vst1q_u32(reinterpret_cast<uint32_t*>(p + at + 32 * i), vzip1q_u32(low[i], high[i]));
            vst1q_u32(reinterpret_cast<uint32_t*>(p + at + 32 * i + 16), vzip2q_u32(low[i], high[i]));
        }
    }
}

// G pairs of rows at a time. `rows` holds 2 G of them; the last may be repeated.
template <class Type>
struct Mmla32 {
    using Open = Open32<Type>;
    static_assert(Open::offset == 0);
    static constexpr int bytes = Open::bytes;

    static void open(const uint8_t* panel, int64_t n_blocks, uint8_t* to) {
        Open::open(panel, n_blocks, to);
        for (int64_t b = 0; b < n_blocks; ++b) pair_columns(to + b * Open::bytes + Open::weights, 512);
    }

    template <int G>
    static void dot(const uint8_t* open, int64_t n_blocks, const ActivationRow* const* rows, int64_t first,
                    float* const* acc, Ahead& ahead) {
        for (int lane = 0; lane < 16; lane += 8) {
            const uint8_t* p = open;
            PairF sum[G];
            for (int g = 0; g < G; ++g) sum[g] = load_pair(acc[2 * g] + lane, acc[2 * g + 1] + lane);
            for (int64_t b = first; b < first + n_blocks; ++b, p += Open::bytes) {
                if (b % 8 == 0) fetch(ahead);
                PairI dots[G];
                for (int g = 0; g < G; ++g) dots[g] = pair_izero();
                for (int c = 0; c < 32; c += 8)
                    for (int g = 0; g < G; ++g)
                        dots[g] = mmla(dots[g], p + Open::weights + 16 * c + 8 * lane,
                                       both(rows[2 * g]->q + 32 * b + c, rows[2 * g + 1]->q + 32 * b + c));
                const PairF d = twice(reinterpret_cast<const float*>(p) + lane);
                for (int g = 0; g < G; ++g) {
                    const PairF dot = to_float(dots[g]);
                    const float32x4_t scale = alternate(rows[2 * g]->scale[b], rows[2 * g + 1]->scale[b]);
                    WOOLLY_PAIRS(sum[g].v[i] = vfmaq_f32(sum[g].v[i], dot.v[i], vmulq_f32(d.v[i], scale)));
                    if constexpr (Type::has_min) {
                        const PairF least = twice(reinterpret_cast<const float*>(p + 64) + lane);
                        const float32x4_t lows = alternate(rows[2 * g]->lows[b], rows[2 * g + 1]->lows[b]);
                        WOOLLY_PAIRS(sum[g].v[i] = vfmaq_f32(sum[g].v[i], least.v[i], lows));
                    }
                }
            }
            for (int g = 0; g < G; ++g) store_pair(acc[2 * g] + lane, acc[2 * g + 1] + lane, sum[g]);
        }
    }
};

template <class Type>
struct Mmla256 {
    using Open = Open256<Type>;
    static_assert(Open::offset == 0);
    static constexpr int bytes = Open::bytes;

    static void open(const uint8_t* panel, int64_t n_blocks, uint8_t* to) {
        Open::open(panel, n_blocks, to);
        for (int64_t b = 0; b < n_blocks; ++b) {
            pair_columns(to + b * Open::bytes + Open::weights, 4096);
            if constexpr (Type::has_min) pair_columns(to + b * Open::bytes + Open::minima, 16 * Open::n);
        }
    }

    // Contribution of minima: `planes` of the two rows, low ones first, `apart` bytes before the high ones.
    [[gnu::always_inline]] static PairI dot_minima(const uint8_t* p, const int8_t* a, const int8_t* b) {
        constexpr int at = Open::n == 8 ? 32 : 0, apart = Open::n;
        PairI low = pair_izero(), high = pair_izero();
        for (int k = 0; k < Open::n / 8; ++k) {
            low = mmla(low, p + 128 * k, both(a + at + 8 * k, b + at + 8 * k));
            high = mmla(high, p + 128 * k, both(a + at + apart + 8 * k, b + at + apart + 8 * k));
        }
        WOOLLY_PAIRS(low.v[i] = vaddq_s32(low.v[i], vshlq_n_s32(high.v[i], 6)));
        return low;
    }

    template <int G>
    static void dot(const uint8_t* open, int64_t n_blocks, const ActivationRow* const* rows, int64_t first,
                    float* const* acc, Ahead& ahead) {
        constexpr int width = 256 / Open::n;
        for (int lane = 0; lane < 16; lane += 8) {
            const uint8_t* p = open;
            for (int64_t b = first; b < first + n_blocks; ++b, p += Open::bytes) {
                fetch(ahead);
                PairI total[G];
                for (int g = 0; g < G; ++g) total[g] = pair_izero();
                for (int k = 0; k < Open::n; ++k) {
                    PairI dots[G];
                    for (int g = 0; g < G; ++g) dots[g] = pair_izero();
                    for (int c = width * k; c < width * (k + 1); c += 8)
                        for (int g = 0; g < G; ++g)
                            dots[g] = mmla(dots[g], p + Open::weights + 16 * c + 8 * lane,
                                           both(rows[2 * g]->q + 256 * b + c, rows[2 * g + 1]->q + 256 * b + c));
                    const PairI factor = twice(reinterpret_cast<const int32_t*>(p + Open::factors + 64 * k) + lane);
                    for (int g = 0; g < G; ++g)
                        WOOLLY_PAIRS(total[g].v[i] = vmlaq_s32(total[g].v[i], factor.v[i], dots[g].v[i]));
                }
                const PairF d = twice(reinterpret_cast<const float*>(p) + lane);
                for (int g = 0; g < G; ++g) {
                    const ActivationRow &one = *rows[2 * g], &two = *rows[2 * g + 1];
                    PairF sum = load_pair(acc[2 * g] + lane, acc[2 * g + 1] + lane);
                    const PairF dot = to_float(total[g]);
                    const float32x4_t scale = alternate(one.scale[b], two.scale[b]);
                    WOOLLY_PAIRS(sum.v[i] = vfmaq_f32(sum.v[i], dot.v[i], vmulq_f32(d.v[i], scale)));
                    if constexpr (Type::has_min) {
                        const PairF lows = to_float(dot_minima(p + Open::minima + 8 * lane, one.planes + kPlanes * b,
                                                               two.planes + kPlanes * b));
                        const PairF least = twice(reinterpret_cast<const float*>(p + Open::low) + lane);
                        const float32x4_t minus = vnegq_f32(scale);
                        WOOLLY_PAIRS(sum.v[i] = vfmaq_f32(sum.v[i], lows.v[i], vmulq_f32(least.v[i], minus)));
                    }
                    store_pair(acc[2 * g] + lane, acc[2 * g + 1] + lane, sum);
                }
            }
        }
    }
};

#undef WOOLLY_PAIRS

template <class Kernel>
void dot_mmla(const uint8_t* open, int64_t n_blocks, const ActivationRow* rows, int64_t first, int n_rows, float* acc,
              Ahead& ahead) {
    for (int m = 0; m < n_rows; m += 4) {
        const ActivationRow* four[4];
        float* sums[4];
        const int n = n_rows - m < 4 ? n_rows - m : 4;
        for (int i = 0; i < 4; ++i) {
            // An odd last row is paired with itself.
            const int at = m + (i < n ? i : n - 1);
            four[i] = rows + at;
            sums[i] = acc + 16 * at;
        }
        if (n > 2) {
            Kernel::template dot<2>(open, n_blocks, four, first, sums, ahead);
        } else {
            Kernel::template dot<1>(open, n_blocks, four, first, sums, ahead);
        }
    }
}

// Floats and blocks of 64 columns keep the neon kernels.
template <class Type>
constexpr void set_product(KernelTable&, WeightType, Floats<Type>) {}
template <class Type>
constexpr void set_product(KernelTable&, WeightType, Blocks64<Type>) {}
template <class Type>
constexpr void set_product(KernelTable& t, WeightType type, Blocks32<Type>) {
    set_wide<Mmla32<Type>>(t, type, dot_mmla<Mmla32<Type>>);
}
template <class Type>
constexpr void set_product(KernelTable& t, WeightType type, Blocks256<Type>) {
    set_wide<Mmla256<Type>>(t, type, dot_mmla<Mmla256<Type>>);
}
constexpr void set_product(KernelTable& t, WeightType type, Blocks256<Q4_K>) {
    set_product(t, type, Blocks256<PairedQ4_K>{});
}

}  // namespace woolly::WOOLLY_TARGET
