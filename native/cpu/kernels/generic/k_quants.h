// K-quants: super-blocks of 256 columns with integer sub-scales. With activations quantized per 256, a super-block is
// pure integer arithmetic, finished by one conversion and one fma (two with minima).
//
// A packed super-block of a panel: f16 scales of 16 rows, f16 minima of 16 rows if the type has them, sub-scales in
// chunks of 4 bytes, row after row, then the quants group by group (cpu/weights/pack.cpp).

namespace woolly::WOOLLY_TARGET {

// Stores the sums of the activations in bytes, for the dot products with minima and offsets.
inline void planes(const int32_t* sums, int64_t n_columns, int8_t* to) {
    for (int64_t b = 0; b < n_columns / 256; ++b, sums += 16, to += kPlanes) {
        for (int i = 0; i < 16; ++i) {
            to[i] = int8_t(sums[i] & 63);
            to[16 + i] = int8_t(sums[i] >> 6);
        }
        for (int i = 0; i < 8; ++i) {
            const int32_t sum = sums[2 * i] + sums[2 * i + 1];
            to[32 + i] = int8_t(sum & 63);
            to[40 + i] = int8_t(sum >> 6);
        }
        int32_t all = 0;
        for (int i = 0; i < 16; ++i) all += sums[i];
        std::memcpy(to + kPlanesAll, &all, 4);
    }
}

// Sum over all groups of factor * (sum of the activations): factors in chunks of 4 groups, of 16 or 32 columns, and the
// planes of a super-block.
template <int n_groups, bool is_signed>
[[gnu::always_inline]] inline I32 dot_sums(const U8* factors, const int8_t* sums) {
    I32 low = izero(), high = izero();
    const auto add = [&]<int k>(I32& to, Columns planes) __attribute__((always_inline)) {
        if constexpr (is_signed) {
            to = dot4_signed<k>(to, factors[k % (n_groups / 4)], planes);
        } else {
            to = dot4<k>(to, factors[k % (n_groups / 4)], planes);
        }
    };
    if constexpr (n_groups == 8) {
        const Columns planes = columns(sums + 32);
        add.template operator()<0>(low, planes);
        add.template operator()<1>(low, planes);
        add.template operator()<2>(high, planes);
        add.template operator()<3>(high, planes);
    } else {
        const Columns first = columns(sums), second = columns(sums + 16);
        add.template operator()<0>(low, first);
        add.template operator()<1>(low, first);
        add.template operator()<2>(low, first);
        add.template operator()<3>(low, first);
        add.template operator()<0>(high, second);
        add.template operator()<1>(high, second);
        add.template operator()<2>(high, second);
        add.template operator()<3>(high, second);
    }
    I32 sum = iadd(low, ishift_left<6>(high));
    if constexpr (is_signed && kSignedOffset != 0) {
        int32_t all;
        std::memcpy(&all, sums + kPlanesAll, 4);
        sum = isub(sum, iset1(kSignedOffset * all));
    }
    return sum;
}

// The sub-scale of group g.
template <class Type, int g>
[[gnu::always_inline]] inline I32 sub_scale(const U8* scales) {
    return Type::is_signed ? signed_byte<g % 4>(scales[g / 4]) : byte<g % 4>(scales[g / 4]);
}

// For opened panels: writes f32 minima of 16 rows to `low`, sub-minima to `bytes`.
template <class Type>
[[gnu::always_inline]] inline void open_minima(const uint8_t* panel, uint8_t* low, uint8_t* bytes) {
    store(reinterpret_cast<float*>(low), halves(panel + 32));
    U8 minima[Type::n_groups / 4];
    Type::minima(panel, minima);
    for (int k = 0; k < Type::n_groups / 4; ++k) store_bytes(bytes + 64 * k, minima[k]);
}

// True if the dot of a group fits 16 bits, so that one operation multiplies it by the sub-scale and accumulates. The
// factor is then 256 times the sub-scale (one operation), and the sum, which has eight spare bits, is shifted at the
// end.
template <class Type>
constexpr bool kShortDots = kShortProducts && 256 / Type::n_groups * Type::most * 127 < 32768;

// A super-block runs in rounds of a loop: unrolled code takes several times as long to compile. A round has four
// groups, whose sub-scales are one vector, or the type's own count. unpack<u>(quants, first, use) of a type returns the
// quants of unit first + u; `first` begins a round.
template <class Type>
constexpr int kRounds = Type::n_groups / 4;
// Types with lookup tables use rounds of 64 columns: longer rounds take up to twice as long to compile and to run.
template <class Type>
constexpr int kLookupRounds = kRounds<Type> > 1 ? 4 : 1;
template <class Type>
constexpr int kUnits = 256 / Type::unit / kRounds<Type>;

// Sub-scales of rounds of `n` groups, split from those of four groups.
template <int n, int n_rounds>
[[gnu::always_inline]] inline void divide_scales(const U8* scales, U8* to) {
    each<n_rounds>([&]<int s>() __attribute__((always_inline)) {
        if constexpr (n == 2) {
            to[s] = s % 2 == 0 ? scales[s / 2] : as_bytes(field<16, 16, 0>(scales[s / 2]));
        } else {
            for (int i = 0; i < n / 4; ++i) to[n / 4 * s + i] = scales[n / 4 * s + i];
        }
    });
}

template <class Type, int M>
inline void dot_blocks256(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, float* tile) {
    constexpr int width = 256 / Type::n_groups, n = Type::n_groups / 4;
    // A single row has no rounds, which would cost a tenth; rounds of 64 columns suffice for several rows. Types with
    // lookup tables always use rounds.
    constexpr int rounds = Type::one_by_one ? kLookupRounds<Type> : M == 1 ? 1 : 4;
    constexpr int units = 256 / Type::unit / rounds;
    constexpr bool is_short = kShortDots<Type>;
    F32 acc[M];
    // As in Open32::dot.
    const int8_t *q[M], *planes[M];
    const float* scale_of[M];
    for (int m = 0; m < M; ++m) {
        acc[m] = zero();
        q[m] = rows[m].q, planes[m] = rows[m].planes, scale_of[m] = rows[m].scale;
    }
    for (int64_t b = 0; b < n_columns / 256; ++b, panel += Type::bytes) {
        U8 scales[n];
        Type::scales(panel, scales);
        I32 sum[M];
        for (int m = 0; m < M; ++m) {
            sum[m] = izero();
            constexpr int offset = Type::signed_quants ? kSignedOffset : Type::offset;
            if constexpr (offset != 0)
                sum[m] = imul(dot_sums<Type::n_groups, Type::is_signed>(scales, planes[m] + kPlanes * b),
                              iset1(-offset * (is_short ? 256 : 1)));
        }
        U8 divided[n > rounds ? n : rounds];
        divide_scales<Type::n_groups / rounds, rounds>(scales, divided);
        // A unit of fields may span two groups.
        const auto unit = [&]<int u>(int s) __attribute__((always_inline)) {
            constexpr int n_dots = Type::unit / width, step = Type::bytes / rounds, lines = (step + 63) / 64;
            for (int line = lines * u / units; line < lines * (u + 1) / units; ++line)
                prefetch(panel + 2 * kPrefetch + step * s + 64 * line);
            const U8* factors = divided + (n > rounds ? n / rounds : 1) * s;
            const int64_t at = 256 * b + 256 / rounds * s + Type::unit * u;
            I32 dot[n_dots][M];
            Columns a[Type::unit / 16][M];
            for (int m = 0; m < M; ++m) {
                for (int i = 0; i < n_dots; ++i) dot[i][m] = izero();
                for (int i = 0; i < Type::unit / 16; ++i) a[i][m] = columns(q[m] + at + 16 * i);
            }
            Type::template unpack<u>(panel + Type::quants, units * s, [&]<int v>(U8 w) __attribute__((always_inline)) {
                for (int m = 0; m < M; ++m) {
                    I32& to = dot[4 * v / width][m];
                    to = Type::signed_quants ? dot4_signed<v % 4>(to, w, a[v / 4][m]) : dot4<v % 4>(to, w, a[v / 4][m]);
                }
            });
            const auto scale = [&]<int i>() __attribute__((always_inline)) {
                constexpr int g = u * n_dots + i;
                if constexpr (is_short) {
                    const I32 factor = byte_times_256<g % 4>(factors[g / 4]);
                    for (int m = 0; m < M; ++m) sum[m] = add_short_product(sum[m], dot[i][m], factor);
                } else {
                    const I32 factor = sub_scale<Type, g>(factors);
                    for (int m = 0; m < M; ++m) sum[m] = iadd(sum[m], imul(factor, dot[i][m]));
                }
            };
            scale.template operator()<0>();
            if constexpr (n_dots == 2) scale.template operator()<1>();
        };
        in_rounds<rounds>([&](int s) __attribute__((always_inline)) {
            each<units>([&]<int u>() __attribute__((always_inline)) { unit.template operator()<u>(s); });
        });
        for (int m = 0; m < M; ++m) {
            if constexpr (is_short) sum[m] = ishift_right<8>(sum[m]);
            acc[m] = fma(to_float(sum[m]), mul(Type::scale(panel), set1(scale_of[m][b])), acc[m]);
        }
        if constexpr (Type::has_min) {
            U8 minima[n];
            Type::minima(panel, minima);
            for (int m = 0; m < M; ++m) {
                const I32 low = dot_sums<Type::n_groups, false>(minima, planes[m] + kPlanes * b);
                acc[m] = fma(to_float(low), mul(halves(panel + 32), set1(-scale_of[m][b])), acc[m]);
            }
        }
    }
    for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
}

// Calls use(place, w) for all quants of a super-block; places are 64 bytes per four columns.
template <class Type, class Use>
[[gnu::always_inline]] inline void open_quants(const uint8_t* panel, const Use& use) {
    constexpr int rounds = Type::one_by_one ? kLookupRounds<Type> : kRounds<Type>;
    constexpr int units = 256 / Type::unit / rounds;
    in_rounds<rounds>([&](int s) __attribute__((always_inline)) {
        each<units>([&]<int u>() __attribute__((always_inline)) {
            const int from = 4096 / rounds * s + 16 * Type::unit * u;
            Type::template unpack<u>(panel + Type::quants, units * s,
                                     [&]<int v>(U8 w) __attribute__((always_inline)) { use(from + 64 * v, w); });
        });
    });
}

// Six-bit scales and minima of 8 groups in 12 bytes: four scales, four minima, then nibbles of the other four of each,
// whose upper bits are the top bits of the first eight bytes.
struct Factors {
    [[gnu::always_inline]] static void scales(const uint8_t* panel, U8* to) {
        const U8 a = load_bytes(panel + 64), c = load_bytes(panel + 192);
        to[0] = low_bits(a, 63);
        to[1] = either(low_bits(c, 15), low_bits(shift_right<2>(a), 48));
    }
    [[gnu::always_inline]] static void minima(const uint8_t* panel, U8* to) {
        const U8 b = load_bytes(panel + 128), c = load_bytes(panel + 192);
        to[0] = low_bits(b, 63);
        to[1] = insert_right<4>(shift_right<2>(b), c);
    }
};
struct Q4_K : Scale, Packed<BlockQ4_K>, Factors {
    static constexpr int n_groups = 8, unit = 32, offset = 0;
    static constexpr bool is_signed = false, has_min = true, signed_quants = false;
    // 64 columns in 8 vectors: the low nibbles are the first 32, the high nibbles the others.
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, int first, const Use& use) {
        each<8>([&]<int v>() __attribute__((always_inline)) {
            const U8 both = load_bytes(p + 256 * first + 512 * (u / 2) + 64 * v);
            use.template operator()<v>(u % 2 == 0 ? low_bits(both, 15) : shift_right<4>(both));
        });
    }
};
struct Q5_K : Scale, Packed<BlockQ5_K>, Factors {
    static constexpr int n_groups = 8, unit = 32, offset = 0;
    static constexpr bool is_signed = false, has_min = true, signed_quants = false;
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, int first, const Use& use) {
        unpack_five_bits(p + 320 * (first + u), use);
    }
};
// Signed scales, quants minus 32.
struct Q6_K : Scale, Packed<BlockQ6_K> {
    static constexpr int n_groups = 16, unit = 16, offset = 32;
    static constexpr bool is_signed = true, has_min = false, signed_quants = false;
    [[gnu::always_inline]] static void scales(const uint8_t* panel, U8* to) {
        for (int k = 0; k < 4; ++k) to[k] = load_bytes(panel + 32 + 64 * k);
    }
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, int first, const Use& use) {
        unpack_six_bits(p + 192 * (first + u), use);
    }
};
// Six-bit scales minus 32 in 12 bytes: nibbles, then pairs of upper bits; quants minus 4.
struct Q3_K : Scale, Packed<BlockQ3_K> {
    static constexpr int n_groups = 16, unit = 32, offset = 4, most = 7;
    static constexpr bool is_signed = true, has_min = false, signed_quants = false;
    [[gnu::always_inline]] static void scales(const uint8_t* panel, U8* to) {
        const U8 a = load_bytes(panel + 32), b = load_bytes(panel + 96), c = load_bytes(panel + 160);
        to[0] = minus<32>(either(low_bits(a, 15), low_bits(shift_left<4>(c), 48)));
        to[1] = minus<32>(either(low_bits(b, 15), low_bits(shift_left<2>(c), 48)));
        to[2] = minus<32>(either(shift_right<4>(a), low_bits(c, 48)));
        to[3] = minus<32>(either(shift_right<4>(b), low_bits(shift_right<2>(c), 48)));
    }
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, int first, const Use& use) {
        unpack_three_bits(p + 192 * (first + u), use);
    }
};
// Four-bit scales and minima in one byte.
struct Q2_K : Scale, Packed<BlockQ2_K> {
    static constexpr int n_groups = 16, unit = 16, offset = 0, most = 3;
    static constexpr bool is_signed = false, has_min = true, signed_quants = false;
    [[gnu::always_inline]] static void scales(const uint8_t* panel, U8* to) {
        for (int k = 0; k < 4; ++k) to[k] = low_bits(load_bytes(panel + 64 + 64 * k), 15);
    }
    [[gnu::always_inline]] static void minima(const uint8_t* panel, U8* to) {
        for (int k = 0; k < 4; ++k) to[k] = shift_right<4>(load_bytes(panel + 64 + 64 * k));
    }
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, int first, const Use& use) {
        unpack_two_bits(p + 64 * (first + u), use);
    }
};

// Eight groups of 32 columns in nibbles that index a table; six-bit scales minus 32, in nibbles and pairs of upper
// bits.
struct IQ4_XS : Scale, Packed<BlockIQ4_XS> {
    static constexpr int n_groups = 8, unit = 32, offset = 0;
    static constexpr bool is_signed = true, has_min = false, signed_quants = true;
    [[gnu::always_inline]] static void scales(const uint8_t* panel, U8* to) {
        // Widens 16-bit values into the upper half of each lane (bf16 to f32).
        const U8 high = as_bytes(as_ints(load_bf16(reinterpret_cast<const uint16_t*>(panel + 32))));
        each<2>([&]<int k>() __attribute__((always_inline)) {
            constexpr int from = 16 + 8 * k;
            const int8_t* nibbles = reinterpret_cast<const int8_t*>(panel) + 64 + 32 * k;
            const U8 a = as_bytes(load_s8(nibbles)), b = as_bytes(load_s8(nibbles + 16));
            const I32 low =
                iadd(iadd(field<0, 4, 0>(a), field<4, 4, 8>(a)), iadd(field<0, 4, 16>(b), field<4, 4, 24>(b)));
            const I32 upper = iadd(iadd(field<from, 2, 4>(high), field<from + 2, 2, 12>(high)),
                                   iadd(field<from + 4, 2, 20>(high), field<from + 6, 2, 28>(high)));
            to[k] = minus<32>(as_bytes(iadd(low, upper)));
        });
    }
    // Quants of a group have the layout of an IQ4_NL block.
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, int first, const Use& use) {
        IQ4_NL::unpack(p + 256 * (first + u) - IQ4_NL::quants, use);
    }
};

// Ternary quants minus 1, without sub-scales.
struct Ternary {
    static constexpr int n_groups = 8, unit = 32, offset = 1;
    static constexpr bool is_signed = false, has_min = false, signed_quants = false, one_by_one = true;
    [[gnu::always_inline]] static F32 scale(const uint8_t* p) { return halves(p); }
    [[gnu::always_inline]] static void scales(const uint8_t*, U8* to) { to[0] = to[1] = as_bytes(iset1(0x01010101)); }
};
struct TQ1_0;
template <>
inline constexpr int kRounds<TQ1_0> = 1;
struct TQ1_0 : Ternary, Packed<BlockTQ1_0> {
    // Columns 32u to 32u + 31. The first 8 vectors hold five digits of 32 columns each, the next 4 five of 16, the last
    // one four of 4.
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, int, const Use& use) {
        each<8>([&]<int v>() __attribute__((always_inline)) {
            constexpr int powers[5] = {1, 3, 9, 27, 81}, c = 32 * u + 4 * v;
            constexpr int digit = c < 160 ? u : c < 240 ? (c - 160) / 16 : v - 4;
            constexpr int from = c < 160 ? v : c < 240 ? 8 + v % 4 : 12;
            use.template operator()<v>(trit<powers[digit]>(load_bytes(p + 64 * from)));
        });
    }
};
struct TQ2_0 : Ternary, Packed<BlockTQ2_0> {
    template <int u, class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, int first, const Use& use) {
        p += 128 * (first + u);
        unpack_two_bits(p, use);
        unpack_two_bits(p + 64, [&]<int v>(U8 w) __attribute__((always_inline)) { use.template operator()<v + 4>(w); });
    }
};

}  // namespace woolly::WOOLLY_TARGET
