// Branch-free division and square root. The compiler's versions branch for operands near the ends of the range: four in
// a row take 600 clocks before every product. Away from these ends the results are correctly rounded, as IEEE requires.
#pragma once

#include "primitives/common.cuh"

#ifdef WOOLLY_EMULATED
inline float divide_rn(float a, float b) { return a / b; }
inline float sqrt_rn(float x) { return std::sqrt(x); }
#else
__device__ __forceinline__ float divide_rn(float a, float b) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(b));
    y = __fmaf_rn(y, __fmaf_rn(-b, y, 1.f), y);
    const float q = __fmul_rn(a, y), near = __fmaf_rn(y, __fmaf_rn(-b, q, a), q);
    return __fmaf_rn(y, __fmaf_rn(-b, near, a), near);
}
__device__ __forceinline__ float sqrt_rn(float x) {
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    const float s = __fmul_rn(x, y);
    return __fmaf_rn(__fmaf_rn(-s, s, x), __fmul_rn(0.5f, y), s);
}
#endif

// RMSNorm factor: 1 / sqrt(sum / n + eps), where `sum` is the sum of squares; 0 if the sum overflows.
__device__ __forceinline__ float scale_of_norm(float sum, float n, float eps) {
    const float scale = divide_rn(1.f, sqrt_rn(__fadd_rn(divide_rn(sum, n), eps)));
    return sum > 3e38f ? 0.f : scale;
}
