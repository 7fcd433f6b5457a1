// Blocks of weight types as they lie in a file. `Kind` is the tile that a type is packed as. `quant(b, k, points)`
// gives the bits of column k of a block as tiles keep them (points: the type's codebook, if it has one), `scale(b, k)`
// and `minimum(b, k)` what these are multiplied by and what is added, as f32. `limit(b)`: the least exponent that the
// row's factor must have so that no number of the block is too large for a half in the tile. What they mean is
// woolly/quant/decode.py, the oracle.
#pragma once

#include "weights/tile.cuh"

constexpr int NO_LIMIT = -1000;

__device__ __forceinline__ float half_at(const u8* p) { return half_to_float(u16(p[0] | p[1] << 8)); }
__device__ __forceinline__ u32 half_word(const u8* p) { return u32(p[0] | p[1] << 8); }
__device__ __forceinline__ u32 word_at(const u8* p) { return u32(p[0] | p[1] << 8 | p[2] << 16) | u32(p[3]) << 24; }
__device__ __forceinline__ float float_of(u32 bits) {
    union {
        u32 u;
        float f;
    } both = {bits};
    return both.f;
}
__device__ __forceinline__ u32 bits_of(float f) {
    union {
        float f;
        u32 u;
    } both = {f};
    return both.u;
}
// 2^e, e from -126 to 127
__device__ __forceinline__ float power_of_two(int e) { return float_of(u32(e + 127) << 23); }
// The exponent of a power of two.
__device__ __forceinline__ int exponent_of(float x) { return int(bits_of(x) >> 23) - 127; }
// The least e with |x| < 2^e, plus `more`. Infinite scales count as the largest: their weights are no numbers anyway.
__device__ __forceinline__ int limit_of(float x, int more) {
    const int e = int(bits_of(x) >> 23 & 255u);
    return bits_of(x) << 1 == 0 ? NO_LIMIT : (e == 255 ? 17 : e == 0 ? -125 : e - 126) + more;
}
__device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }

// Nibbles of 32 columns: the low ones are columns 0 to 15.
__device__ __forceinline__ u32 nibble_of_32(const u8* p, int k) { return p[k & 15] >> (k >> 4 << 2) & 15; }
__device__ __forceinline__ u32 fifth_of_32(const u8* p, int k) { return p[k >> 3] >> (k & 7) & 1; }

template <class T>
struct Block;

struct BF16;
struct IQ4_XS;

template <>
struct Block<F16> {
    typedef F16 Kind;
    static constexpr int bytes = 2, columns = 1;
    __device__ static float value(const u8* b) { return half_at(b); }
    __device__ static int limit(const u8*) { return NO_LIMIT; }
};
template <>
struct Block<BF16> {
    typedef F16 Kind;
    static constexpr int bytes = 2, columns = 1;
    __device__ static float value(const u8* b) { return float_of(half_word(b) << 16); }
    // The largest of a row is below 2^15.
    __device__ static int limit(const u8* b) {
        const float x = value(b);
        return (bits_of(x) & 0x7f800000u) == 0x7f800000u ? NO_LIMIT : limit_of(x, -15);
    }
};

// With one half in front that is the scale of 32 columns.
template <class T, int BYTES>
struct Scaled32 {
    typedef T Kind;
    static constexpr int bytes = BYTES, columns = 32;
    __device__ static float scale(const u8* b, int) { return half_at(b); }
    __device__ static int limit(const u8* b) { return limit_of(half_at(b), 8); }
};
// And one behind it that is added.
template <class T, int BYTES>
struct Shifted32 : Scaled32<T, BYTES> {
    __device__ static float minimum(const u8* b, int) { return half_at(b + 2); }
    __device__ static int limit(const u8* b) { return larger(limit_of(half_at(b), 8), limit_of(half_at(b + 2), -15)); }
};
template <>
struct Block<Q8_0> : Scaled32<Q8_0, 34> {
    __device__ static u32 quant(const u8* b, int k, const u8*) { return b[2 + k] ^ 0x80u; }
};
template <>
struct Block<Q4_0> : Scaled32<Q4_0, 18> {
    __device__ static u32 quant(const u8* b, int k, const u8*) { return nibble_of_32(b + 2, k); }
};
template <>
struct Block<IQ4_NL> : Scaled32<IQ4_NL, 18> {
    __device__ static u32 quant(const u8* b, int k, const u8*) { return nibble_of_32(b + 2, k); }
};
template <>
struct Block<Q5_0> : Scaled32<Q5_0, 22> {
    __device__ static u32 quant(const u8* b, int k, const u8*) {
        return nibble_of_32(b + 6, k) | fifth_of_32(b + 2, k) << 4;
    }
};
template <>
struct Block<Q4_1> : Shifted32<Q4_1, 20> {
    __device__ static u32 quant(const u8* b, int k, const u8*) { return nibble_of_32(b + 4, k); }
};
template <>
struct Block<Q5_1> : Shifted32<Q5_1, 24> {
    __device__ static u32 quant(const u8* b, int k, const u8*) {
        return nibble_of_32(b + 8, k) | fifth_of_32(b + 4, k) << 4;
    }
};
// A power of two, of any size that a float has.
template <>
struct Block<MXFP4> {
    typedef MXFP4 Kind;
    static constexpr int bytes = 17, columns = 32, scale_columns = 32;
    __device__ static u32 quant(const u8* b, int k, const u8*) { return nibble_of_32(b + 1, k); }
    // As a half, for a row with this exponent.
    __device__ static u32 scale(const u8* b, int, int exponent) {
        const int e = b[0] - 127 + 14 - exponent;
        return e < -24 ? 0 : float_to_half(power_of_two(e));
    }
    __device__ static int limit(const u8* b) { return b[0] - 128; }
};
// Scales of 16 columns are E4M3 without a sign; 127 means 0, as in ggml.
template <>
struct Block<NVFP4> {
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
    // One for all: scales are below 2^9 and above 2^-10.
    __device__ static int limit(const u8*) { return 7; }
};

// Scales and minima of Q4_K and Q5_K.
__device__ __forceinline__ u32 scale_k4(const u8* s, int g) {
    return g < 4 ? s[g] & 63u : (s[g + 4] & 15u) | u32(s[g - 4] >> 6) << 4;
}
__device__ __forceinline__ u32 minimum_k4(const u8* s, int g) {
    return g < 4 ? s[g + 4] & 63u : u32(s[g + 4] >> 4) | u32(s[g] >> 6) << 4;
}
__device__ __forceinline__ u32 nibble_k4(const u8* p, int k) {
    return p[(k >> 6) * 32 + (k & 31)] >> (k >> 5 & 1) * 4 & 15;
}
__device__ __forceinline__ u32 pair_k(const u8* p, int k) {
    return p[(k >> 7) * 32 + (k & 31)] >> (k >> 5 & 3) * 2 & 3;
}

template <>
struct Block<Q4_K> {
    typedef Q4_K Kind;
    static constexpr int bytes = 144, columns = 256;
    __device__ static u32 quant(const u8* b, int k, const u8*) { return nibble_k4(b + 16, k); }
    __device__ static int limit(const u8* b) { return larger(limit_of(half_at(b), 14), limit_of(half_at(b + 2), -10)); }
};
template <>
struct Block<Q5_K> {
    typedef Q5_K Kind;
    static constexpr int bytes = 176, columns = 256;
    __device__ static u32 quant(const u8* b, int k, const u8*) {
        return nibble_k4(b + 48, k) | u32(b[16 + (k & 31)] >> (k >> 5) & 1) << 4;
    }
    __device__ static int limit(const u8* b) { return Block<Q4_K>::limit(b); }
};
template <>
struct Block<Q6_K> {
    typedef Q6_K Kind;
    static constexpr int bytes = 210, columns = 256;
    __device__ static u32 quant(const u8* b, int k, const u8*) {
        const int n = k >> 7, quarter = k >> 5 & 3, l = k & 31;
        const u32 low = b[64 * n + (quarter & 1) * 32 + l] >> (quarter >> 1) * 4 & 15;
        return low | u32(b[128 + 32 * n + l] >> 2 * quarter & 3) << 4;
    }
    // The byte of group g, plus 128; what it is multiplied by.
    __device__ static u32 factor(const u8* b, int g) { return b[192 + g] ^ 0x80u; }
    __device__ static float unit(const u8* b) { return half_at(b + 208); }
    __device__ static int limit(const u8* b) { return limit_of(unit(b), 15); }
};
template <>
struct Block<Q3_K> {
    typedef Q3_K Kind;
    static constexpr int bytes = 110, columns = 256;
    __device__ static u32 quant(const u8* b, int k, const u8*) {
        return pair_k(b + 32, k) | u32(b[k & 31] >> (k >> 5) & 1) << 2;
    }
    __device__ static u32 factor(const u8* b, int g) {
        const u32 low = g < 8 ? b[96 + g] & 15u : u32(b[88 + g] >> 4);
        return (low | u32(b[104 + (g & 3)] >> 2 * (g >> 2) & 3) << 4) + 96;  // minus 32 plus 128
    }
    __device__ static float unit(const u8* b) { return half_at(b + 108); }
    __device__ static int limit(const u8* b) { return limit_of(unit(b), 13); }
};
template <>
struct Block<Q2_K> {
    typedef Q2_K Kind;
    static constexpr int bytes = 84, columns = 256;
    __device__ static u32 quant(const u8* b, int k, const u8*) { return pair_k(b + 16, k); }
    __device__ static u32 factor(const u8* b, int g) { return b[g]; }
    __device__ static int limit(const u8* b) {
        return larger(limit_of(half_at(b + 80), 12), limit_of(half_at(b + 82), -12));
    }
};
template <>
struct Block<IQ4_XS> {
    typedef IQ4_NL Kind;
    static constexpr int bytes = 136, columns = 256;
    __device__ static u32 quant(const u8* b, int k, const u8*) { return nibble_of_32(b + 8 + (k >> 5) * 16, k & 31); }
    __device__ static float scale(const u8* b, int k) {
        const int g = k >> 5, low = b[4 + (g >> 1)] >> (g & 1) * 4 & 15, high = half_word(b + 2) >> 2 * g & 3;
        return half_at(b) * float((low | high << 4) - 32);
    }
    __device__ static int limit(const u8* b) { return limit_of(half_at(b), 13); }
};
