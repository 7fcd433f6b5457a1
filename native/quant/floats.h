// Float weights, each a block: `value()` is the weight. The kernels are in cpu/kernels/generic/floats.h.
#pragma once

#include "quant/block.h"

namespace woolly {

struct BlockF32 {
    uint8_t bytes[4];
    static consteval Layout layout() { return {{WOOLLY_PART(word, BlockF32, bytes)}}; }
    WOOLLY_INLINE float value() const { return float_of(word(bytes)); }
};

struct BlockF16 {
    Half half;
    static consteval Layout layout() { return {{WOOLLY_PART(half, BlockF16, half)}}; }
    WOOLLY_INLINE float value() const { return half.value(); }
};

struct BlockBF16 {
    uint8_t bytes[2];
    static consteval Layout layout() { return {{WOOLLY_PART(two, BlockBF16, bytes)}}; }
    WOOLLY_INLINE float value() const { return float_of(uint32_t(bytes[0]) << 16 | uint32_t(bytes[1]) << 24); }
};

// Columns as in types.h.
#define WOOLLY_FLOATS(X)                  \
    X(F32, 0, 1, 4, f32, Floats<LoadF32>) \
    X(F16, 1, 1, 2, f32, Floats<LoadF16>) \
    X(BF16, 30, 1, 2, f32, Floats<LoadBf16>)

}  // namespace woolly
