// Nibbles in row pairs: a byte holds one column of row r in its low nibble and of row r + 8 in its high nibble, the
// latter minus 8 in two's complement. Both use the same activation, so with both = 16 * high + low the dot of the high
// one is (dot(both) - dot(low)) / 16: it is never extracted, which saves a quarter of the operations.
//
// A group of 32 columns is 4 vectors; in vector i lanes 0 to 7 are columns 8i to 8i + 3, lanes 8 to 15 the next four.

namespace woolly::WOOLLY_TARGET {

// Dots of 32 columns with one row of activations. Rows 8 to 15 are minus 8, and 16 times too large.
[[gnu::always_inline]] inline I32 dot_pairs(const uint8_t* p, const int8_t* q) {
    I32 low = izero(), both = izero();
    const Columns a[2] = {columns(q), columns(q + 16)};
    each<4>([&]<int i>() __attribute__((always_inline)) {
        constexpr int four = 2 * (i % 2);
        const U8 v = load_bytes(p + 64 * i), w = low_bits(v, 15);
        for (int j = 0; j < 2; ++j) {
            low.v[j] = vdotq_laneq_s32(low.v[j], vreinterpretq_s8_u8(w.v[j]), a[i / 2], four);
            both.v[j] = vdotq_laneq_s32(both.v[j], vreinterpretq_s8_u8(v.v[j]), a[i / 2], four);
            low.v[j + 2] = vdotq_laneq_s32(low.v[j + 2], vreinterpretq_s8_u8(w.v[j + 2]), a[i / 2], four + 1);
            both.v[j + 2] = vdotq_laneq_s32(both.v[j + 2], vreinterpretq_s8_u8(v.v[j + 2]), a[i / 2], four + 1);
        }
    });
    I32 dot;
    for (int j = 0; j < 2; ++j) {
        dot.v[j] = vaddq_s32(low.v[j], low.v[j + 2]);
        dot.v[j + 2] = vsubq_s32(vaddq_s32(both.v[j], both.v[j + 2]), dot.v[j]);
    }
    return dot;
}

// With several rows of activations, nibbles are extracted for eight rows of weights at a time, because more sums would
// not fit in registers. `half` 1 selects the high nibbles, which are minus 8.
template <int M, int half>
[[gnu::always_inline]] inline void sum_half(const uint8_t* p, const ActivationRow* rows, int64_t b, const U8* scales,
                                            I32* sum) {
    int32x4_t total[M][2];
    for (int m = 0; m < M; ++m) total[m][0] = total[m][1] = vdupq_n_s32(0);
    each<8>([&]<int g>() __attribute__((always_inline)) {
        if constexpr (half == 0)
            for (int line = 9 * g / 2; line < 9 * (g + 1) / 2; ++line) prefetch(p + 2 * kPrefetch + 64 * line);
        int32x4_t dot[M][2];
        for (int m = 0; m < M; ++m)
            for (int j = 0; j < 2; ++j) asm volatile("movi %0.2d, #0" : "=w"(dot[m][j]));
        each<4>([&]<int i>() __attribute__((always_inline)) {
            constexpr int four = 2 * (i % 2);
            const U8 v = load_bytes(p + 256 * g + 64 * i);
            int8x16_t w[4];
            for (int j = 0; j < 4; ++j)
                w[j] = half == 0 ? vreinterpretq_s8_u8(vandq_u8(v.v[j], vdupq_n_u8(15)))
                                 : vshrq_n_s8(vreinterpretq_s8_u8(v.v[j]), 4);
            for (int m = 0; m < M; ++m) {
                const Columns a = columns(rows[m].q + 256 * b + 32 * g + 16 * (i / 2));
                for (int j = 0; j < 2; ++j) {
                    dot[m][j] = vdotq_laneq_s32(dot[m][j], w[j], a, four);
                    dot[m][j] = vdotq_laneq_s32(dot[m][j], w[j + 2], a, four + 1);
                }
            }
        });
        const I32 scale = byte<g % 4>(scales[g / 4]);
        for (int m = 0; m < M; ++m)
            for (int j = 0; j < 2; ++j) total[m][j] = vmlaq_s32(total[m][j], scale.v[2 * half + j], dot[m][j]);
    });
    for (int m = 0; m < M; ++m)
        for (int j = 0; j < 2; ++j) sum[m].v[2 * half + j] = total[m][j];
}

struct PairedQ4_K : Q4_K {
    // Same order as other types: vector v is columns 4v to 4v + 3 of 16 rows, none minus 8.
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, int first, const Use& use) {
        each<4>([&]<int i>() __attribute__((always_inline)) {
            const U8 v = load_bytes(p + 256 * (first + u) + 64 * i), low = low_bits(v, 15);
            U8 high;
            for (int j = 0; j < 4; ++j) high.v[j] = veorq_u8(vshrq_n_u8(v.v[j], 4), vdupq_n_u8(8));
            use.template operator()<2 * i>(U8{{low.v[0], low.v[1], high.v[0], high.v[1]}});
            use.template operator()<2 * i + 1>(U8{{low.v[2], low.v[3], high.v[2], high.v[3]}});
        });
    }
    template <int M>
    static void dot(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, float* tile) {
        F32 acc[M];
        for (int m = 0; m < M; ++m) acc[m] = zero();
        for (int64_t b = 0; b < n_columns / 256; ++b, panel += Q4_K::bytes) {
            U8 scales[2], minima[2];
            Q4_K::scales(panel, scales);
            const uint8_t* quants = panel + Q4_K::quants;
            I32 sum[M];
            if constexpr (M == 1) {
                sum[0] = izero();
                each<8>([&]<int g>() __attribute__((always_inline)) {
                    for (int line = 9 * g / 2; line < 9 * (g + 1) / 2; ++line)
                        prefetch(quants + 2 * kPrefetch + 64 * line);
                    const I32 dot = dot_pairs(quants + 256 * g, rows[0].q + 256 * b + 32 * g);
                    sum[0] = iadd(sum[0], imul(byte<g % 4>(scales[g / 4]), dot));
                });
                for (int i = 2; i < 4; ++i) sum[0].v[i] = vshrq_n_s32(sum[0].v[i], 4);
            } else {
                sum_half<M, 0>(quants, rows, b, scales, sum);
                sum_half<M, 1>(quants, rows, b, scales, sum);
            }
            for (int m = 0; m < M; ++m) {
                const I32 sums = dot_sums<8, false>(scales, rows[m].planes + kPlanes * b);
                for (int i = 2; i < 4; ++i) sum[m].v[i] = vaddq_s32(sum[m].v[i], vshlq_n_s32(sums.v[i], 3));
                acc[m] = fma(to_float(sum[m]), mul(halves(panel), set1(rows[m].scale[b])), acc[m]);
            }
            Q4_K::minima(panel, minima);
            for (int m = 0; m < M; ++m) {
                const I32 low = dot_sums<8, false>(minima, rows[m].planes + kPlanes * b);
                acc[m] = fma(to_float(low), mul(halves(panel + 32), set1(-rows[m].scale[b])), acc[m]);
            }
        }
        for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
    }
};

constexpr void set_pairs(KernelTable& t, WeightType type, Blocks256<Q4_K>) {
    using Open = Open256<PairedQ4_K>;
    t.dot[int(type)] = dot_any<PairedQ4_K>;
    set_wide<Open>(t, type, dot_wide<Open>);
    t.q4_k_in_row_pairs = true;
}
template <class Other>
constexpr void set_pairs(KernelTable&, WeightType, Other) {}

}  // namespace woolly::WOOLLY_TARGET
