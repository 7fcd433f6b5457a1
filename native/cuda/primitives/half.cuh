// f16x2 arithmetic: two f16 per 32-bit word, the first in the low half. Each function rounds once to nearest even and
// keeps subnormals. The versions for the emulated GPU give the same bits.
#pragma once

#include "primitives/common.cuh"

struct alignas(8) Words2 {
    u32 x, y;
};
struct alignas(16) Words4 {
    u32 x, y, z, w;
};
// Word i of four; i must be a compile-time constant after unrolling.
__device__ __forceinline__ u32 select_word(const Words4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

#ifdef WOOLLY_EMULATED

#include <cstring>

inline float half_to_float(u16 h) {
    const u32 magnitude = h & 0x7fffu, bits = magnitude << 13, special = 0x7f800000u | bits;
    float f;
    std::memcpy(&f, &bits, 4);
    f *= 0x1p112f;  // rebiases the exponent from 15 to 127 and normalizes subnormals
    if (magnitude >= 0x7c00u) std::memcpy(&f, &special, 4);
    return h & 0x8000u ? -f : f;
}
inline u16 double_to_half(double x) {
    u64 bits;
    std::memcpy(&bits, &x, 8);
    const u32 sign = u32(bits >> 48) & 0x8000u;
    const int exponent = int(bits >> 52 & 2047) - 1023;
    if (exponent == 1024) return u16(sign | (bits << 12 ? 0x7e00u : 0x7c00u));
    if (exponent > 15) return u16(sign | 0x7c00u);
    if (exponent < -25) return u16(sign);
    const u64 mantissa = (bits & ((1ull << 52) - 1)) | 1ull << 52;
    const int shift = exponent >= -14 ? 42 : 28 - exponent;
    const u64 half = 1ull << (shift - 1), rest = mantissa & (2 * half - 1), kept = mantissa >> shift;
    const u32 rounded = u32(kept + (rest > half || (rest == half && kept & 1)));
    const u32 out = rounded + (exponent >= -14 ? u32(exponent + 14) << 10 : 0);
    return u16(sign | (out > 0x7c00u ? 0x7c00u : out));
}
inline u16 float_to_half(float x) { return double_to_half(double(x)); }
// Exact in double, except for bits of the sum too small to affect rounding.
inline u32 half_fma(u32 a, u32 b, u32 c) {
    u32 out = 0;
    for (int i = 0; i < 32; i += 16)
        out |= u32(double_to_half(double(half_to_float(u16(a >> i))) * double(half_to_float(u16(b >> i))) +
                                  double(half_to_float(u16(c >> i)))))
               << i;
    return out;
}
inline u32 half_mul(u32 a, u32 b) {
    u32 out = 0;
    for (int i = 0; i < 32; i += 16)
        out |= u32(float_to_half(half_to_float(u16(a >> i)) * half_to_float(u16(b >> i)))) << i;
    return out;
}
inline u32 half_add(u32 a, u32 b) {
    u32 out = 0;
    for (int i = 0; i < 32; i += 16)
        out |= u32(double_to_half(double(half_to_float(u16(a >> i))) + double(half_to_float(u16(b >> i))))) << i;
    return out;
}
inline u32 to_half2(float low, float high) { return u32(float_to_half(low)) | u32(float_to_half(high)) << 16; }
// prmt.b32: selects bytes 0 to 3 of a and 4 to 7 of b, one per selector nibble. A nibble with its top bit set
// replicates the byte's sign bit.
inline u32 pick_bytes(u32 a, u32 b, u32 selector) {
    const u64 both = u64(b) << 32 | a;
    u32 out = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 s = selector >> (4 * i), byte = u32(both >> (8 * (s & 7))) & 255;
        out |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
    }
    return out;
}
inline u32 half_negated(u32 a) { return a ^ 0x80008000u; }
// Broadcasts the low, or the high, half.
inline u32 half_low(u32 a) { return pick_bytes(a, a, 0x1010); }
inline u32 half_high(u32 a) { return pick_bytes(a, a, 0x3232); }

#else

__device__ __forceinline__ float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
__device__ __forceinline__ u16 float_to_half(float x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
__device__ __forceinline__ u32 half_fma(u32 a, u32 b, u32 c) {
    u32 out;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}
__device__ __forceinline__ u32 half_mul(u32 a, u32 b) {
    u32 out;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}
__device__ __forceinline__ u32 half_add(u32 a, u32 b) {
    u32 out;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}
__device__ __forceinline__ u32 to_half2(float low, float high) {
    u32 out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
__device__ __forceinline__ u32 pick_bytes(u32 a, u32 b, u32 selector) {
    u32 out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
    return out;
}
// As PTX instructions that ptxas folds into operand modifiers: no cost.
__device__ __forceinline__ u32 half_negated(u32 a) {
    u32 out;
    asm("neg.f16x2 %0, %1;" : "=r"(out) : "r"(a));
    return out;
}
__device__ __forceinline__ u32 half_low(u32 a) {
    u32 out;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {low, low};\n}" : "=r"(out) : "r"(a));
    return out;
}
__device__ __forceinline__ u32 half_high(u32 a) {
    u32 out;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {high, high};\n}" : "=r"(out) : "r"(a));
    return out;
}

#endif

// Decodes four IQ4_NL nibbles to their values + 128, one per byte.
__device__ __forceinline__ u32 iq4_values(u32 four) {
    const u32 low = pick_bytes(0x3f2d1801u, 0x766a5d4fu, four & 0x7777u);
    const u32 high = pick_bytes(0xa6998d81u, 0xf1d9c5b5u, four & 0x7777u);
    return pick_bytes(low, high, (four & 0x8888u) >> 1 | 0x3210u);
}

__device__ __forceinline__ float low_float(u32 a) { return half_to_float(u16(a)); }
__device__ __forceinline__ float high_float(u32 a) { return half_to_float(u16(a >> 16)); }
// Saturates at +-65504, the largest finite f16; NaN passes through.
__device__ __forceinline__ u32 to_half2_saturated(float low, float high) {
    const float most = 65504.f;
    return to_half2(low > most ? most : low < -most ? -most : low, high > most ? most : high < -most ? -most : high);
}
