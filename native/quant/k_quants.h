// Weights in super-blocks of 256 columns: groups of 16 or 32 columns with integer scales, and one float scale for
// these. `four` and `value` are as in blocks32.h. The kernels are in cpu/kernels/generic/k_quants.h.
#pragma once

#include "quant/blocks32.h"

namespace woolly {

// Four-bit scales (low) and minima (high) of 16 groups.
struct BlockQ2_K {
    uint8_t factors[16], quants[64];
    Half scale, minimum;
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockQ2_K, scale), WOOLLY_PART(half, BlockQ2_K, minimum),
                 WOOLLY_PART(word, BlockQ2_K, factors)},
                2};
    }
    WOOLLY_INLINE uint32_t four(int c) const {
        return bits(word(quants + 32 * (c / 128) + c % 32), 2 * (c % 128 / 32), 2);
    }
    WOOLLY_INLINE float value(int c, int q) const {
        const int factor = factors[c / 16];
        return scale.value() * float(factor & 15) * float(q) - minimum.value() * float(factor >> 4);
    }
};

// Six-bit scales of 16 groups in 12 bytes: nibbles, then pairs of upper bits. Quants minus 4.
struct BlockQ3_K {
    uint8_t high[32], quants[64], factors[12];
    Half scale;
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockQ3_K, scale), WOOLLY_PART(word, BlockQ3_K, factors)}, 3};
    }
    WOOLLY_INLINE uint32_t four(int c) const {
        const uint32_t low = bits(word(quants + 32 * (c / 128) + c % 32), 2 * (c % 128 / 32), 2);
        return low | bits(word(high + c % 32), c / 32, 1) << 2;
    }
    WOOLLY_INLINE float value(int c, int q) const {
        const int s = c / 16, low = s < 8 ? factors[s] & 15 : factors[s - 8] >> 4;
        const int factor = (low | ((factors[8 + s % 4] >> (2 * (s / 4))) & 3) << 4) - 32;
        return scale.value() * float(factor) * float(q - 4);
    }
};

// Six-bit scales and minima of 8 groups in 12 bytes: four scales, four minima, then nibbles of the other four of each,
// whose upper bits are the top bits of the first eight bytes.
struct FactorsQ45_K {
    uint8_t bytes[12];
    WOOLLY_INLINE int scale(int g) const {
        return g < 4 ? bytes[g] & 63 : (bytes[g + 4] & 15) | ((bytes[g - 4] >> 6) << 4);
    }
    WOOLLY_INLINE int minimum(int g) const {
        return g < 4 ? bytes[g + 4] & 63 : (bytes[g + 4] >> 4) | ((bytes[g] >> 6) << 4);
    }
};

struct BlockQ4_K {
    Half scale, minimum;
    FactorsQ45_K factors;
    uint8_t quants[128];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockQ4_K, scale), WOOLLY_PART(half, BlockQ4_K, minimum),
                 WOOLLY_PART(word, BlockQ4_K, factors), WOOLLY_PART(word, BlockQ4_K, quants)}};
    }
    WOOLLY_INLINE uint32_t four(int c) const {
        return bits(word(quants + 32 * (c / 64) + c % 32), 4 * (c / 32 % 2), 4);
    }
    WOOLLY_INLINE float value(int c, int q) const {
        const int g = c / 32;
        return scale.value() * float(factors.scale(g)) * float(q) - minimum.value() * float(factors.minimum(g));
    }
};

struct BlockQ5_K {
    Half scale, minimum;
    FactorsQ45_K factors;
    uint8_t fifth[32], quants[128];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockQ5_K, scale), WOOLLY_PART(half, BlockQ5_K, minimum),
                 WOOLLY_PART(word, BlockQ5_K, factors)},
                5};
    }
    WOOLLY_INLINE uint32_t four(int c) const {
        const uint32_t low = bits(word(quants + 32 * (c / 64) + c % 32), 4 * (c / 32 % 2), 4);
        return low | bits(word(fifth + c % 32), c / 32, 1) << 4;
    }
    WOOLLY_INLINE float value(int c, int q) const {
        const int g = c / 32;
        return scale.value() * float(factors.scale(g)) * float(q) - minimum.value() * float(factors.minimum(g));
    }
};

// Signed scales of 16 groups. Quants minus 32, in halves of 128 columns and quarters of 32.
struct BlockQ6_K {
    uint8_t low[128], high[64], factors[16];
    Half scale;
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockQ6_K, scale), WOOLLY_PART(word, BlockQ6_K, factors)}, 6};
    }
    WOOLLY_INLINE uint32_t four(int c) const {
        const int half = c / 128, quarter = c % 128 / 32, l = c % 32;
        return bits(word(low + 64 * half + 32 * (quarter % 2) + l), 4 * (quarter / 2), 4) |
               bits(word(high + 32 * half + l), 2 * quarter, 2) << 4;
    }
    WOOLLY_INLINE float value(int c, int q) const {
        return scale.value() * float(int8_t(factors[c / 16])) * float(q - 32);
    }
};

// Six-bit scales of 8 groups, minus 32: nibbles, and pairs of upper bits. Quants index the table of IQ4_NL.
struct BlockIQ4_XS {
    Half scale;
    uint8_t high[2], low[4], quants[128];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockIQ4_XS, scale), WOOLLY_PART(two, BlockIQ4_XS, high),
                 WOOLLY_PART(one, BlockIQ4_XS, low), WOOLLY_PART(word, BlockIQ4_XS, quants)}};
    }
    WOOLLY_INLINE uint32_t four(int c) const { return nibbles(quants + 16 * (c / 32), c % 32); }
    WOOLLY_INLINE float value(int c, int q) const {
        const int g = c / 32, upper = (high[0] | high[1] << 8) >> (2 * g) & 3;
        const int factor = ((low[g / 2] >> (4 * (g % 2)) & 15) | upper << 4) - 32;
        return scale.value() * float(factor) * float(kIq4Values[q]);
    }
};

// Ternary quants plus 1: base-3 fractions of 256 in a byte; multiplying by 3 carries out the next digit. Five digits in
// the first 48 bytes, 32 bytes together and then 16, and four in the last 4.
struct BlockTQ1_0 {
    uint8_t quants[52];
    Half scale;
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockTQ1_0, scale), WOOLLY_PART(word, BlockTQ1_0, quants)}};
    }
    WOOLLY_INLINE uint32_t four(int c) const {
        constexpr uint8_t powers[5] = {1, 3, 9, 27, 81};
        const int digit = c < 160 ? c / 32 : c < 240 ? (c - 160) / 16 : (c - 240) / 4;
        const uint8_t* bytes = quants + (c < 160 ? c % 32 : c < 240 ? 32 + c % 16 : 48);
        uint32_t four = 0;
        for (int i = 0; i < 4; ++i) four |= (uint8_t(bytes[i] * powers[digit]) * 3u >> 8) << (8 * i);
        return four;
    }
    WOOLLY_INLINE float value(int, int q) const { return scale.value() * float(q - 1); }
};

// Ternary quants plus 1, in the order of Q2_K.
struct BlockTQ2_0 {
    uint8_t quants[64];
    Half scale;
    static consteval Layout layout() { return {{WOOLLY_PART(half, BlockTQ2_0, scale)}, 2}; }
    WOOLLY_INLINE uint32_t four(int c) const {
        return bits(word(quants + 32 * (c / 128) + c % 32), 2 * (c % 128 / 32), 2);
    }
    WOOLLY_INLINE float value(int, int q) const { return scale.value() * float(q - 1); }
};

// Columns as in types.h.
#define WOOLLY_MANY_BITS(X)                        \
    X(Q4_K, 12, 256, 144, q8_256, Blocks256<Q4_K>) \
    X(Q5_K, 13, 256, 176, q8_256, Blocks256<Q5_K>) \
    X(Q6_K, 14, 256, 210, q8_256, Blocks256<Q6_K>)

#define WOOLLY_FEW_BITS(X)                         \
    X(Q2_K, 10, 256, 84, q8_256, Blocks256<Q2_K>)  \
    X(Q3_K, 11, 256, 110, q8_256, Blocks256<Q3_K>) \
    X(IQ4_XS, 23, 256, 136, q8_256, Blocks256<IQ4_XS>)

#define WOOLLY_TERNARY(X)                           \
    X(TQ1_0, 34, 256, 54, q8_256, Blocks256<TQ1_0>) \
    X(TQ2_0, 35, 256, 66, q8_256, Blocks256<TQ2_0>)

#define WOOLLY_BLOCKS_256(X) WOOLLY_MANY_BITS(X) WOOLLY_FEW_BITS(X) WOOLLY_TERNARY(X)

}  // namespace woolly
