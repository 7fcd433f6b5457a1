// Scalar functions, implemented here because C libraries differ between systems; GPUs compute them, too
// (native/gpu/primitives/arithmetic.slang). Products and sums are rounded one by one. NaN stays NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace woolly {

constexpr float kLn2High = 0.693145752f, kLn2Low = 1.42860677e-6f;  // ln 2 in two parts

// x = whole ln 2 + rest, |rest| up to half of ln 2. `bits` are those of 2^whole without the exponent's bias.
struct Reduced {
    float whole, rest;
    uint32_t bits;

    explicit Reduced(float x) {
        constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the lowest bits
        const float shifted = x * 1.44269504f + round;
        whole = shifted - round;
        rest = x - whole * kLn2High;
        rest = rest - whole * kLn2Low;
        bits = std::bit_cast<uint32_t>(shifted) << 23;
    }
    float power() const { return std::bit_cast<float>(bits + 0x3f800000u); }
};

inline float within_exp(float x) {
    x = x < -87.0f ? -87.0f : x;
    return x > 88.0f ? 88.0f : x;
}

// e^x, as in the kernels (cpu/kernels/generic/vectors.h), without a branch, so that compilers vectorize loops over it.
// Clamped: below -87 the result is nearly 0, above 88 that of 88.
inline float exp_of(float x) {
    const Reduced part(within_exp(x));
    const float r = part.rest;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * part.power();
}

// e^x - 1, accurate to a few units in the last place, near 0 as well.
inline float expm1_of(float x) {
    const Reduced part(within_exp(x));
    const float r = part.rest, power = part.power();
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r * r + r;
    return p * power + (power - 1.0f);
}

// Natural logarithm of a normal number, not near 0 or infinity: 2 artanh(s), a series in s^2.
inline float log_of(float x) {
    constexpr uint32_t least = 0x3f3504f3;  // bits of sqrt(1/2)
    const uint32_t bits = std::bit_cast<uint32_t>(x) + (0x3f800000u - least);
    const float power = float(int32_t(bits >> 23) - 127);
    const float f = std::bit_cast<float>((bits & 0x7fffffu) + least) - 1.0f;
    const float s = f / (2.0f + f), z = s * s;
    float p = 1.0f / 9.0f;
    p = p * z + 1.0f / 7.0f;
    p = p * z + 0.2f;
    p = p * z + 1.0f / 3.0f;
    p = p * z * s + s;
    return power * kLn2High + (2.0f * p + power * kLn2Low);
}

// log(1 + x) for x >= 0, corrected for the rounding of the sum.
inline float log1p_of(float x) {
    const float sum = 1.0f + x, lost = x < 1.0f ? x - (sum - 1.0f) : 1.0f - (sum - x);
    return log_of(sum) + lost / sum;
}

// 0 where e^-x underflows.
inline float sigmoid_of(float x) { return x < -88.0f ? 0.0f : 1.0f / (1.0f + exp_of(-x)); }

inline float tanh_of(float x) {
    x = x < -10.0f ? -10.0f : x;
    x = x > 10.0f ? 10.0f : x;
    const float e = expm1_of(2.0f * x);
    return e / (e + 2.0f);
}

// softplus: log(1 + e^x); beyond 20 it is x.
inline float softplus_of(float x) { return x > 20.0f ? x : x == x ? log1p_of(exp_of(x)) : x; }

// Sum of f(0) to f(n - 1), in 16 lanes that are added in a fixed order, as in the kernels.
template <class F>
inline float sum_of(int64_t n, const F& f) {
    float lanes[16] = {};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int lane = 0; lane < 16; ++lane) lanes[lane] += f(i + lane);
    for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += f(i);
    for (int half = 8; half >= 1; half /= 2)
        for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

// Mean of n numbers in two parts: the second corrects the error of the first. Centering a row far from 0 loses no
// precision.
struct Mean {
    float first, second;

    Mean(const float* x, int64_t n) {
        first = sum_of(n, [&](int64_t i) { return x[i]; }) / float(n);
        second = sum_of(n, [&](int64_t i) { return x[i] - first; }) / float(n);
    }
    float off(float x) const { return (x - first) - second; }
    // Mean square of the centered x.
    float spread(const float* x, int64_t n) const {
        return sum_of(n, [&](int64_t i) { return off(x[i]) * off(x[i]); }) / float(n);
    }
};

}  // namespace woolly
