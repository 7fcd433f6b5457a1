// Norms, activations and quantization over one row. Sums run in 16 lanes and end in one fixed order.

namespace woolly::WOOLLY_TARGET {

struct alignas(64) Repeated {
    constexpr explicit Repeated(float x) : lanes{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x} {}
    float lanes[16];
};
inline constexpr Repeated kExpTerms[] = {Repeated(1.0f / 720.0f), Repeated(1.0f / 120.0f), Repeated(1.0f / 24.0f),
                                         Repeated(1.0f / 6.0f),   Repeated(0.5f),          Repeated(1.0f),
                                         Repeated(1.0f)};

// exp of each lane: 2^n * p(r) with |r| at most half of ln 2; relative error below 2e-7. Lanes are clamped to [-87,
// 88], so that nothing overflows; below -87 the result is nearly 0. NaN stays NaN: max returns its second operand for
// unordered inputs.
// For n times 16 numbers up to 88, interleaved step by step: each step depends on the one before.
template <int n>
[[gnu::always_inline]] inline void exp_below(F32 (&x)[n]) {
    F32 biased[n], p[n];
    for (int i = 0; i < n; ++i) {
        x[i] = at_least(x[i], -87.0f);
        // Floats from 3 * 2^22 on have no fraction, so their lowest bits are the nearest integer. Two additions are
        // faster than two conversions on arm64, and as fast elsewhere.
        biased[i] = add(mul(x[i], set1(1.44269504f)), set1(12582912.0f));
        p[i] = sub(biased[i], set1(12582912.0f));
        x[i] = fma(p[i], set1(-0.693145752f), x[i]);  // ln 2 in two parts
        x[i] = fma(p[i], set1(-1.42860677e-6f), x[i]);
    }
    for (int i = 0; i < n; ++i) p[i] = fma_to(set1(1.0f / 5040.0f), x[i], kExpTerms[0].lanes);
    each<6>([&]<int k>() __attribute__((always_inline)) {
        for (int i = 0; i < n; ++i) p[i] = fma_to(p[i], x[i], kExpTerms[k + 1].lanes);
    });
    for (int i = 0; i < n; ++i) x[i] = mul(p[i], power_of_two(as_ints(biased[i])));
}
[[gnu::always_inline]] inline F32 exp_below(F32 x) {
    F32 one[] = {x};
    exp_below(one);
    return one[0];
}
[[gnu::always_inline]] inline F32 exp(F32 x) { return exp_below(sub(zero(), max(set1(-88.0f), sub(zero(), x)))); }

// e^x with the rounding of exp_of in cpu/ops/functions.h: each product and each sum is rounded.
[[gnu::always_inline]] inline F32 exp_by_steps(F32 x) {
    x = at_least(sub(zero(), max(set1(-88.0f), sub(zero(), x))), -87.0f);
    const F32 biased = add(mul(x, set1(1.44269504f)), set1(12582912.0f)), whole = sub(biased, set1(12582912.0f));
    x = sub(sub(x, mul(whole, set1(0.693145752f))), mul(whole, set1(1.42860677e-6f)));
    F32 p = set1(1.0f / 5040.0f);
    each<7>([&]<int k>() __attribute__((always_inline)) { p = add(mul(p, x), load(kExpTerms[k].lanes)); });
    return mul(p, power_of_two(as_ints(biased)));
}

// Last n < 16 values of a row, padded with zeros.
inline F32 load_some(const float* p, int64_t n) {
    float padded[16] = {};
    std::memcpy(padded, p, size_t(n) * sizeof(float));
    return load(padded);
}
inline void store_some(float* p, F32 a, int64_t n) {
    float padded[16];
    store(padded, a);
    std::memcpy(p, padded, size_t(n) * sizeof(float));
}

inline void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y) {
    F32 squares = zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const F32 a = load(x + i);
        squares = fma(a, a, squares);
    }
    if (i < n) {
        const F32 a = load_some(x + i, n - i);
        squares = fma(a, a, squares);
    }
    const float scale = 1.0f / __builtin_sqrtf(sum_lanes(squares) / float(n) + eps);
    for (i = 0; i + 16 <= n; i += 16) store(y + i, mul(mul(load(x + i), set1(scale)), load(weight + i)));
    if (i < n) store_some(y + i, mul(mul(load_some(x + i, n - i), set1(scale)), load_some(weight + i, n - i)), n - i);
}

[[gnu::always_inline]] inline F32 silu_times(F32 gate, F32 up) {
    return mul(div(gate, add(set1(1.0f), exp(sub(zero(), gate)))), up);
}

inline void swiglu(const float* gate, const float* up, int64_t n, float* y) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) store(y + i, silu_times(load(gate + i), load(up + i)));
    if (i < n) store_some(y + i, silu_times(load_some(gate + i, n - i), load_some(up + i, n - i)), n - i);
}

// Row by row, for contiguous writes and several rows in flight per core.
inline void end(const Ends& e) {
    for (int64_t row = 0; row < e.n_rows; ++row)
        for (int64_t p = 0; p < e.n_panels; ++p) {
            const int64_t at = row * e.width + 16 * p, from = p * e.step + 16 * row;
            F32 y = load(e.sums + from);
            if (e.gates != nullptr) {
                store(e.to + at, silu_times(load(e.gates + from), y));
                continue;
            }
            if (e.bias != nullptr) y = add(y, load(e.bias + 16 * p));
            y = mul(y, set1(e.scale));
            store(e.to + at, e.residual == nullptr ? y : add(load(e.residual + at), y));
        }
}

// x (1 + erf(x / sqrt 2)) / 2. Abramowitz and Stegun (7.1.26) give 1 - erf of a magnitude right to 1.5e-7.
[[gnu::always_inline]] inline F32 gelu_by_erf(F32 x) {
    const F32 size = abs(x), a = mul(size, set1(0.70710678f));
    const F32 t = div(set1(1.0f), fma(a, set1(0.3275911f), set1(1.0f)));
    F32 p = set1(1.061405429f);
    p = fma(p, t, set1(-1.453152027f));
    p = fma(p, t, set1(1.421413741f));
    p = fma(p, t, set1(-0.284496736f));
    p = fma(p, t, set1(0.254829592f));
    const F32 tail = mul(mul(p, t), exp(sub(zero(), mul(a, a))));
    return sub(max(zero(), x), mul(mul(size, set1(0.5f)), tail));
}

// y = f(x), times `up` if it is not null.
template <class F>
[[gnu::always_inline]] inline void activated(const float* x, const float* up, int64_t n, float* y, const F& f) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const F32 a = f(load(x + i));
        store(y + i, up == nullptr ? a : mul(a, load(up + i)));
    }
    if (i == n) return;
    const F32 a = f(load_some(x + i, n - i));
    store_some(y + i, up == nullptr ? a : mul(a, load_some(up + i, n - i)), n - i);
}

inline void gelu_erf(const float* x, const float* up, int64_t n, float* y) {
    activated(x, up, n, y, [](F32 a) __attribute__((always_inline)) { return gelu_by_erf(a); });
}

// x / (1 + e^u).
[[gnu::always_inline]] inline F32 by_sigmoid(F32 x, F32 u) { return div(x, add(set1(1.0f), exp_by_steps(u))); }

// GELU in the tanh form: (1 + tanh(u)) / 2 is the sigmoid of 2 u.
inline void gelu(const float* x, const float* up, int64_t n, float* y) {
    activated(x, up, n, y, [](F32 a) __attribute__((always_inline)) {
        const F32 cube = mul(mul(mul(a, set1(0.044715f)), a), a);
        return by_sigmoid(a, mul(set1(-1.59576912f), add(a, cube)));
    });
}

// GELU in the sigmoid form, used by CLIP.
inline void gelu_quick(const float* x, const float* up, int64_t n, float* y) {
    activated(x, up, n, y, [](F32 a) __attribute__((always_inline)) { return by_sigmoid(a, mul(set1(-1.702f), a)); });
}

// One scale per `Block` columns, chosen so that the largest magnitude becomes 127; sums of every `Sum` columns. Byte is
// int8_t: a name that depends on it may be one that the level does not have.
template <int Block, int Sum, class Byte>
inline void quantize(const float* x, int64_t columns, Byte* q, float* scale, int32_t* sums) {
    if constexpr (Block == 32 && Sum == 32 && requires { quantize_16(x, q, scale, sums); }) {
        const int64_t n = columns / 32, end = n / 16 * 16;
        int64_t done = 0;
        while (done < end && quantize_16(x + 32 * done, q + 32 * done, scale + done, sums + done)) done += 16;
        // The last vector overlaps the one before; overlapping values get the same bits.
        if (done == n || (end > 0 && done == end &&
                          quantize_16(x + 32 * (n - 16), q + 32 * (n - 16), scale + n - 16, sums + n - 16)))
            return;
        x += 32 * done, q += 32 * done, scale += done, sums += done, columns -= 32 * done;
    }
    for (int64_t b = 0; b < columns / Block; ++b, x += Block, q += Block) {
        F32 largest = zero(), broken = zero();  // broken: NaN if x is infinite or NaN, else 0
        for (int i = 0; i < Block; i += 16) {
            const F32 a = load(x + i);
            largest = max(largest, abs(a));
            broken = fma(a, zero(), broken);
        }
        const float magnitude = max_lanes(largest);
        scale[b] = magnitude / 127.0f + sum_lanes(broken);
        // Values that cannot be divided by their scale become zeros: numbers near 0, whose inverse scale would
        // overflow, and blocks that are not finite, whose NaN scale makes every result NaN.
        if (!(scale[b] > 0x1p-100f)) {
            std::memset(q, 0, Block);
            for (int s = 0; s < Block; s += Sum) *sums++ = 0;
            continue;
        }
        const F32 inverse = set1(127.0f / magnitude);
        if constexpr (Block == 256 && Sum == 16 && requires { sums_of_16(q, sums); }) {
            for (int i = 0; i < Block; i += 16) store_s8(q + i, round_to_int(mul(load(x + i), inverse)));
            sums_of_16(q, sums);
            sums += Block / Sum;
            continue;
        }
        for (int s = 0; s < Block; s += Sum) {
            I32 sum = izero();
            for (int i = s; i < s + Sum; i += 16) {
                const I32 rounded = round_to_int(mul(load(x + i), inverse));
                store_s8(q + i, rounded);
                sum = iadd(sum, rounded);
            }
            *sums++ = isum_lanes(sum);
        }
    }
}

}  // namespace woolly::WOOLLY_TARGET
