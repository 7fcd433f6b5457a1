// Fields of 2, 3, 5 and 6 bits in vectors, in both directions. The first fields have a byte (or half of one) each and
// are extracted by one operation; the spare top bits of these bytes hold parts of the other fields.
//
// Packing works on words: four columns of one row, a byte each. Unpacking works on vectors of one instruction set,
// where a word is a lane. Both use the same order: pack_N_bits packs w[v] into out[i]; unpack_N_bits unpacks it from
// vector i and calls `use.operator()<v>` with columns 4v to 4v + 3 of 16 rows.
#pragma once

#include "quant/block.h"

namespace woolly {

// Columns that are packed together: 4 words -> 1, 8 -> 3, 8 -> 5, 4 -> 3.
consteval int field_columns(int field_bits) { return field_bits % 2 == 0 ? 16 : 32; }

WOOLLY_INLINE void pack_two_bits(const uint32_t* w, uint32_t* out) {
    out[0] = w[0] | w[1] << 2 | w[2] << 4 | w[3] << 6;
}

WOOLLY_INLINE void pack_three_bits(const uint32_t* w, uint32_t* out) {
    out[0] = w[0] | w[1] << 3 | bits(w[6], 1, 2) << 6;
    out[1] = w[2] | w[3] << 3 | bits(w[6], 0, 1) << 7 | bits(w[7], 0, 1) << 6;
    out[2] = w[4] | w[5] << 3 | bits(w[7], 1, 2) << 6;
}

WOOLLY_INLINE void pack_five_bits(const uint32_t* w, uint32_t* out) {
    out[0] = w[0] | bits(w[5], 2, 3) << 5;
    out[1] = w[1] | bits(w[5], 0, 2) << 6 | bits(w[7], 1, 1) << 5;
    out[2] = w[2] | bits(w[6], 2, 3) << 5;
    out[3] = w[3] | bits(w[6], 0, 2) << 6 | bits(w[7], 0, 1) << 5;
    out[4] = w[4] | bits(w[7], 2, 3) << 5;
}

WOOLLY_INLINE void pack_six_bits(const uint32_t* w, uint32_t* out) {
    for (int i = 0; i < 3; ++i) out[i] = w[i] | bits(w[3], 2 * i, 2) << 6;
}

}  // namespace woolly

#ifdef WOOLLY_TARGET
namespace woolly::WOOLLY_TARGET {

// Nibbles: one vector -> 2, `apart` vectors from each other.
template <int v, int apart, class Use>
[[gnu::always_inline]] inline void four_bits(const uint8_t* p, const Use& use) {
    const U8 both = load_bytes(p);
    use.template operator()<v>(low_bits(both, 15));
    use.template operator()<v + apart>(shift_right<4>(both));
}

// One vector -> 4.
template <class Use>
[[gnu::always_inline]] inline void unpack_two_bits(const uint8_t* p, const Use& use) {
    const U8 a = load_bytes(p);
    use.template operator()<0>(low_bits(a, 3));
    use.template operator()<1>(low_bits(shift_right<2>(a), 3));
    use.template operator()<2>(low_bits(shift_right<4>(a), 3));
    use.template operator()<3>(shift_right<6>(a));
}

// Three vectors -> 8.
template <class Use>
[[gnu::always_inline]] inline void unpack_three_bits(const uint8_t* p, const Use& use) {
    const U8 a = load_bytes(p), b = load_bytes(p + 64);
    use.template operator()<0>(low_bits(a, 7));
    use.template operator()<1>(low_bits(shift_right<3>(a), 7));
    use.template operator()<6>(insert_right<7>(shift_right<5>(a), b));
    use.template operator()<2>(low_bits(b, 7));
    use.template operator()<3>(low_bits(shift_right<3>(b), 7));
    const U8 c = load_bytes(p + 128);
    use.template operator()<7>(insert_right<7>(shift_right<5>(c), shift_left<1>(b)));
    use.template operator()<4>(low_bits(c, 7));
    use.template operator()<5>(low_bits(shift_right<3>(c), 7));
}

// Five vectors -> 8.
template <class Use>
[[gnu::always_inline]] inline void unpack_five_bits(const uint8_t* p, const Use& use) {
    const U8 a = load_bytes(p), b = load_bytes(p + 64);
    use.template operator()<0>(low_bits(a, 31));
    use.template operator()<5>(insert_right<6>(shift_right<3>(a), b));
    use.template operator()<1>(low_bits(b, 31));
    const U8 e = load_bytes(p + 256);
    use.template operator()<4>(low_bits(e, 31));
    const U8 upper = insert_right<6>(shift_right<3>(e), shift_left<2>(b));
    const U8 d = load_bytes(p + 192);
    use.template operator()<7>(insert_right<7>(upper, shift_left<2>(d)));
    use.template operator()<3>(low_bits(d, 31));
    const U8 c = load_bytes(p + 128);
    use.template operator()<6>(insert_right<6>(shift_right<3>(c), d));
    use.template operator()<2>(low_bits(c, 31));
}

// Three vectors -> 4.
template <class Use>
[[gnu::always_inline]] inline void unpack_six_bits(const uint8_t* p, const Use& use) {
    const U8 a = load_bytes(p);
    use.template operator()<0>(low_bits(a, 63));
    const U8 b = load_bytes(p + 64);
    use.template operator()<1>(low_bits(b, 63));
    const U8 c = load_bytes(p + 128);
    use.template operator()<2>(low_bits(c, 63));
    use.template operator()<3>(insert_right<6>(insert_right<4>(shift_right<2>(c), b), a));
}

}  // namespace woolly::WOOLLY_TARGET
#endif
