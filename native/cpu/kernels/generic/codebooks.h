// Quants that are points of a codebook: 16 rows look up 8 (or 4) columns at a time and negate them by sign bits. The
// dots are in k_quants.h.
//
// A packed super-block of a panel: f16 scales of 16 rows (not in IQ1_M, whose float scale is spread over the
// sub-scales), then the parts of quant/codebooks.h in words, row after row.

namespace woolly::WOOLLY_TARGET {

// Word k of 16 rows, from byte `at` of each row's block on.
[[gnu::always_inline]] inline U8 word_of(const uint8_t* panel, int at, int k) {
    return load_bytes(panel + kPanel * at + 64 * k);
}

// 2 * number + 1 in the bytes of a lane, for four n-bit numbers `step` bits apart from bit `from` on.
template <int from, int n, int step>
[[gnu::always_inline]] inline U8 odd_factors(U8 a) {
    const I32 low = iadd(field<from, n, 1>(a), field<from + step, n, 9>(a));
    const I32 high = iadd(field<from + 2 * step, n, 17>(a), field<from + 3 * step, n, 25>(a));
    return as_bytes(iadd(iadd(low, high), iset1(0x01010101)));
}
// Odd factors from the top four bits of four words.
[[gnu::always_inline]] inline U8 odd_factors(U8 a, U8 b, U8 c, U8 d) {
    const I32 low = iadd(field<28, 4, 1>(a), field<28, 4, 9>(b));
    const I32 high = iadd(field<28, 4, 17>(c), field<28, 4, 25>(d));
    return as_bytes(iadd(iadd(low, high), iset1(0x01010101)));
}

// 128 for a nibble with an odd number of bits. Adding it twice overflows to 0.
inline constexpr int8_t kParity[16] = {0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0};
// Seven bits in each byte, and their parity as the eighth.
[[gnu::always_inline]] inline U8 eight_signs(I32 seven) {
    const U8 bits = as_bytes(seven);
    return plus(plus(bits, lookup(kParity, low_bits(bits, 15))), lookup(kParity, shift_right<4>(bits)));
}
// Four times seven bits of a word.
[[gnu::always_inline]] inline U8 signs_of(U8 a) {
    return eight_signs(
        iadd(iadd(field<0, 7, 0>(a), field<7, 7, 8>(a)), iadd(field<14, 7, 16>(a), field<21, 7, 24>(a))));
}

// The float scale is `eighths` eighths of the file's, which makes all quants and sub-scales integers.
template <class Block, int groups, int eighths>
struct Points : Packed<Block> {
    static constexpr int quants = 0, n_groups = groups, unit = 32, offset = 0;
    static constexpr bool is_signed = false, has_min = false, signed_quants = true, one_by_one = true;
    [[gnu::always_inline]] static F32 scale(const uint8_t* panel) {
        return mul(halves(panel), set1(0.125f * float(eighths)));
    }
};

// 32 columns: four points of 8, with signs.
template <class Rank, class Use>
[[gnu::always_inline]] inline void four_points(const uint64_t* book, U8 signs, const Rank& rank, const Use& use) {
    each<4>([&]<int k>() __attribute__((always_inline)) {
        U8 low, high;
        look_up(book, rank.template operator()<k>(), &low, &high);
        use.template operator()<2 * k>(negate<2 * k>(low, signs));
        use.template operator()<2 * k + 1>(negate<2 * k + 1>(high, signs));
    });
}

// Bits of units from `first` on, from a word with 8 bits for each of four units; an even unit begins a round.
[[gnu::always_inline]] inline U8 units_of(U8 word, int first) {
    return first % 4 == 0 ? word : as_bytes(field<16, 16, 0>(word));
}

struct IQ2_XXS : Points<BlockIQ2_XXS, 8, 1> {
    [[gnu::always_inline]] static void scales(const uint8_t* panel, U8* to) {
        for (int k = 0; k < 2; ++k) {
            const uint8_t* p = panel + 512 * k;
            to[k] = odd_factors(word_of(p, 2, 1), word_of(p, 2, 3), word_of(p, 2, 5), word_of(p, 2, 7));
        }
    }
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* panel, int first, const Use& use) {
        panel += 128 * first;
        const U8 ranks = word_of(panel, 2, 2 * u), signs = signs_of(word_of(panel, 2, 2 * u + 1));
        const auto rank = [&]<int k>() __attribute__((always_inline)) { return byte<k>(ranks); };
        four_points(kIq2Xxs.words, signs, rank, use);
    }
};

struct IQ2_XS : Points<BlockIQ2_XS, 16, 1> {
    [[gnu::always_inline]] static void scales(const uint8_t* panel, U8* to) {
        for (int k = 0; k < 2; ++k) {
            const U8 nibbles = word_of(panel, 66, k);
            to[2 * k] = odd_factors<0, 4, 4>(nibbles);
            to[2 * k + 1] = odd_factors<16, 4, 4>(nibbles);
        }
    }
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* panel, int first, const Use& use) {
        const U8 a = word_of(panel, 2, 2 * (first + u)), b = word_of(panel, 2, 2 * (first + u) + 1);
        const U8 signs = eight_signs(
            iadd(iadd(field<9, 7, 0>(a), field<25, 7, 8>(a)), iadd(field<9, 7, 16>(b), field<25, 7, 24>(b))));
        const auto rank = [&]<int k>()
                              __attribute__((always_inline)) { return field<16 * (k % 2), 9, 0>(k < 2 ? a : b); };
        four_points(kIq2Xs.words, signs, rank, use);
    }
};

struct IQ2_S;
template <>
inline constexpr int kRounds<IQ2_S> = 2;  // upper bits of four units are a word
struct IQ2_S : Points<BlockIQ2_S, 16, 1> {
    [[gnu::always_inline]] static void scales(const uint8_t* panel, U8* to) {
        for (int k = 0; k < 2; ++k) {
            const U8 nibbles = word_of(panel, 74, k);
            to[2 * k] = odd_factors<0, 4, 4>(nibbles);
            to[2 * k + 1] = odd_factors<16, 4, 4>(nibbles);
        }
    }
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* panel, int first, const Use& use) {
        const U8 low = word_of(panel, 2, first + u), signs = word_of(panel, 34, first + u),
                 high = units_of(word_of(panel, 66, first / 4), first);
        const auto rank = [&]<int k>() __attribute__((always_inline)) {
            return iadd(byte<k>(low), field<8 * u + 2 * k, 2, 8>(high));
        };
        four_points(kIq2S.words, signs, rank, use);
    }
};

struct IQ3_XXS : Points<BlockIQ3_XXS, 8, 2> {
    [[gnu::always_inline]] static void scales(const uint8_t* panel, U8* to) {
        for (int k = 0; k < 2; ++k) {
            const uint8_t* p = panel + 256 * k;
            to[k] = odd_factors(word_of(p, 66, 0), word_of(p, 66, 1), word_of(p, 66, 2), word_of(p, 66, 3));
        }
    }
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* panel, int first, const Use& use) {
        const U8 a = word_of(panel, 2, 2 * (first + u)), b = word_of(panel, 2, 2 * (first + u) + 1),
                 signs = signs_of(word_of(panel, 66, first + u));
        each<8>([&]<int v>() __attribute__((always_inline)) {
            use.template operator()<v>(negate<v>(look_up(kIq3Xxs.words, byte<v % 4>(v < 4 ? a : b)), signs));
        });
    }
};

struct IQ3_S : Points<BlockIQ3_S, 8, 8> {
    [[gnu::always_inline]] static void scales(const uint8_t* panel, U8* to) {
        const U8 nibbles = word_of(panel, 106, 0);
        to[0] = odd_factors<0, 4, 4>(nibbles);
        to[1] = odd_factors<16, 4, 4>(nibbles);
    }
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* panel, int first, const Use& use) {
        const U8 a = word_of(panel, 2, 2 * (first + u)), b = word_of(panel, 2, 2 * (first + u) + 1);
        const U8 high = units_of(word_of(panel, 66, first / 4), first), signs = word_of(panel, 74, first + u);
        each<8>([&]<int v>() __attribute__((always_inline)) {
            const I32 rank = iadd(byte<v % 4>(v < 4 ? a : b), field<8 * u + v, 1, 8>(high));
            use.template operator()<v>(negate<v>(look_up(kIq3S.words, rank), signs));
        });
    }
};

// 1 in all bytes of a lane, or -1 if the bit is set.
template <int bit>
[[gnu::always_inline]] inline U8 one_or_less(U8 a) {
    return either(as_bytes(isub(izero(), field<bit, 1, 0>(a))), as_bytes(iset1(0x01010101)));
}

struct IQ1_S : Points<BlockIQ1_S, 8, 1> {
    [[gnu::always_inline]] static void scales(const uint8_t* panel, U8* to) {
        for (int k = 0; k < 2; ++k) {
            const U8 a = word_of(panel, 34, 2 * k), b = word_of(panel, 34, 2 * k + 1);
            const I32 low = iadd(field<12, 3, 1>(a), field<28, 3, 9>(a));
            const I32 high = iadd(field<12, 3, 17>(b), field<28, 3, 25>(b));
            to[k] = as_bytes(iadd(iadd(low, high), iset1(0x01010101)));
        }
    }
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* panel, int first, const Use& use) {
        constexpr int from = 16 * (u % 2);
        const U8 low = word_of(panel, 2, first + u), group = word_of(panel, 34, (first + u) / 2);
        const U8 delta = one_or_less<from + 15>(group);
        each<4>([&]<int k>() __attribute__((always_inline)) {
            U8 left, right;
            look_up(kIq1.words, iadd(byte<k>(low), field<from + 3 * k, 3, 8>(group)), &left, &right);
            use.template operator()<2 * k>(plus(left, delta));
            use.template operator()<2 * k + 1>(plus(right, delta));
        });
    }
};

struct IQ1_M : Points<BlockIQ1_M, 16, 1> {
    static F32 scale(const uint8_t* panel) {
        const U8 a = word_of(panel, 48, 0), b = word_of(panel, 48, 1);
        int32_t lanes[kPanel];
        uint16_t bits[kPanel];
        store(lanes, iadd(iadd(field<12, 4, 0>(a), field<28, 4, 4>(a)), iadd(field<12, 4, 8>(b), field<28, 4, 12>(b))));
        for (int r = 0; r < kPanel; ++r) bits[r] = uint16_t(lanes[r]);
        return mul(load_f16(bits), set1(0.125f));
    }
    [[gnu::always_inline]] static void scales(const uint8_t* panel, U8* to) {
        for (int k = 0; k < 2; ++k) {
            const U8 fields = word_of(panel, 48, k);
            to[2 * k] = odd_factors<0, 3, 3>(fields);
            to[2 * k + 1] = odd_factors<16, 3, 3>(fields);
        }
    }
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* panel, int first, const Use& use) {
        const U8 low = word_of(panel, 0, first + u), nibbles = word_of(panel, 32, first / 2);
        each<4>([&]<int k>() __attribute__((always_inline)) {
            constexpr int from = 16 * u + 4 * k;
            const U8 delta = one_or_less<from + 3>(nibbles);
            U8 left, right;
            look_up(kIq1.words, iadd(byte<k>(low), field<from, 3, 8>(nibbles)), &left, &right);
            use.template operator()<2 * k>(plus(left, delta));
            use.template operator()<2 * k + 1>(plus(right, delta));
        });
    }
};

}  // namespace woolly::WOOLLY_TARGET
