// Weights in blocks of 32 columns with one scale. `four(c)` returns the quants of columns c to c + 3 (c a multiple of
// 4) in a byte each, `value(c, q)` the weight of column c with quant q. The kernels are in
// cpu/kernels/generic/blocks32.h; the bit-exact reference is woolly/quant/decode.py.
#pragma once

#include "quant/block.h"

namespace woolly {

inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Twice the E2M1 values, to make them integers.
inline constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct BlockQ4_0 {
    Half scale;
    uint8_t quants[16];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockQ4_0, scale), WOOLLY_PART(word, BlockQ4_0, quants)}};
    }
    WOOLLY_INLINE uint32_t four(int c) const { return nibbles(quants, c); }
    WOOLLY_INLINE float value(int, int q) const { return scale.value() * float(q - 8); }
};

struct BlockQ4_1 {
    Half scale, minimum;
    uint8_t quants[16];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockQ4_1, scale), WOOLLY_PART(half, BlockQ4_1, minimum),
                 WOOLLY_PART(word, BlockQ4_1, quants)}};
    }
    WOOLLY_INLINE uint32_t four(int c) const { return nibbles(quants, c); }
    WOOLLY_INLINE float value(int, int q) const { return scale.value() * float(q) + minimum.value(); }
};

struct BlockQ5_0 {
    Half scale;
    uint8_t fifth[4], quants[16];
    static consteval Layout layout() { return {{WOOLLY_PART(half, BlockQ5_0, scale)}, 5}; }
    WOOLLY_INLINE uint32_t four(int c) const { return nibbles(quants, c) | spread(word(fifth) >> c) << 4; }
    WOOLLY_INLINE float value(int, int q) const { return scale.value() * float(q - 16); }
};

struct BlockQ5_1 {
    Half scale, minimum;
    uint8_t fifth[4], quants[16];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockQ5_1, scale), WOOLLY_PART(half, BlockQ5_1, minimum)}, 5};
    }
    WOOLLY_INLINE uint32_t four(int c) const { return nibbles(quants, c) | spread(word(fifth) >> c) << 4; }
    WOOLLY_INLINE float value(int, int q) const { return scale.value() * float(q) + minimum.value(); }
};

struct BlockQ8_0 {
    Half scale;
    uint8_t quants[32];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockQ8_0, scale), WOOLLY_PART(word, BlockQ8_0, quants)}};
    }
    WOOLLY_INLINE uint32_t four(int c) const { return word(quants + c); }
    WOOLLY_INLINE float value(int, int q) const { return scale.value() * float(int8_t(q)); }
};

// Nibbles that index a table.
struct BlockIQ4_NL {
    Half scale;
    uint8_t quants[16];
    static consteval Layout layout() {
        return {{WOOLLY_PART(half, BlockIQ4_NL, scale), WOOLLY_PART(word, BlockIQ4_NL, quants)}};
    }
    WOOLLY_INLINE uint32_t four(int c) const { return nibbles(quants, c); }
    WOOLLY_INLINE float value(int, int q) const { return scale.value() * float(kIq4Values[q]); }
};

struct BlockMXFP4 {
    uint8_t exponent[1], quants[16];
    static consteval Layout layout() {
        return {{WOOLLY_PART(one, BlockMXFP4, exponent), WOOLLY_PART(word, BlockMXFP4, quants)}};
    }
    // 2^(e - 128), half of the scale: the table has twice the values. Exponents 0 and 1 give subnormals.
    WOOLLY_INLINE static float scale(int e) { return float_of(e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23); }
    WOOLLY_INLINE uint32_t four(int c) const { return nibbles(quants, c); }
    WOOLLY_INLINE float value(int, int q) const { return scale(exponent[0]) * float(kMxfp4Values[q]); }
};

// Half of an unsigned E4M3 scale: the table has twice the E2M1 values. The code 127 means 0, as in ggml; with the
// unused top bit set it is a number.
struct Ue4m3 {
    uint32_t halves[256];  // bits of f32
};
inline constexpr Ue4m3 kUe4m3 = [] {
    Ue4m3 table{};
    for (uint32_t code = 0; code < 256; ++code) {
        const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
        if (code == 127 || (exponent == 0 && mantissa == 0)) continue;
        if (exponent != 0) {
            table.halves[code] = (exponent + 119) << 23 | mantissa << 20;
        } else {  // mantissa * 2^-10
            const uint32_t top = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;
            table.halves[code] = (117 + top) << 23 | (mantissa << (23 - top) & 0x7fffffu);
        }
    }
    return table;
}();

// A scale for each 16 columns; nibbles as in MXFP4, the low ones the first 8 of the 16.
struct BlockNVFP4 {
    uint8_t scales[4], quants[32];
    static consteval Layout layout() {
        return {{WOOLLY_PART(word, BlockNVFP4, scales), WOOLLY_PART(word, BlockNVFP4, quants)}};
    }
    WOOLLY_INLINE uint32_t four(int c) const { return bits(word(quants + 8 * (c / 16) + c % 8), c / 8 % 2 * 4, 4); }
    WOOLLY_INLINE float value(int c, int q) const {
        return float_of(kUe4m3.halves[scales[c / 16]]) * float(kMxfp4Values[q]);
    }
};

// Columns as in types.h.
#define WOOLLY_BLOCKS_32(X)                        \
    X(Q4_0, 2, 32, 18, q8_32, Blocks32<Q4_0>)      \
    X(Q4_1, 3, 32, 20, q8_32, Blocks32<Q4_1>)      \
    X(Q5_0, 6, 32, 22, q8_32, Blocks32<Q5_0>)      \
    X(Q5_1, 7, 32, 24, q8_32, Blocks32<Q5_1>)      \
    X(Q8_0, 8, 32, 34, q8_32, Blocks32<Q8_0>)      \
    X(IQ4_NL, 20, 32, 18, q8_32, Blocks32<IQ4_NL>) \
    X(MXFP4, 39, 32, 17, q8_32, Blocks32<MXFP4>)   \
    X(NVFP4, 40, 64, 36, q8_32, Blocks64<NVFP4>)

}  // namespace woolly
