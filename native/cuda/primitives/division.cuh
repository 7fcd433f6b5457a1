// Quotients and roots without the branch that compilers put before each for numbers at the ends of the range: four of
// them in a row take 600 clocks with it, on the way to every product. Quotients and roots that are far from these ends
// are rounded once, to nearest even, as those of the language.
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

// The factor that gives n numbers a root mean square of 1; `sum` is that of their squares. 0 if it is too large for
// a number, or nearly.
__device__ __forceinline__ float scale_of_norm(float sum, float n, float eps) {
    const float scale = divide_rn(1.f, sqrt_rn(__fadd_rn(divide_rn(sum, n), eps)));
    return sum > 3e38f ? 0.f : scale;
}
