// Elements of weights as they lie in a file: `value(block, column, points)` is what woolly/quant/decode.py gives, to
// the bit. Each product and sum rounds by itself, so none may be fused. `points` are the type's codebook, if it has
// one.
#pragma once

#include "common.cuh"

namespace elements {

__device__ inline float half_at(const u8* p) {
    const u32 half = p[0] | u32(p[1]) << 8, magnitude = half & 0x7fffu, sign = (half & 0x8000u) << 16;
    // The product moves the exponent's bias from 15 to 127 and makes subnormal numbers normal.
    const u32 finite = __float_as_uint(__fmul_rn(__uint_as_float(magnitude << 13), 0x1p112f));
    return __uint_as_float(sign | (magnitude >= 0x7c00u ? 0x7f800000u | magnitude << 13 : finite));
}
__device__ inline u32 half_word(const u8* p) { return p[0] | u32(p[1]) << 8; }
__device__ inline u32 word(const u8* p) { return half_word(p) | half_word(p + 2) << 16; }
// Column c of 32 nibbles: the low ones are columns 0 to 15.
__device__ inline int nibble(const u8* p, int c) { return p[c % 16] >> (c / 16 * 4) & 15; }
__device__ inline int bit(const u8* p, int c) { return p[c / 8] >> (c % 8) & 1; }
// scale * q - minimum, as decode.py rounds it
__device__ inline float minus(float scale, int q, float minimum) {
    return __fsub_rn(__fmul_rn(float(q), scale), minimum);
}
__device__ inline float plus(float scale, int q, float minimum) {
    return __fadd_rn(__fmul_rn(float(q), scale), minimum);
}
__device__ inline float times(float scale, int factor, int q) {
    return __fmul_rn(float(q), __fmul_rn(scale, float(factor)));
}

__device__ inline int iq4(int q) {
    const signed char values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return values[q];
}
// Twice the values of E2M1, so that they are whole.
__device__ inline int e2m1(int q) {
    const int size = q & 7, value = size < 5 ? size : size == 5 ? 6 : size == 6 ? 8 : 12;
    return q & 8 ? -value : value;
}

struct F32 {
    static constexpr int columns = 1, bytes = 4;
    __device__ static float value(const u8* b, int, const signed char*) { return __uint_as_float(word(b)); }
};
struct F16 {
    static constexpr int columns = 1, bytes = 2;
    __device__ static float value(const u8* b, int, const signed char*) { return half_at(b); }
};
struct BF16 {
    static constexpr int columns = 1, bytes = 2;
    __device__ static float value(const u8* b, int, const signed char*) { return __uint_as_float(half_word(b) << 16); }
};

struct Q4_0 {
    static constexpr int columns = 32, bytes = 18;
    __device__ static float value(const u8* b, int c, const signed char*) {
        return __fmul_rn(half_at(b), float(nibble(b + 2, c) - 8));
    }
};
struct Q4_1 {
    static constexpr int columns = 32, bytes = 20;
    __device__ static float value(const u8* b, int c, const signed char*) {
        return plus(half_at(b), nibble(b + 4, c), half_at(b + 2));
    }
};
struct Q5_0 {
    static constexpr int columns = 32, bytes = 22;
    __device__ static float value(const u8* b, int c, const signed char*) {
        return __fmul_rn(half_at(b), float((nibble(b + 6, c) | bit(b + 2, c) << 4) - 16));
    }
};
struct Q5_1 {
    static constexpr int columns = 32, bytes = 24;
    __device__ static float value(const u8* b, int c, const signed char*) {
        return plus(half_at(b), nibble(b + 8, c) | bit(b + 4, c) << 4, half_at(b + 2));
    }
};
struct Q8_0 {
    static constexpr int columns = 32, bytes = 34;
    __device__ static float value(const u8* b, int c, const signed char*) {
        return __fmul_rn(half_at(b), float((signed char)b[2 + c]));
    }
};
struct IQ4_NL {
    static constexpr int columns = 32, bytes = 18;
    __device__ static float value(const u8* b, int c, const signed char*) {
        return __fmul_rn(half_at(b), float(iq4(nibble(b + 2, c))));
    }
};
struct MXFP4 {
    static constexpr int columns = 32, bytes = 17;
    __device__ static float value(const u8* b, int c, const signed char*) {
        // Half of 2^(e - 127); exponents 0 and 1 give subnormal numbers.
        const u32 e = b[0], scale = e < 2 ? 0x00200000u << e : (e - 1) << 23;
        return __fmul_rn(__uint_as_float(scale), float(e2m1(nibble(b + 1, c))));
    }
};
struct NVFP4 {
    static constexpr int columns = 64, bytes = 36;
    __device__ static float value(const u8* b, int c, const signed char*) {
        // Half of an E4M3 number, of which the top bit has no meaning; the code 127 means 0.
        const int code = b[c / 16], exponent = code >> 3 & 15, mantissa = code & 7;
        const int fraction = exponent == 0 ? mantissa : mantissa + 8, power = (exponent == 0 ? 1 : exponent) - 11;
        const float scale = code == 127 ? 0.0f : float(fraction) * __uint_as_float(u32(power + 127) << 23);
        return __fmul_rn(scale, float(e2m1(b[4 + 8 * (c / 16) + c % 8] >> (c / 8 % 2 * 4) & 15)));
    }
};

// Two bits of column c of 256, in runs of 32 bytes.
__device__ inline int pair(const u8* p, int c) { return p[32 * (c / 128) + c % 32] >> (2 * (c % 128 / 32)) & 3; }
__device__ inline int nibble_k(const u8* p, int c) { return p[32 * (c / 64) + c % 32] >> (4 * (c / 32 % 2)) & 15; }
// Scales and minima of Q4_K and Q5_K, of 6 bits in 12 bytes.
__device__ inline int scale_k(const u8* p, int g) { return g < 4 ? p[g] & 63 : (p[g + 4] & 15) | (p[g - 4] >> 6) << 4; }
__device__ inline int minimum_k(const u8* p, int g) { return g < 4 ? p[g + 4] & 63 : p[g + 4] >> 4 | (p[g] >> 6) << 4; }
__device__ inline float value_k(const u8* b, int c, int q) {
    const float scale = __fmul_rn(half_at(b), float(scale_k(b + 4, c / 32)));
    return minus(scale, q, __fmul_rn(half_at(b + 2), float(minimum_k(b + 4, c / 32))));
}

struct Q2_K {
    static constexpr int columns = 256, bytes = 84;
    __device__ static float value(const u8* b, int c, const signed char*) {
        const int factor = b[c / 16];
        const float minimum = __fmul_rn(half_at(b + 82), float(factor >> 4));
        return minus(__fmul_rn(half_at(b + 80), float(factor & 15)), pair(b + 16, c), minimum);
    }
};
struct Q3_K {
    static constexpr int columns = 256, bytes = 110;
    __device__ static float value(const u8* b, int c, const signed char*) {
        const u8* f = b + 96;
        const int s = c / 16, low = s < 8 ? f[s] & 15 : f[s - 8] >> 4;
        const int factor = (low | (f[8 + s % 4] >> (2 * (s / 4)) & 3) << 4) - 32;
        return times(half_at(b + 108), factor, (pair(b + 32, c) | (b[c % 32] >> (c / 32) & 1) << 2) - 4);
    }
};
struct Q4_K {
    static constexpr int columns = 256, bytes = 144;
    __device__ static float value(const u8* b, int c, const signed char*) { return value_k(b, c, nibble_k(b + 16, c)); }
};
struct Q5_K {
    static constexpr int columns = 256, bytes = 176;
    __device__ static float value(const u8* b, int c, const signed char*) {
        return value_k(b, c, nibble_k(b + 48, c) | (b[16 + c % 32] >> (c / 32) & 1) << 4);
    }
};
struct Q6_K {
    static constexpr int columns = 256, bytes = 210;
    __device__ static float value(const u8* b, int c, const signed char*) {
        const int half = c / 128, quarter = c % 128 / 32, low = b[64 * half + 32 * (quarter % 2) + c % 32];
        const int q = (low >> (4 * (quarter / 2)) & 15) | (b[128 + 32 * half + c % 32] >> (2 * quarter) & 3) << 4;
        return times(half_at(b + 208), (signed char)b[192 + c / 16], q - 32);
    }
};
struct IQ4_XS {
    static constexpr int columns = 256, bytes = 136;
    __device__ static float value(const u8* b, int c, const signed char*) {
        const int g = c / 32, low = b[4 + g / 2] >> (4 * (g % 2)) & 15;
        const int factor = (low | int(half_word(b + 2) >> (2 * g) & 3) << 4) - 32;
        return times(half_at(b), factor, iq4(nibble(b + 8 + 16 * g, c % 32)));
    }
};
struct TQ1_0 {
    static constexpr int columns = 256, bytes = 54;
    __device__ static float value(const u8* b, int c, const signed char*) {
        const int digit = c < 160 ? c / 32 : c < 240 ? (c - 160) / 16 : (c - 240) / 4;
        u32 rest = b[c < 160 ? c % 32 : c < 240 ? 32 + c % 16 : 48 + c % 4];
        for (int i = 0; i < digit; i++) rest = rest * 3 & 255;
        return __fmul_rn(half_at(b + 52), float(int(rest * 3 >> 8) - 1));
    }
};
struct TQ2_0 {
    static constexpr int columns = 256, bytes = 66;
    __device__ static float value(const u8* b, int c, const signed char*) {
        return __fmul_rn(half_at(b + 64), float(pair(b, c) - 1));
    }
};

// A number of a codebook, negated if its sign is set, times the unit and the odd factor. All of it is exact.
__device__ inline float point(float unit, u32 factor, int q, u32 sign) {
    return times(unit, int(2 * factor + 1), sign ? -q : q);
}
// The sign of column c of 8: the number of negative ones is even, so that seven bits give the eighth.
__device__ inline u32 sign_of(u32 seven, int c) {
    seven &= 127;
    return c < 7 ? seven >> c & 1 : u32(__popc(seven)) & 1;
}

struct IQ2_XXS {
    static constexpr int columns = 256, bytes = 66;
    __device__ static float value(const u8* b, int c, const signed char* points) {
        const u8* group = b + 2 + 8 * (c / 32);
        const u32 signs = word(group + 4);
        const int q = points[8 * group[c % 32 / 8] + c % 8];
        return point(half_at(b) * 0.125f, signs >> 28, q, sign_of(signs >> (7 * (c % 32 / 8)), c % 8));
    }
};
struct IQ2_XS {
    static constexpr int columns = 256, bytes = 74;
    __device__ static float value(const u8* b, int c, const signed char* points) {
        const u32 quant = half_word(b + 2 + 2 * (c / 8)), factor = b[66 + c / 32] >> (4 * (c / 16 % 2)) & 15;
        return point(half_at(b) * 0.125f, factor, points[8 * (quant & 511) + c % 8], sign_of(quant >> 9, c % 8));
    }
};
struct IQ2_S {
    static constexpr int columns = 256, bytes = 82;
    __device__ static float value(const u8* b, int c, const signed char* points) {
        const int i = c / 8, rank = b[2 + i] | (b[66 + i / 4] >> (2 * (i % 4)) & 3) << 8;
        const u32 factor = b[74 + c / 32] >> (4 * (c / 16 % 2)) & 15;
        return point(half_at(b) * 0.125f, factor, points[8 * rank + c % 8], b[34 + i] >> (c % 8) & 1);
    }
};
struct IQ3_XXS {
    static constexpr int columns = 256, bytes = 98;
    __device__ static float value(const u8* b, int c, const signed char* points) {
        const u32 signs = word(b + 66 + 4 * (c / 32));
        const int q = points[4 * b[2 + c / 4] + c % 4];
        return point(half_at(b) * 0.25f, signs >> 28, q, sign_of(signs >> (7 * (c % 32 / 8)), c % 8));
    }
};
struct IQ3_S {
    static constexpr int columns = 256, bytes = 110;
    __device__ static float value(const u8* b, int c, const signed char* points) {
        const int i = c / 4, rank = b[2 + i] | (b[66 + i / 8] >> (i % 8) & 1) << 8;
        const u32 factor = b[106 + c / 64] >> (4 * (c / 32 % 2)) & 15;
        return point(half_at(b), factor, points[4 * rank + c % 4], b[74 + c / 8] >> (c % 8) & 1);
    }
};
struct IQ1_S {
    static constexpr int columns = 256, bytes = 50;
    __device__ static float value(const u8* b, int c, const signed char* points) {
        const u32 group = half_word(b + 34 + 2 * (c / 32)), rank = b[2 + c / 8] | (group >> (3 * (c / 8 % 4)) & 7) << 8;
        const int q = points[8 * rank + c % 8] + (group >> 15 ? -1 : 1);
        return point(half_at(b) * 0.125f, group >> 12 & 7, q, 0);
    }
};
struct IQ1_M {
    static constexpr int columns = 256, bytes = 56;
    __device__ static float value(const u8* b, int c, const signed char* points) {
        const u8* factors = b + 48;
        u8 half[2] = {0, 0};  // spread over the top nibbles of four half words
        for (int i = 0; i < 4; i++) half[i / 2] |= u8(factors[2 * i + 1] >> 4 << (4 * (i % 2)));
        const int i = c / 8, nibble = b[32 + i / 2] >> (4 * (i % 2)) & 15;
        const int q = points[8 * (b[i] | (nibble & 7) << 8) + c % 8] + (nibble >> 3 ? -1 : 1);
        const u32 factor = half_word(factors + 2 * (c / 64)) >> (3 * (c / 16 % 4)) & 7;
        return point(half_at(half) * 0.125f, factor, q, 0);
    }
};

}  // namespace elements
