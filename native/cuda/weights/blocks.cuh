// GGUF blocks of the weight types; woolly/quant/decode.py is the oracle. Members of Block<T>:
// - Kind: tile type that T is packed as
// - quant(b, k, points): bits of column k as stored in tiles (points: codebook of the type, if any)
// - scale(b, k), minimum(b, k): multiplier and offset, f32
// - limit(b): least exponent of the row factor with which all weights of the block fit f16
// - Element: decoder of a single weight (elements.cuh)
//
// To add a type, add a Block and a row in the list at the end. A Kind other than the type itself or Wide needs a row in
// _ALIKE of woolly/runtime/cuda/weight_tiles.py.
#pragma once

#include "weights/elements.cuh"

struct BF16;
struct IQ4_XS;

template <>
struct Block<F16> {
    typedef elements::Number<F16> Element;
    typedef F16 Kind;
    static constexpr int bytes = 2, columns = 1;
    __device__ static float number(const u8* b) { return half_at(b); }
    __device__ static int limit(const u8*) { return NO_LIMIT; }
};
template <>
struct Block<BF16> {
    typedef elements::Number<BF16> Element;
    typedef F16 Kind;
    static constexpr int bytes = 2, columns = 1;
    __device__ static float number(const u8* b) { return float_of(half_word(b) << 16); }
    // Scales the row's largest weight below 2^15.
    __device__ static int limit(const u8* b) {
        const float x = number(b);
        return (bits_of(x) & 0x7f800000u) == 0x7f800000u ? NO_LIMIT : limit_of(x, -15);
    }
};

// f16 scale of 32 columns at the start of the block.
template <class T, int BYTES>
struct Scaled32 {
    typedef T Kind;
    static constexpr int bytes = BYTES, columns = 32;
    __device__ static float scale(const u8* b, int) { return half_at(b); }
    __device__ static int limit(const u8* b) { return limit_of(half_at(b), 8); }
};
// And an f16 offset after it.
template <class T, int BYTES>
struct Shifted32 : Scaled32<T, BYTES> {
    __device__ static float minimum(const u8* b, int) { return half_at(b + 2); }
    __device__ static int limit(const u8* b) { return larger(limit_of(half_at(b), 8), limit_of(half_at(b + 2), -15)); }
};
template <>
struct Block<Q8_0> : Scaled32<Q8_0, 34> {
    typedef elements::Scaled<Q8_0, 128> Element;
    __device__ static u32 quant(const u8* b, int k, const u8*) { return b[2 + k] ^ 0x80u; }
};
template <>
struct Block<Q4_0> : Scaled32<Q4_0, 18> {
    typedef elements::Scaled<Q4_0, 8> Element;
    __device__ static u32 quant(const u8* b, int k, const u8*) { return nibble_of_32(b + 2, k); }
};
template <>
struct Block<IQ4_NL> : Scaled32<IQ4_NL, 18> {
    typedef elements::NonLinear<IQ4_NL> Element;
    __device__ static u32 quant(const u8* b, int k, const u8*) { return nibble_of_32(b + 2, k); }
};
template <>
struct Block<Q5_0> : Scaled32<Q5_0, 22> {
    typedef elements::Scaled<Q5_0, 16> Element;
    __device__ static u32 quant(const u8* b, int k, const u8*) {
        return nibble_of_32(b + 6, k) | fifth_of_32(b + 2, k) << 4;
    }
};
template <>
struct Block<Q4_1> : Shifted32<Q4_1, 20> {
    typedef elements::Shifted<Q4_1> Element;
    __device__ static u32 quant(const u8* b, int k, const u8*) { return nibble_of_32(b + 4, k); }
};
template <>
struct Block<Q5_1> : Shifted32<Q5_1, 24> {
    typedef elements::Shifted<Q5_1> Element;
    __device__ static u32 quant(const u8* b, int k, const u8*) {
        return nibble_of_32(b + 8, k) | fifth_of_32(b + 4, k) << 4;
    }
};
// E8M0 scale: a power of two over the complete f32 range.
template <>
struct Block<MXFP4> {
    typedef Block<MXFP4> Element;
    typedef MXFP4 Kind;
    static constexpr int bytes = 17, columns = 32, scale_columns = 32;
    __device__ static u32 quant(const u8* b, int k, const u8*) { return nibble_of_32(b + 1, k); }
    // Scale as f16, relative to the row's exponent.
    __device__ static u32 scale(const u8* b, int, int exponent) {
        const int e = b[0] - 127 + 14 - exponent;
        return e < -24 ? 0 : float_to_half(power_of_two(e));
    }
    __device__ static int limit(const u8* b) { return b[0] - 128; }
    __device__ static float value(const u8* b, int c, const u8* points) {
        // 2^(e - 127) / 2; exponents 0 and 1 give subnormals.
        const u32 e = b[0], scale = e < 2 ? 0x00200000u << e : (e - 1) << 23;
        return __fmul_rn(float_of(scale), float(elements::e2m1(quant(b, c, points))));
    }
};
// Scales of 16 columns are unsigned E4M3; code 127 means 0, as in ggml.
template <>
struct Block<NVFP4> {
    typedef Block<NVFP4> Element;
    typedef NVFP4 Kind;
    static constexpr int bytes = 36, columns = 64, scale_columns = 16;
    __device__ static u32 quant(const u8* b, int k, const u8*) {
        return b[4 + 8 * (k >> 4) + (k & 7)] >> (k >> 3 & 1) * 4 & 15;
    }
    __device__ static u32 scale(const u8* b, int k, int exponent) {
        const int code = b[k >> 4], e = code >> 3 & 15, mantissa = code & 7;
        if (code == 127) return 0;
        const float value = float(e ? mantissa + 8 : mantissa) * power_of_two((e ? e : 1) - 10);
        return float_to_half(value * power_of_two(14 - exponent));
    }
    // Constant: scales are below 2^9 and above 2^-10.
    __device__ static int limit(const u8*) { return 7; }
    __device__ static float value(const u8* b, int c, const u8* points) {
        // Half of an E4M3 number whose sign bit is ignored; code 127 means 0.
        const int code = b[c / 16], exponent = code >> 3 & 15, mantissa = code & 7;
        const int fraction = exponent == 0 ? mantissa : mantissa + 8, power = (exponent == 0 ? 1 : exponent) - 11;
        const float scale = code == 127 ? 0.0f : float(fraction) * power_of_two(power);
        return __fmul_rn(scale, float(elements::e2m1(quant(b, c, points))));
    }
};

template <>
struct Block<Q4_K> {
    typedef elements::Nested<Q4_K> Element;
    typedef Q4_K Kind;
    static constexpr int bytes = 144, columns = 256;
    __device__ static u32 quant(const u8* b, int k, const u8*) { return nibble_k4(b + 16, k); }
    __device__ static int limit(const u8* b) { return larger(limit_of(half_at(b), 14), limit_of(half_at(b + 2), -10)); }
};
template <>
struct Block<Q5_K> {
    typedef elements::Nested<Q5_K> Element;
    typedef Q5_K Kind;
    static constexpr int bytes = 176, columns = 256;
    __device__ static u32 quant(const u8* b, int k, const u8*) {
        return nibble_k4(b + 48, k) | u32(b[16 + (k & 31)] >> (k >> 5) & 1) << 4;
    }
    __device__ static int limit(const u8* b) { return Block<Q4_K>::limit(b); }
};
template <>
struct Block<Q6_K> {
    typedef elements::Grouped<Q6_K, 32> Element;
    typedef Q6_K Kind;
    static constexpr int bytes = 210, columns = 256;
    __device__ static u32 quant(const u8* b, int k, const u8*) {
        const int n = k >> 7, quarter = k >> 5 & 3, l = k & 31;
        const u32 low = b[64 * n + (quarter & 1) * 32 + l] >> (quarter >> 1) * 4 & 15;
        return low | u32(b[128 + 32 * n + l] >> 2 * quarter & 3) << 4;
    }
    // factor: scale of group g, plus 128; unit: its multiplier.
    __device__ static u32 factor(const u8* b, int g) { return b[192 + g] ^ 0x80u; }
    __device__ static float unit(const u8* b) { return half_at(b + 208); }
    __device__ static int limit(const u8* b) { return limit_of(unit(b), 15); }
};
template <>
struct Block<Q3_K> {
    typedef elements::Grouped<Q3_K, 4> Element;
    typedef Q3_K Kind;
    static constexpr int bytes = 110, columns = 256;
    __device__ static u32 quant(const u8* b, int k, const u8*) {
        return pair_k(b + 32, k) | u32(b[k & 31] >> (k >> 5) & 1) << 2;
    }
    __device__ static u32 factor(const u8* b, int g) {
        const u32 low = g < 8 ? b[96 + g] & 15u : u32(b[88 + g] >> 4);
        return (low | u32(b[104 + (g & 3)] >> 2 * (g >> 2) & 3) << 4) + 96;  // -32 + 128
    }
    __device__ static float unit(const u8* b) { return half_at(b + 108); }
    __device__ static int limit(const u8* b) { return limit_of(unit(b), 13); }
};
template <>
struct Block<Q2_K> {
    typedef Block<Q2_K> Element;
    typedef Q2_K Kind;
    static constexpr int bytes = 84, columns = 256;
    __device__ static u32 quant(const u8* b, int k, const u8*) { return pair_k(b + 16, k); }
    __device__ static u32 factor(const u8* b, int g) { return b[g]; }
    __device__ static int limit(const u8* b) {
        return larger(limit_of(half_at(b + 80), 12), limit_of(half_at(b + 82), -12));
    }
    __device__ static float value(const u8* b, int c, const u8* points) {
        const u32 both = factor(b, c / 16);
        const float minimum = __fmul_rn(half_at(b + 82), float(both >> 4));
        return elements::minus(__fmul_rn(half_at(b + 80), float(both & 15)), quant(b, c, points), minimum);
    }
};
template <>
struct Block<IQ4_XS> {
    typedef elements::NonLinear<IQ4_XS> Element;
    typedef IQ4_NL Kind;
    static constexpr int bytes = 136, columns = 256;
    __device__ static u32 quant(const u8* b, int k, const u8*) { return nibble_of_32(b + 8 + (k >> 5) * 16, k & 31); }
    __device__ static float scale(const u8* b, int k) {
        const int g = k >> 5, low = b[4 + (g >> 1)] >> (g & 1) * 4 & 15, high = half_word(b + 2) >> 2 * g & 3;
        return half_at(b) * float((low | high << 4) - 32);
    }
    __device__ static int limit(const u8* b) { return limit_of(half_at(b), 13); }
};

// X(name in kernels, type)
// clang-format off
#define USUAL_BLOCKS(X) \
    X(f16, F16) \
    X(bf16, BF16) \
    X(q4_0, Q4_0) \
    X(q4_1, Q4_1) \
    X(q5_0, Q5_0) \
    X(q5_1, Q5_1) \
    X(q8_0, Q8_0) \
    X(iq4_nl, IQ4_NL) \
    X(mxfp4, MXFP4) \
    X(nvfp4, NVFP4) \
    X(q2_k, Q2_K) \
    X(q3_k, Q3_K) \
    X(q4_k, Q4_K) \
    X(q5_k, Q5_K) \
    X(q6_k, Q6_K) \
    X(iq4_xs, IQ4_XS)
// clang-format on
