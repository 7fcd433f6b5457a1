// One row against F16 weights. Conversion to f32 occupies one of the two pipes for two cycles and would be the
// bottleneck. So half of the weights are widened with shifts on the other pipe: the bits of a half, moved to those of a
// float, are its value times 2^-112. Not valid for infinities and NaN; panels with any are opened instead.
//
// Scaling by powers of two is exact as long as all values stay normal floats: activations from 2^-60 to 2^28 make
// products that are multiples of 2^-107, still floats when scaled by 2^-12, and below 2^52. Rows with any other
// activation use the plain conversion.

namespace woolly::WOOLLY_TARGET {

struct Halves {
    static constexpr bool one_by_one = false;
    // True if rows 4i to 4i + 3 of a column are converted; the others are shifted. Half of each keeps both pipes busy.
    static constexpr bool converted(int i) { return i % 2 == 0; }

    template <int i>
    [[gnu::always_inline]] static float32x4_t widened(const uint16x8_t* w) {
        const int16x8_t h = vreinterpretq_s16_u16(w[i / 2]);
        if constexpr (converted(i)) {
            const float16x8_t f = vreinterpretq_f16_s16(h);
            return i % 2 == 0 ? vcvt_f32_f16(vget_low_f16(f)) : vcvt_high_f32_f16(f);
        } else {
            return shifted_half(i % 2 == 0 ? vshll_n_s16(vget_low_s16(h), 13) : vshll_high_n_s16(h, 13));
        }
    }

    [[gnu::always_inline]] static F32 segment_sum(const uint8_t* p, const float* x, int n) {
        F32 acc[4] = {zero(), zero(), zero(), zero()};
        int k = 0;
        for (; k + 4 <= n; k += 4, p += 128) {
            prefetch(p + 4 * kPrefetch);
            prefetch(p + 4 * kPrefetch + 64);
            const float32x4_t four = vld1q_f32(x + k), scaled = vmulq_n_f32(four, kBefore);
            // Two columns are widened before the first use: a core whose queues are full of sums does not look further
            // ahead.
            each<2>([&]<int pair>() __attribute__((always_inline)) {
                float32x4_t values[2][4];
                each<2>([&]<int k2>() __attribute__((always_inline)) {
                    constexpr int c = 2 * pair + k2;
                    const uint16_t* at = reinterpret_cast<const uint16_t*>(p + 32 * c);
                    const uint16x8_t w[2] = {vld1q_u16(at), vld1q_u16(at + 8)};
                    each<4>([&]<int i>() __attribute__((always_inline)) { values[k2][i] = widened<i>(w); });
                });
                in_order();
                each<2>([&]<int k2>() __attribute__((always_inline)) {
                    constexpr int c = 2 * pair + k2;
                    each<4>([&]<int i>() __attribute__((always_inline)) {
                        acc[c].v[i] = vfmaq_laneq_f32(acc[c].v[i], values[k2][i], converted(i) ? four : scaled, c);
                    });
                });
            });
        }
        each<4>([&]<int c>() __attribute__((always_inline)) {
            each<4>([&]<int i>() __attribute__((always_inline)) {
                if constexpr (!converted(i)) acc[c].v[i] = vmulq_n_f32(acc[c].v[i], kBehind);
            });
        });
        for (; k < n; ++k, p += 32) acc[0] = fma(LoadF16::at(p), set1(x[k]), acc[0]);
        return add(add(acc[0], acc[1]), add(acc[2], acc[3]));
    }

    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        if constexpr (M > 1) {
            bool ordinary = true;
            for (int m = 0; m < M; ++m) ordinary = ordinary && rows[m].ordinary;
            return (ordinary ? dot_few<FewF16<true>, M> : dot_few<FewF16<false>, M>)(panel, columns, rows, tile);
        }
        for (int m = 0; m < M; ++m) {
            if (!rows[m].ordinary) {
                dot_floats<LoadF16, 1>(panel, columns, rows + m, tile + 16 * m);
                continue;
            }
            F32 sum = zero();
            for (int64_t c = 0; c < columns; c += kFloatColumns)
                sum = add(sum, segment_sum(panel + c * 32, rows[m].x + c, segment(columns - c)));
            store(tile + 16 * m, sum);
        }
    }
};

constexpr void set_halves(KernelTable& t, WeightType type, Floats<LoadF16>) {
    t.dot[int(type)] = dot_any<Halves>;
    t.f16_must_be_finite = true;
}
constexpr void set_halves(KernelTable& t, WeightType type, Floats<LoadBf16>) {
    t.dot[int(type)] = dot_any<FewFloats<LoadBf16, FewBf16>>;
}
constexpr void set_halves(KernelTable& t, WeightType type, Floats<LoadF32>) {
    t.dot[int(type)] = dot_any<FewFloats<LoadF32, FewF32>>;
}
template <class Other>
constexpr void set_halves(KernelTable&, WeightType, Other) {}

}  // namespace woolly::WOOLLY_TARGET
