// Weights in super-blocks of 256 columns whose quants are points of a codebook (quant/points.h), 8 or 4 columns each.
// Sub-scales are odd: 1, 3, 5, ... `four` and `value` are as in blocks32.h, with signed quants. The kernels are in
// cpu/kernels/generic/codebooks.h.
#pragma once

#include "quant/blocks32.h"
#include "quant/points.h"

namespace woolly {

// Negates those of four signed bytes whose bit is set. None of them is 0.
WOOLLY_INLINE uint32_t negated(uint32_t four, uint32_t signs) {
    const uint32_t ones = spread(signs);
    return (four ^ (ones * 255)) + ones;
}
// Columns c to c + 3 of a point of eight.
WOOLLY_INLINE uint32_t half_of(uint64_t point, int c) { return uint32_t(point >> (8 * (c % 8))); }
// Signs of eight columns: the number of negative ones is even, so that seven bits determine the eighth.
WOOLLY_INLINE uint32_t eight_signs(uint32_t seven) {
    return (seven & 127) | uint32_t(__builtin_parity(seven & 127)) << 7;
}
// Signs of columns c to c + 3 of a group of 32, whose four times seven bits are in one word.
WOOLLY_INLINE uint32_t signs_of(uint32_t group, int c) { return eight_signs(group >> (7 * (c % 32 / 8))) >> (c % 8); }
WOOLLY_INLINE uint32_t half_word(const uint8_t* p) { return uint32_t(p[0] | p[1] << 8); }

// Eight groups: four one-byte ranks, then a word with 4 * 7 bits of signs and 4 of the scale.
struct BlockIQ2_XXS {
    Half scale;
    uint8_t groups[64];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockIQ2_XXS, scale), WOOLLY_PART(word, BlockIQ2_XXS, groups)}};
    }
    WOOLLY_INLINE uint32_t four(int c) const {
        const uint8_t* group = groups + 8 * (c / 32);
        return negated(half_of(kIq2Xxs.words[group[c % 32 / 8]], c), signs_of(word(group + 4), c));
    }
    WOOLLY_INLINE float value(int c, int q) const {
        const uint32_t factor = 2 * (word(groups + 8 * (c / 32) + 4) >> 28) + 1;
        return scale.value() * 0.125f * float(factor) * float(int8_t(q));
    }
};

// Nine bits of rank and seven of signs for 8 columns; nibbles of scales for 16.
struct BlockIQ2_XS {
    Half scale;
    uint8_t quants[64], factors[8];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockIQ2_XS, scale), WOOLLY_PART(word, BlockIQ2_XS, quants),
                 WOOLLY_PART(word, BlockIQ2_XS, factors)}};
    }
    WOOLLY_INLINE uint32_t four(int c) const {
        const uint32_t quant = half_word(quants + 2 * (c / 8));
        return negated(half_of(kIq2Xs.words[quant & 511], c), eight_signs(quant >> 9) >> (c % 8));
    }
    WOOLLY_INLINE float value(int c, int q) const {
        const int factor = 2 * (factors[c / 32] >> (4 * (c / 16 % 2)) & 15) + 1;
        return scale.value() * 0.125f * float(factor) * float(int8_t(q));
    }
};

// Low bytes of ranks, signs, two upper bits of ranks, nibbles of scales for 16 columns.
struct BlockIQ2_S {
    Half scale;
    uint8_t low[32], signs[32], high[8], factors[8];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockIQ2_S, scale), WOOLLY_PART(word, BlockIQ2_S, low),
                 WOOLLY_PART(word, BlockIQ2_S, signs), WOOLLY_PART(word, BlockIQ2_S, high),
                 WOOLLY_PART(word, BlockIQ2_S, factors)}};
    }
    WOOLLY_INLINE uint32_t four(int c) const {
        const int i = c / 8, rank = low[i] | (high[i / 4] >> (2 * (i % 4)) & 3) << 8;
        return negated(half_of(kIq2S.words[rank], c), uint32_t(signs[i] >> (c % 8)));
    }
    WOOLLY_INLINE float value(int c, int q) const {
        const int factor = 2 * (factors[c / 32] >> (4 * (c / 16 % 2)) & 15) + 1;
        return scale.value() * 0.125f * float(factor) * float(int8_t(q));
    }
};

// Ranks of points of 4 columns; signs and scales of groups of 32 as in IQ2_XXS.
struct BlockIQ3_XXS {
    Half scale;
    uint8_t ranks[64], signs[32];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockIQ3_XXS, scale), WOOLLY_PART(word, BlockIQ3_XXS, ranks),
                 WOOLLY_PART(word, BlockIQ3_XXS, signs)}};
    }
    WOOLLY_INLINE uint32_t four(int c) const {
        return negated(kIq3Xxs.words[ranks[c / 4]], signs_of(word(signs + 4 * (c / 32)), c));
    }
    WOOLLY_INLINE float value(int c, int q) const {
        const uint32_t factor = 2 * (word(signs + 4 * (c / 32)) >> 28) + 1;
        return scale.value() * 0.25f * float(factor) * float(int8_t(q));
    }
};

// Low bytes of ranks, their ninth bits, signs, nibbles of scales for 32 columns.
struct BlockIQ3_S {
    Half scale;
    uint8_t low[64], high[8], signs[32], factors[4];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockIQ3_S, scale), WOOLLY_PART(word, BlockIQ3_S, low),
                 WOOLLY_PART(word, BlockIQ3_S, high), WOOLLY_PART(word, BlockIQ3_S, signs),
                 WOOLLY_PART(word, BlockIQ3_S, factors)}};
    }
    WOOLLY_INLINE uint32_t four(int c) const {
        const int i = c / 4, rank = low[i] | (high[i / 8] >> (i % 8) & 1) << 8;
        return negated(kIq3S.words[rank], uint32_t(signs[c / 8] >> (c % 8)));
    }
    WOOLLY_INLINE float value(int c, int q) const {
        const int factor = 2 * (factors[c / 64] >> (4 * (c / 32 % 2)) & 15) + 1;
        return scale.value() * float(factor) * float(int8_t(q));
    }
};

// Adds 1 or -1 to four signed bytes of magnitude up to 8.
WOOLLY_INLINE uint32_t shifted(uint32_t four, bool down) {
    // The top bits are excluded from the sum, so that no byte carries into the next.
    const uint32_t delta = down ? 0xffffffffu : 0x01010101u, top = 0x80808080u;
    return ((four & ~top) + (delta & ~top)) ^ ((four ^ delta) & top);
}

// Low bytes of ranks; per group of 32 columns 4 * 3 upper bits, 3 of the scale, and the sign of the shift.
struct BlockIQ1_S {
    Half scale;
    uint8_t low[32], groups[16];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockIQ1_S, scale), WOOLLY_PART(word, BlockIQ1_S, low),
                 WOOLLY_PART(word, BlockIQ1_S, groups)}};
    }
    WOOLLY_INLINE uint32_t group(int c) const { return half_word(groups + 2 * (c / 32)); }
    WOOLLY_INLINE uint32_t four(int c) const {
        const uint32_t rank = low[c / 8] | (group(c) >> (3 * (c / 8 % 4)) & 7) << 8;
        return shifted(half_of(kIq1.words[rank], c), group(c) >> 15 != 0);
    }
    WOOLLY_INLINE float value(int c, int q) const {
        return scale.value() * 0.125f * float(2 * (group(c) >> 12 & 7) + 1) * float(int8_t(q));
    }
};

// As IQ1_S, with a nibble per rank: upper bits and the sign of the shift. Scales of 3 bits for 16 columns; the top
// nibbles of their four half words are the float scale.
struct BlockIQ1_M {
    uint8_t low[32], high[16], factors[8];
    static consteval Layout layout() {
        return {{WOOLLY_PART(word, BlockIQ1_M, low), WOOLLY_PART(word, BlockIQ1_M, high),
                 WOOLLY_PART(word, BlockIQ1_M, factors)}};
    }
    WOOLLY_INLINE float scale() const {
        uint32_t bits = 0;
        for (int i = 0; i < 4; ++i) bits |= uint32_t(factors[2 * i + 1] >> 4) << (4 * i);
        return half_to_float(uint16_t(bits));
    }
    WOOLLY_INLINE uint32_t four(int c) const {
        const int i = c / 8, nibble = high[i / 2] >> (4 * (i % 2)) & 15;
        return shifted(half_of(kIq1.words[low[i] | (nibble & 7) << 8], c), nibble >> 3 != 0);
    }
    WOOLLY_INLINE float value(int c, int q) const {
        const uint32_t factor = 2 * (half_word(factors + 2 * (c / 64)) >> (3 * (c / 16 % 4)) & 7) + 1;
        return scale() * 0.125f * float(factor) * float(int8_t(q));
    }
};

// Columns as in types.h. Points of 8 numbers, and points of 4.
#define WOOLLY_POINTS_OF_8(X)                           \
    X(IQ2_XXS, 16, 256, 66, q8_256, Blocks256<IQ2_XXS>) \
    X(IQ2_XS, 17, 256, 74, q8_256, Blocks256<IQ2_XS>)   \
    X(IQ1_S, 19, 256, 50, q8_256, Blocks256<IQ1_S>)     \
    X(IQ2_S, 22, 256, 82, q8_256, Blocks256<IQ2_S>)     \
    X(IQ1_M, 29, 256, 56, q8_256, Blocks256<IQ1_M>)
#define WOOLLY_POINTS_OF_4(X)                           \
    X(IQ3_XXS, 18, 256, 98, q8_256, Blocks256<IQ3_XXS>) \
    X(IQ3_S, 21, 256, 110, q8_256, Blocks256<IQ3_S>)
#define WOOLLY_CODEBOOKS(X) WOOLLY_POINTS_OF_8(X) WOOLLY_POINTS_OF_4(X)

}  // namespace woolly
