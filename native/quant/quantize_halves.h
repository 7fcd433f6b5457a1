// float16 and bfloat16, without branches where whole rows are converted.
#pragma once

#include <cstdint>
#include <cstring>

namespace woolly {

inline uint32_t bits_of(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits;
}

inline float float_of(uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

inline float half_to_float(uint16_t h) {
    const uint32_t magnitude = h & 0x7fffu, sign = uint32_t(h & 0x8000u) << 16;
    // The product moves the exponent's bias from 15 to 127 and makes subnormal numbers normal.
    const uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f);
    const uint32_t special = 0x7f800000u | (magnitude << 13);
    return float_of(sign | (magnitude >= 0x7c00u ? special : finite));
}

// Nearest, ties to even; what is too large becomes infinite.
inline uint16_t float_to_half(float f) {
    const uint32_t sign = (bits_of(f) >> 16) & 0x8000u, magnitude = bits_of(f) & 0x7fffffffu;
    if (magnitude >= 0x47800000u) return uint16_t(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (magnitude < 0x38800000u) {  // subnormal: the sum's last bit is worth 2^-24
        return uint16_t(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u));
    }
    const uint32_t even = (magnitude >> 13) & 1;
    return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + even) >> 13));
}

inline float bfloat_to_float(uint16_t h) { return float_of(uint32_t(h) << 16); }

inline uint16_t float_to_bfloat(float f) {
    const uint32_t bits = bits_of(f);
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace woolly
