// Fields of 2, 3, 5 and 6 bits in the order that the kernels take them apart (kernels/generic/fields.h). Each function
// works on four columns at once: a word is four bytes, each byte one value.
#pragma once

#include <cstdint>

namespace woolly {

// The low `n` bits of each byte of `word`, after a shift to the right.
constexpr uint32_t bits(uint32_t word, int shift, int n) { return (word >> shift) & (0x01010101u * ((1u << n) - 1)); }

// 4 words -> 1.
inline void two_bits(const uint32_t* w, uint32_t* out) { out[0] = w[0] | w[1] << 2 | w[2] << 4 | w[3] << 6; }

// 8 words -> 3.
inline void three_bits(const uint32_t* w, uint32_t* out) {
    out[0] = w[0] | w[1] << 3 | bits(w[6], 1, 2) << 6;
    out[1] = w[2] | w[3] << 3 | bits(w[6], 0, 1) << 7 | bits(w[7], 0, 1) << 6;
    out[2] = w[4] | w[5] << 3 | bits(w[7], 1, 2) << 6;
}

// 8 words -> 5.
inline void five_bits(const uint32_t* w, uint32_t* out) {
    out[0] = w[0] | bits(w[5], 2, 3) << 5;
    out[1] = w[1] | bits(w[5], 0, 2) << 6 | bits(w[7], 1, 1) << 5;
    out[2] = w[2] | bits(w[6], 2, 3) << 5;
    out[3] = w[3] | bits(w[6], 0, 2) << 6 | bits(w[7], 0, 1) << 5;
    out[4] = w[4] | bits(w[7], 2, 3) << 5;
}

// 4 words -> 3.
inline void six_bits(const uint32_t* w, uint32_t* out) {
    for (int i = 0; i < 3; ++i) out[i] = w[i] | bits(w[3], 2 * i, 2) << 6;
}

}  // namespace woolly
