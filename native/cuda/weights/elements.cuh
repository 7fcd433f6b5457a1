// Decoders of single weights: value(block, column, points) equals woolly/quant/decode.py bit for bit. Block<T> names
// its decoder as `Element`, or has a `value` of its own. Products and sums are rounded separately, never fused.
#pragma once

#include "weights/bits.cuh"

template <class T>
struct Block;

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
// Twice the E2M1 value: an integer.
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
    __device__ static float value(const u8* b, int, const u8*) { return Block<T>::number(b); }
};
// (quant - ZERO) * scale
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
// Scale factor per 16 columns (stored plus 128) times a unit per block.
template <class T, int ZERO>
struct Grouped : Sized<T> {
    __device__ static float value(const u8* b, int c, const u8* points) {
        const int factor = int(Block<T>::factor(b, c / 16)) - 128;
        return times(Block<T>::unit(b), factor, int(Block<T>::quant(b, c, points)) - ZERO);
    }
};
// Q4_K and Q5_K: 6-bit scales and minima.
template <class T>
struct Nested : Sized<T> {
    __device__ static float value(const u8* b, int c, const u8* points) {
        const float scale = __fmul_rn(half_at(b), float(scale_k4(b + 4, c / 32)));
        const float minimum = __fmul_rn(half_at(b + 2), float(minimum_k4(b + 4, c / 32)));
        return minus(scale, Block<T>::quant(b, c, points), minimum);
    }
};

}  // namespace elements
