// Floats to float16 and bfloat16.
#pragma once

#include "quant/block.h"

namespace woolly {

// Rounds to the nearest, ties to even; overflows to infinity.
inline uint16_t float_to_half(float f) {
    const uint32_t sign = (bits_of(f) >> 16) & 0x8000u, magnitude = bits_of(f) & 0x7fffffffu;
    if (magnitude >= 0x47800000u) return uint16_t(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (magnitude < 0x38800000u) {  // subnormal: the sum's last bit is worth 2^-24
        return uint16_t(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u));
    }
    const uint32_t even = (magnitude >> 13) & 1;
    return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + even) >> 13));
}

inline uint16_t float_to_bfloat(float f) {
    const uint32_t bits = bits_of(f);
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace woolly
