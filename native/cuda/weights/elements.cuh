// Elements of weights as they lie in a file: `value(block, column, points)` is what woolly/quant/decode.py gives, to
// the bit. blocks.cuh says which bits are whose. Each product and sum rounds by itself, so none may be fused. `points`
// are the type's codebook, if it has one.
#pragma once

#include "weights/blocks_rare.cuh"

namespace elements {

// unit * factor * q
__device__ inline float times(float unit, int factor, int q) {
    return __fmul_rn(float(q), __fmul_rn(unit, float(factor)));
}
// q * scale - minimum
__device__ inline float minus(float scale, u32 q, float minimum) {
    return __fsub_rn(__fmul_rn(float(q), scale), minimum);
}

__device__ inline int iq4(u32 q) {
    const signed char values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return values[q];
}
// Twice the values of E2M1, so that they are whole.
__device__ inline int e2m1(u32 q) {
    const int size = q & 7, value = size < 5 ? size : size == 5 ? 6 : size == 6 ? 8 : 12;
    return q & 8 ? -value : value;
}

template <class T>
struct Sized {
    static constexpr int columns = Block<T>::columns, bytes = Block<T>::bytes;
};
struct F32 {
    static constexpr int columns = 1, bytes = 4;
    __device__ static float value(const u8* b, int, const u8*) { return float_of(word_at(b)); }
};
template <class T>
struct Number : Sized<T> {
    __device__ static float value(const u8* b, int, const u8*) { return Block<T>::value(b); }
};
// The quant less ZERO, times the scale.
template <class T, int ZERO>
struct Scaled : Sized<T> {
    __device__ static float value(const u8* b, int c, const u8* points) {
        return __fmul_rn(float(int(Block<T>::quant(b, c, points)) - ZERO), Block<T>::scale(b, c));
    }
};
template <class T>
struct Shifted : Sized<T> {
    __device__ static float value(const u8* b, int c, const u8* points) {
        const float product = __fmul_rn(float(Block<T>::quant(b, c, points)), Block<T>::scale(b, c));
        return __fadd_rn(product, Block<T>::minimum(b, c));
    }
};
template <class T>
struct NonLinear : Sized<T> {
    __device__ static float value(const u8* b, int c, const u8* points) {
        return __fmul_rn(float(iq4(Block<T>::quant(b, c, points))), Block<T>::scale(b, c));
    }
};
// With a factor of 16 columns, which tiles keep plus 128, and a unit of all.
template <class T, int ZERO>
struct Grouped : Sized<T> {
    __device__ static float value(const u8* b, int c, const u8* points) {
        const int factor = int(Block<T>::factor(b, c / 16)) - 128;
        return times(Block<T>::unit(b), factor, int(Block<T>::quant(b, c, points)) - ZERO);
    }
};
// Q4_K and Q5_K.
template <class T>
struct Nested : Sized<T> {
    __device__ static float value(const u8* b, int c, const u8* points) {
        const float scale = __fmul_rn(half_at(b), float(scale_k4(b + 4, c / 32)));
        const float minimum = __fmul_rn(half_at(b + 2), float(minimum_k4(b + 4, c / 32)));
        return minus(scale, Block<T>::quant(b, c, points), minimum);
    }
};

typedef Number<::F16> F16;
typedef Number<::BF16> BF16;
typedef Scaled<::Q4_0, 8> Q4_0;
typedef Scaled<::Q5_0, 16> Q5_0;
typedef Scaled<::Q8_0, 128> Q8_0;
typedef Shifted<::Q4_1> Q4_1;
typedef Shifted<::Q5_1> Q5_1;
typedef NonLinear<::IQ4_NL> IQ4_NL;
typedef NonLinear<::IQ4_XS> IQ4_XS;
typedef Grouped<::Q3_K, 4> Q3_K;
typedef Grouped<::Q6_K, 32> Q6_K;
typedef Nested<::Q4_K> Q4_K;
typedef Nested<::Q5_K> Q5_K;
typedef Scaled<::IQ2_XXS, 128> IQ2_XXS;
typedef Scaled<::IQ2_XS, 128> IQ2_XS;
typedef Scaled<::IQ2_S, 128> IQ2_S;
typedef Scaled<::IQ3_XXS, 128> IQ3_XXS;
typedef Scaled<::IQ3_S, 128> IQ3_S;
typedef Scaled<::IQ1_S, 128> IQ1_S;
typedef Scaled<::IQ1_M, 128> IQ1_M;
// 32 times a quant of -1, 0 or 1, with a 32nd of the scale.
typedef Scaled<::TQ1_0, 128> TQ1_0;
typedef Scaled<::TQ2_0, 128> TQ2_0;

struct Q2_K : Sized<::Q2_K> {
    __device__ static float value(const u8* b, int c, const u8* points) {
        const u32 factor = Block<::Q2_K>::factor(b, c / 16);
        const float minimum = __fmul_rn(half_at(b + 82), float(factor >> 4));
        return minus(__fmul_rn(half_at(b + 80), float(factor & 15)), Block<::Q2_K>::quant(b, c, points), minimum);
    }
};
struct MXFP4 : Sized<::MXFP4> {
    __device__ static float value(const u8* b, int c, const u8* points) {
        // Half of 2^(e - 127); exponents 0 and 1 give subnormal numbers.
        const u32 e = b[0], scale = e < 2 ? 0x00200000u << e : (e - 1) << 23;
        return __fmul_rn(float_of(scale), float(e2m1(Block<::MXFP4>::quant(b, c, points))));
    }
};
struct NVFP4 : Sized<::NVFP4> {
    __device__ static float value(const u8* b, int c, const u8* points) {
        // Half of an E4M3 number, of which the top bit has no meaning; the code 127 means 0.
        const int code = b[c / 16], exponent = code >> 3 & 15, mantissa = code & 7;
        const int fraction = exponent == 0 ? mantissa : mantissa + 8, power = (exponent == 0 ? 1 : exponent) - 11;
        const float scale = code == 127 ? 0.0f : float(fraction) * power_of_two(power);
        return __fmul_rn(scale, float(e2m1(Block<::NVFP4>::quant(b, c, points))));
    }
};

}  // namespace elements
