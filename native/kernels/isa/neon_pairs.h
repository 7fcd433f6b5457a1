// Nibbles whose rows lie in pairs: a byte holds one column of row r in its low and of row r + 8 in its high nibble, the
// latter minus 8 in two's complement. Both meet the same activation, so with both = 16 * high + low the dot of the high
// one is (dot(both) - dot(low)) / 16: it never has to be taken out of its byte, which saves a quarter of the
// operations.
//
// A group of 32 columns is 4 vectors; in vector i lanes 0 to 7 are columns 8i to 8i + 3, lanes 8 to 15 the next four.

namespace woolly::WOOLLY_TARGET {

// With many rows of activations there are no registers for both dots at once; then the nibbles are taken out after all.
template <int M>
constexpr bool kTakenOut = M > 2;

// Dots of a lane's four columns: lanes 0 to 7 with `four`, lanes 8 to 15 with the next.
template <int four>
[[gnu::always_inline]] inline void add_halves(I32& dot, U8 w, Columns a) {
    for (int i = 0; i < 2; ++i) {
        dot.v[i] = vdotq_laneq_s32(dot.v[i], vreinterpretq_s8_u8(w.v[i]), a, four);
        dot.v[i + 2] = vdotq_laneq_s32(dot.v[i + 2], vreinterpretq_s8_u8(w.v[i + 2]), a, four + 1);
    }
}

// High nibbles without the minus 8.
[[gnu::always_inline]] inline U8 high_nibbles(U8 a) {
    for (int i = 0; i < 4; ++i) a.v[i] = veorq_u8(vshrq_n_u8(a.v[i], 4), vdupq_n_u8(8));
    return a;
}

// Dots of 32 columns. Rows 8 to 15 come minus 8 and 16 times too large, unless their nibbles were taken out.
template <int M>
[[gnu::always_inline]] inline void dot_pairs(const uint8_t* p, const ActivationRow* rows, int64_t column, I32* dot) {
    I32 low[M], high[M];
    Columns a[2][M];
    for (int m = 0; m < M; ++m) {
        low[m] = izero();
        for (int i = 0; i < 2; ++i) a[i][m] = columns(rows[m].q + column + 16 * i);
    }
    if constexpr (!kTakenOut<M>)
        for (int m = 0; m < M; ++m) high[m] = izero();
    each<4>([&]<int i>() __attribute__((always_inline)) {
        const U8 both = load_bytes(p + 64 * i), w = low_bits(both, 15);
        for (int m = 0; m < M; ++m) {
            add_halves<2 * (i % 2)>(low[m], w, a[i / 2][m]);
            if constexpr (!kTakenOut<M>) add_halves<2 * (i % 2)>(high[m], both, a[i / 2][m]);
        }
    });
    for (int m = 0; m < M; ++m)
        for (int i = 0; i < 2; ++i) dot[m].v[i] = vaddq_s32(low[m].v[i], low[m].v[i + 2]);
    if constexpr (kTakenOut<M>) {
        for (int m = 0; m < M; ++m) high[m] = izero();
        each<4>([&]<int i>() __attribute__((always_inline)) {
            const U8 w = high_nibbles(load_bytes(p + 64 * i));
            for (int m = 0; m < M; ++m) add_halves<2 * (i % 2)>(high[m], w, a[i / 2][m]);
        });
    }
    for (int m = 0; m < M; ++m)
        for (int i = 0; i < 2; ++i) {
            dot[m].v[i + 2] = vaddq_s32(high[m].v[i], high[m].v[i + 2]);
            if constexpr (!kTakenOut<M>) dot[m].v[i + 2] = vsubq_s32(dot[m].v[i + 2], dot[m].v[i]);
        }
}

struct PairedQ4_K {
    template <int M>
    static void dot(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, float* tile) {
        F32 acc[M];
        for (int m = 0; m < M; ++m) acc[m] = zero();
        for (int64_t b = 0; b < n_columns / 256; ++b, panel += Q4_K::bytes) {
            U8 scales[2], minima[2];
            Q4_K::scales(panel, scales);
            I32 sum[M];
            for (int m = 0; m < M; ++m) sum[m] = izero();
            each<8>([&]<int g>() __attribute__((always_inline)) {
                for (int line = 9 * g / 2; line < 9 * (g + 1) / 2; ++line) prefetch(panel + 2 * kPrefetch + 64 * line);
                I32 dot[M];
                dot_pairs<M>(panel + Q4_K::quants + 256 * g, rows, 256 * b + 32 * g, dot);
                const I32 scale = byte<g % 4>(scales[g / 4]);
                for (int m = 0; m < M; ++m) sum[m] = iadd(sum[m], imul(scale, dot[m]));
            });
            for (int m = 0; m < M; ++m) {
                if constexpr (!kTakenOut<M>) {
                    const I32 sums = dot_sums<8, false>(scales, rows[m], b);
                    for (int i = 2; i < 4; ++i) sum[m].v[i] = vsraq_n_s32(vshlq_n_s32(sums.v[i], 3), sum[m].v[i], 4);
                }
                acc[m] = fma(to_float(sum[m]), mul(halves(panel), set1(rows[m].scale[b])), acc[m]);
            }
            Q4_K::minima(panel, minima);
            for (int m = 0; m < M; ++m) {
                const I32 low = dot_sums<8, false>(minima, rows[m], b);
                acc[m] = fma(to_float(low), mul(halves(panel + 32), set1(-rows[m].scale[b])), acc[m]);
            }
        }
        for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
    }
};

}  // namespace woolly::WOOLLY_TARGET
