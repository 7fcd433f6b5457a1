// Two or four rows against float weights. A weight is widened once for all rows: in dot_floats, row by row, widening
// takes as long as the sums. The four sums of 16 lanes for several rows exceed the registers, so that a few lanes are
// processed at a time while the lines of a segment stay in L1.

namespace woolly::WOOLLY_TARGET {

// Factors of activations and sums for shifted halves: 2^112 in all.
constexpr float kBefore = 0x1p100f, kBehind = 0x1p12f;
// A half that was shifted left by 13: its value times 2^-112.
[[gnu::always_inline]] inline float32x4_t shifted_half(int32x4_t wide) {
    return vreinterpretq_f32_s32(vandq_s32(wide, vdupq_n_s32(int32_t(0x8fffe000))));
}

// Four lanes of a column. kScales: the column's activations are scaled, and its sum stays scaled until it is finished
// (neon_f16.h).
struct FewF32 : LoadF32 {
    static constexpr bool kScales = false;
    template <int column>
    [[gnu::always_inline]] static float32x4_t lanes(const uint8_t* p) {
        return vld1q_f32(reinterpret_cast<const float*>(p));
    }
};
struct FewBf16 : LoadBf16 {
    static constexpr bool kScales = false;
    template <int column>
    [[gnu::always_inline]] static float32x4_t lanes(const uint8_t* p) {
        const uint16x8_t w = vcombine_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), vdup_n_u16(0));
        return vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), w));
    }
};
// Two columns of four are converted and two are shifted, which occupies both pipes; columns that cannot be shifted are
// converted.
constexpr int kConverted = 2;
template <bool kShifts>
struct FewF16 : LoadF16 {
    static constexpr bool kScales = kShifts;
    template <int column>
    [[gnu::always_inline]] static float32x4_t lanes(const uint8_t* p) {
        const uint16x4_t w = vld1_u16(reinterpret_cast<const uint16_t*>(p));
        if constexpr (!kShifts || column < kConverted) return vcvt_f32_f16(vreinterpret_f16_u16(w));
        return shifted_half(vshll_n_s16(vreinterpret_s16_u16(w), 13));
    }
};

// tile[16 * m + lane] += dot of row m with columns [0, n), for kLanes lanes of a segment, in the order of sum_segment.
// Prefetches kLanes / 16 of a segment's size from `later`.
template <class Type, int M, int kLanes>
[[gnu::always_inline]] inline void few_segment(const uint8_t* p, const float* const* x, int n, const uint8_t* later,
                                               float* tile) {
    constexpr int kParts = kLanes / 4;
    float32x4_t acc[M][4][kParts];
    each<M>([&]<int m>() __attribute__((always_inline)) {
        each<4>([&]<int i>() __attribute__((always_inline)) {
            for (int part = 0; part < kParts; ++part) acc[m][i][part] = vdupq_n_f32(0.0f);
        });
    });
    int c = 0;
    for (; c + 4 <= n; c += 4, p += 4 * Type::bytes, later += 4 * Type::bytes * kLanes / 16) {
        prefetch(later);
        Four four[M];
        for (int m = 0; m < M; ++m) four[m] = four_of(x[m] + c);
        // All are loaded before the first use: a core whose queues are full of sums does not look further ahead.
        float32x4_t w[4][kParts];
        each<4>([&]<int i>() __attribute__((always_inline)) {
            each<kParts>([&]<int part>() __attribute__((always_inline)) {
                w[i][part] = Type::template lanes<i>(p + i * Type::bytes + part * Type::bytes / 4);
            });
        });
        in_order();
        each<4>([&]<int i>() __attribute__((always_inline)) {
            each<kParts>([&]<int part>() __attribute__((always_inline)) {
                each<M>([&]<int m>() __attribute__((always_inline)) {
                    acc[m][i][part] = vfmaq_laneq_f32(acc[m][i][part], w[i][part], four[m], i);
                });
            });
        });
    }
    if constexpr (Type::kScales)
        each<M>([&]<int m>() __attribute__((always_inline)) {
            for (int i = kConverted; i < 4; ++i)
                for (int part = 0; part < kParts; ++part) acc[m][i][part] = vmulq_n_f32(acc[m][i][part], kBehind);
        });
    for (; c < n; ++c, p += Type::bytes)
        for (int m = 0; m < M; ++m)
            for (int part = 0; part < kParts; ++part)
                acc[m][0][part] =
                    vfmaq_n_f32(acc[m][0][part], Type::template lanes<0>(p + part * Type::bytes / 4), x[m][c]);
    for (int m = 0; m < M; ++m)
        for (int part = 0; part < kParts; ++part) {
            float* to = tile + 16 * m + 4 * part;
            const float32x4_t sum =
                vaddq_f32(vaddq_f32(acc[m][0][part], acc[m][1][part]), vaddq_f32(acc[m][2][part], acc[m][3][part]));
            vst1q_f32(to, vaddq_f32(vld1q_f32(to), sum));
        }
}

template <class Type, int M>
[[gnu::noinline]] void dot_few(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
    constexpr int kLanes = M == 2 ? 8 : 4, kBytes = kFloatColumns * Type::bytes;
    [[maybe_unused]] alignas(16) float scaled[M][kFloatColumns];
    for (int m = 0; m < M; ++m) store(tile + 16 * m, zero());
    for (int64_t c = 0; c < columns; c += kFloatColumns, panel += kBytes) {
        const int n = segment(columns - c);
        const float* x[M];
        for (int m = 0; m < M; ++m) x[m] = rows[m].x + c;
        if constexpr (Type::kScales) {
            const float32x4_t by = {1.0f, 1.0f, kBefore, kBefore};
            for (int m = 0; m < M; ++m) {
                int i = 0;
                for (; i + 4 <= n; i += 4) vst1q_f32(scaled[m] + i, vmulq_f32(vld1q_f32(x[m] + i), by));
                for (; i < n; ++i) scaled[m][i] = x[m][i];
                x[m] = scaled[m];
            }
        }
        for (int lane = 0; lane < 16; lane += kLanes)
            few_segment<Type, M, kLanes>(panel + lane * Type::bytes / 16, x, n, panel + kBytes + lane * kBytes / 16,
                                         tile + lane);
    }
}

// F32 and BF16: rows in fours and twos, then one.
template <class Load, class Type>
struct FewFloats {
    static constexpr bool one_by_one = false;
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        if constexpr (M > 1) return dot_few<Type, M>(panel, columns, rows, tile);
        return dot_floats<Load, 1>(panel, columns, rows, tile);
    }
};

}  // namespace woolly::WOOLLY_TARGET
