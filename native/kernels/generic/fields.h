// Fields of 2, 3, 5 and 6 bits, laid over whole vectors so that most of them come out by one operation: the first ones
// have a byte (or half of one) each, and the spare top bits hold the others in parts (quant/fields.h puts them there).
//
// `use.operator()<v>(vector)` is called for v = 0, 1, ...: columns 4v to 4v + 3 of 16 rows.

namespace woolly::WOOLLY_TARGET {

// f.operator()<i>() for i = 0 to n - 1, unrolled.
template <int n, int i = 0, class F>
[[gnu::always_inline]] inline void each(const F& f) {
    if constexpr (i < n) {
        f.template operator()<i>();
        each<n, i + 1>(f);
    }
}

// Some lines at a time, as many as a core waits for at once.
[[gnu::always_inline]] inline void fetch(Ahead& ahead) {
    if (ahead.at >= ahead.end) return;
    for (int line = 0; line < 8; ++line) prefetch(ahead.at + 64 * line);
    ahead.at += 512;
}

// Nibbles: one vector -> 2, `apart` vectors from each other.
template <int v, int apart, class Use>
[[gnu::always_inline]] inline void four_bits(const uint8_t* p, const Use& use) {
    const U8 both = load_bytes(p);
    use.template operator()<v>(low_bits(both, 15));
    use.template operator()<v + apart>(shift_right<4>(both));
}

// One vector -> 4.
template <class Use>
[[gnu::always_inline]] inline void two_bits(const uint8_t* p, const Use& use) {
    const U8 a = load_bytes(p);
    use.template operator()<0>(low_bits(a, 3));
    use.template operator()<1>(low_bits(shift_right<2>(a), 3));
    use.template operator()<2>(low_bits(shift_right<4>(a), 3));
    use.template operator()<3>(shift_right<6>(a));
}

// Three vectors -> 8.
template <class Use>
[[gnu::always_inline]] inline void three_bits(const uint8_t* p, const Use& use) {
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
[[gnu::always_inline]] inline void five_bits(const uint8_t* p, const Use& use) {
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
[[gnu::always_inline]] inline void six_bits(const uint8_t* p, const Use& use) {
    const U8 a = load_bytes(p);
    use.template operator()<0>(low_bits(a, 63));
    const U8 b = load_bytes(p + 64);
    use.template operator()<1>(low_bits(b, 63));
    const U8 c = load_bytes(p + 128);
    use.template operator()<2>(low_bits(c, 63));
    use.template operator()<3>(insert_right<6>(insert_right<4>(shift_right<2>(c), b), a));
}

}  // namespace woolly::WOOLLY_TARGET
