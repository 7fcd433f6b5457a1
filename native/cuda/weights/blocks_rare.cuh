// Codebook (IQ1, IQ2, IQ3) and ternary (TQ) blocks. All are packed losslessly as tiles of 8-bit quants with a scale per
// 16 columns: 9 bits per weight on the device. Codebooks have the layout of woolly/quant/codebooks.py: entries of 8 or
// 4 signed bytes.
#pragma once

#include "weights/blocks.cuh"

struct IQ2_XXS;
struct IQ2_XS;
struct IQ2_S;
struct IQ3_XXS;
struct IQ3_S;
struct IQ1_S;
struct IQ1_M;
struct TQ1_0;
struct TQ2_0;

// LIMIT: exponent of the largest sub-scale.
template <int BYTES, int LIMIT>
struct Rare {
    typedef Wide Kind;
    static constexpr int bytes = BYTES, columns = 256;
    __device__ static int limit(const u8* b) { return limit_of(half_at(b), LIMIT); }
};
// Codebook value with sign, plus 128.
__device__ __forceinline__ u32 signed_point(u8 point, u32 is_negative) {
    const int value = int(point ^ 0x80u) - 128;
    return u32((is_negative & 1 ? -value : value) + 128);
}
// Sign of column k % 8: the number of negative signs is even, so seven bits determine the eighth.
__device__ __forceinline__ u32 sign_of_seven(u32 seven, int k) {
    u32 parity = seven & 127;
    parity ^= parity >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return (k & 7) == 7 ? parity & 1 : seven >> (k & 7) & 1;
}
__device__ __forceinline__ float odd(u32 factor) { return float(2 * factor + 1); }

template <>
struct Block<IQ2_XXS> : Rare<66, 10> {
    typedef elements::Scaled<IQ2_XXS, 128> Element;
    __device__ static u32 quant(const u8* b, int k, const u8* points) {
        const u8* group = b + 2 + 8 * (k >> 5);
        return signed_point(points[8 * group[k >> 3 & 3] + (k & 7)],
                            sign_of_seven(word_at(group + 4) >> 7 * (k >> 3 & 3), k));
    }
    __device__ static float scale(const u8* b, int k) {
        return half_at(b) * 0.125f * odd(word_at(b + 6 + 8 * (k >> 5)) >> 28);
    }
};
template <>
struct Block<IQ2_XS> : Rare<74, 10> {
    typedef elements::Scaled<IQ2_XS, 128> Element;
    __device__ static u32 quant(const u8* b, int k, const u8* points) {
        const u32 both = half_word(b + 2 + 2 * (k >> 3));
        return signed_point(points[8 * (both & 511) + (k & 7)], sign_of_seven(both >> 9, k));
    }
    __device__ static float scale(const u8* b, int k) {
        return half_at(b) * 0.125f * odd(b[66 + (k >> 5)] >> (k >> 4 & 1) * 4 & 15);
    }
};
template <>
struct Block<IQ2_S> : Rare<82, 10> {
    typedef elements::Scaled<IQ2_S, 128> Element;
    __device__ static u32 quant(const u8* b, int k, const u8* points) {
        const int i = k >> 3, rank = b[2 + i] | (b[66 + (i >> 2)] >> 2 * (i & 3) & 3) << 8;
        return signed_point(points[8 * rank + (k & 7)], b[34 + i] >> (k & 7));
    }
    __device__ static float scale(const u8* b, int k) {
        return half_at(b) * 0.125f * odd(b[74 + (k >> 5)] >> (k >> 4 & 1) * 4 & 15);
    }
};
template <>
struct Block<IQ3_XXS> : Rare<98, 11> {
    typedef elements::Scaled<IQ3_XXS, 128> Element;
    __device__ static u32 quant(const u8* b, int k, const u8* points) {
        const u32 signs = word_at(b + 66 + 4 * (k >> 5)) >> 7 * (k >> 3 & 3);
        return signed_point(points[4 * b[2 + (k >> 2)] + (k & 3)], sign_of_seven(signs, k));
    }
    __device__ static float scale(const u8* b, int k) {
        return half_at(b) * 0.25f * odd(word_at(b + 66 + 4 * (k >> 5)) >> 28);
    }
};
template <>
struct Block<IQ3_S> : Rare<110, 13> {
    typedef elements::Scaled<IQ3_S, 128> Element;
    __device__ static u32 quant(const u8* b, int k, const u8* points) {
        const int i = k >> 2, rank = b[2 + i] | (b[66 + (i >> 3)] >> (i & 7) & 1) << 8;
        return signed_point(points[4 * rank + (k & 3)], b[74 + (k >> 3)] >> (k & 7));
    }
    __device__ static float scale(const u8* b, int k) {
        return half_at(b) * odd(b[106 + (k >> 6)] >> (k >> 5 & 1) * 4 & 15);
    }
};
// 8 * value +- 1 (delta).
template <>
struct Block<IQ1_S> : Rare<50, 9> {
    typedef elements::Scaled<IQ1_S, 128> Element;
    __device__ static u32 quant(const u8* b, int k, const u8* points) {
        const u32 group = half_word(b + 34 + 2 * (k >> 5)), rank = b[2 + (k >> 3)] | (group >> 3 * (k >> 3 & 3) & 7)
                                                                                         << 8;
        return signed_point(points[8 * rank + (k & 7)], 0) + (group >> 15 ? -1 : 1);
    }
    __device__ static float scale(const u8* b, int k) {
        return half_at(b) * 0.125f * odd(half_word(b + 34 + 2 * (k >> 5)) >> 12 & 7);
    }
};
// The f16 scale is spread over the top nibbles of the four sub-scale words.
template <>
struct Block<IQ1_M> : Rare<56, 9> {
    typedef elements::Scaled<IQ1_M, 128> Element;
    __device__ static float unit(const u8* b) {
        u32 bits = 0;
        for (int i = 0; i < 4; ++i) bits |= u32(b[49 + 2 * i] >> 4) << 4 * i;
        return half_to_float(u16(bits));
    }
    __device__ static u32 quant(const u8* b, int k, const u8* points) {
        const int i = k >> 3;
        const u32 nibble = b[32 + (i >> 1)] >> (i & 1) * 4 & 15, rank = b[i] | (nibble & 7) << 8;
        return signed_point(points[8 * rank + (k & 7)], 0) + (nibble >> 3 ? -1 : 1);
    }
    __device__ static float scale(const u8* b, int k) {
        return unit(b) * 0.125f * odd(half_word(b + 48 + 2 * (k >> 6)) >> 3 * (k >> 4 & 3) & 7);
    }
    __device__ static int limit(const u8* b) { return limit_of(unit(b), 9); }
};
// Ternary quants are value + 1; the tile stores 32 * value, which uses the f16 range best. TQ1_0 packs base-3 digits:
// multiplying the byte by 3 carries out the next one.
template <>
struct Block<TQ1_0> : Rare<54, 3> {
    typedef elements::Scaled<TQ1_0, 128> Element;
    __device__ static u32 quant(const u8* b, int k, const u8*) {
        const int digit = k < 160 ? k >> 5 : k < 240 ? (k - 160) >> 4 : (k - 240) >> 2;
        const int byte = b[k < 160 ? k & 31 : k < 240 ? 32 + (k & 15) : 48 + (k & 3)];
        int power = 1;
        for (int i = 0; i < digit; ++i) power *= 3;
        return u32((byte * power & 255) * 3 >> 8) * 32 + 96;
    }
    __device__ static float scale(const u8* b, int) { return half_at(b + 52) / 32; }
    __device__ static int limit(const u8* b) { return limit_of(half_at(b + 52), 3); }
};
template <>
struct Block<TQ2_0> : Rare<66, 3> {
    typedef elements::Scaled<TQ2_0, 128> Element;
    __device__ static u32 quant(const u8* b, int k, const u8*) { return pair_k(b, k) * 32 + 96; }
    __device__ static float scale(const u8* b, int) { return half_at(b + 64) / 32; }
    __device__ static int limit(const u8* b) { return limit_of(half_at(b + 64), 3); }
};

// As USUAL_BLOCKS.
// clang-format off
#define RARE_BLOCKS(X) \
    X(iq1_s, IQ1_S) \
    X(iq1_m, IQ1_M) \
    X(iq2_xxs, IQ2_XXS) \
    X(iq2_xs, IQ2_XS) \
    X(iq2_s, IQ2_S) \
    X(iq3_xxs, IQ3_XXS) \
    X(iq3_s, IQ3_S) \
    X(tq1_0, TQ1_0) \
    X(tq2_0, TQ2_0)
// clang-format on
#define ALL_BLOCKS(X) USUAL_BLOCKS(X) RARE_BLOCKS(X)
