// Bit fields of GGUF blocks, and exponents for the choice of row factors.
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
// 2^e for e in [-126, 127]
__device__ __forceinline__ float power_of_two(int e) { return float_of(u32(e + 127) << 23); }
// Exponent of a power of two.
__device__ __forceinline__ int exponent_of(float x) { return int(bits_of(x) >> 23) - 127; }
// Least e with |x| < 2^e, plus `more`. Infinite and NaN scales count as the largest: their weights are not finite
// anyway.
__device__ __forceinline__ int limit_of(float x, int more) {
    const int e = int(bits_of(x) >> 23 & 255u);
    return bits_of(x) << 1 == 0 ? NO_LIMIT : (e == 255 ? 17 : e == 0 ? -125 : e - 126) + more;
}
__device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }

// Nibbles of a 32-column block: columns 0 to 15 are the low ones.
__device__ __forceinline__ u32 nibble_of_32(const u8* p, int k) { return p[k & 15] >> (k >> 4 << 2) & 15; }
__device__ __forceinline__ u32 fifth_of_32(const u8* p, int k) { return p[k >> 3] >> (k & 7) & 1; }

// 6-bit scales and minima of Q4_K and Q5_K.
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
