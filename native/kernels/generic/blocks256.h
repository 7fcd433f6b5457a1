// The k-quants: super-blocks of 256 columns with integer sub-scales. With activations quantized per 256, a super-block
// is pure integer arithmetic; one conversion and one fma (two with minima) end it.
//
// A packed super-block of a panel: f16 scales of 16 rows, f16 minima of 16 rows where the type has them, sub-scales
// transposed (one byte of each row), then the quants in chunks of 4 bytes, row after row (quant/pack.cpp).

namespace woolly::WOOLLY_TARGET {

// Dots of 16 columns, each vector made by `unpack.at<i>()` for columns 4i to 4i + 3.
template <int M, class Unpack>
[[gnu::always_inline]] inline void dot16(const ActivationRow* rows, int64_t column, const Unpack& unpack, I32* dot) {
    Columns a[M];
    for (int m = 0; m < M; ++m) {
        a[m] = columns(rows[m].q + column);
        dot[m] = izero();
    }
    const auto add = [&]<int i>() __attribute__((always_inline)) {
        const U8 w = unpack.template operator()<i>();
        for (int m = 0; m < M; ++m) dot[m] = dot4<i>(dot[m], w, a[m]);
    };
    add.template operator()<0>();
    add.template operator()<1>();
    add.template operator()<2>();
    add.template operator()<3>();
}

// sum += scale * (dot - offset * sum of the activations), for one sub-group of 16 columns.
template <int M>
[[gnu::always_inline]] inline void add_16(I32* sum, const I32* dot, const I32 scale, int offset,
                                          const ActivationRow* rows, int64_t column) {
    for (int m = 0; m < M; ++m) {
        const I32 shifted = offset == 0 ? dot[m] : isub(dot[m], iset1(offset * rows[m].sums[column / 16]));
        sum[m] = iadd(sum[m], imul(scale, shifted));
    }
}

template <int M>
[[gnu::always_inline]] inline void finish(F32* acc, const I32* sum, const F32 d, const ActivationRow* rows, int64_t b,
                                          float sign) {
    for (int m = 0; m < M; ++m) acc[m] = fma(to_float(sum[m]), mul(d, set1(sign * rows[m].scale[b])), acc[m]);
}

// Six-bit scales and minima of 8 groups, 12 bytes a row, transposed: byte i of row r is p[16 * i + r].
[[gnu::always_inline]] inline void six_bits(const uint8_t* p, uint8_t* scales, uint8_t* minima) {
    for (int i = 0; i < 64; ++i) {
        scales[i] = p[i] & 63;
        minima[i] = p[64 + i] & 63;
        scales[64 + i] = uint8_t((p[128 + i] & 15) | ((p[i] >> 6) << 4));
        minima[64 + i] = uint8_t((p[128 + i] >> 4) | ((p[64 + i] >> 6) << 4));
    }
}

// Q4_K and Q5_K: 4 chunks of 64 columns, low nibbles the first 32, high ones the others; a fifth bit per group.
template <bool fifth>
struct Q45_K {
    static constexpr int bytes = fifth ? 2816 : 2304;

    template <int M>
    static void dot(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, float* tile) {
        F32 acc[M];
        for (int m = 0; m < M; ++m) acc[m] = zero();
        for (int64_t b = 0; b < n_columns / 256; ++b, panel += bytes) {
            alignas(64) uint8_t scales[128], minima[128];
            six_bits(panel + 64, scales, minima);
            I32 sum[M];
            for (int m = 0; m < M; ++m) sum[m] = izero();
            chunk<M, 0>(panel, scales, rows, b, sum);
            chunk<M, 1>(panel, scales, rows, b, sum);
            chunk<M, 2>(panel, scales, rows, b, sum);
            chunk<M, 3>(panel, scales, rows, b, sum);
            finish<M>(acc, sum, halves(panel), rows, b, 1.0f);
            for (int m = 0; m < M; ++m) sum[m] = izero();
            for (int g = 0; g < 8; ++g) {
                const I32 minimum = load_u8(minima + 16 * g);
                for (int m = 0; m < M; ++m) {
                    const int32_t* sums = rows[m].sums + 16 * b + 2 * g;
                    sum[m] = iadd(sum[m], imul(minimum, iset1(sums[0] + sums[1])));
                }
            }
            finish<M>(acc, sum, halves(panel + 32), rows, b, -1.0f);
        }
        for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
    }

    template <int M, int c>
    [[gnu::always_inline]] static void chunk(const uint8_t* panel, const uint8_t* scales, const ActivationRow* rows,
                                             int64_t b, I32* sum) {
        const uint8_t* quants = panel + (fifth ? 768 : 256) + 512 * c;
        for (int line = 0; line < 8; ++line) __builtin_prefetch(quants + kPrefetch + 64 * line);
        I32 first[M], second[M];
        for (int m = 0; m < M; ++m) first[m] = second[m] = izero();
        half<M, c, 0>(panel, quants, rows, 256 * b + 64 * c, first, second);
        half<M, c, 1>(panel, quants, rows, 256 * b + 64 * c, first, second);
        const I32 s0 = load_u8(scales + 32 * c), s1 = load_u8(scales + 32 * c + 16);
        for (int m = 0; m < M; ++m) sum[m] = iadd(iadd(sum[m], imul(s0, first[m])), imul(s1, second[m]));
    }

    // 16 columns of each of the two groups of a chunk.
    template <int M, int c, int h>
    [[gnu::always_inline]] static void half(const uint8_t* panel, const uint8_t* quants, const ActivationRow* rows,
                                            int64_t column, I32* first, I32* second) {
        Columns a0[M], a1[M];
        for (int m = 0; m < M; ++m) {
            a0[m] = columns(rows[m].q + column + 16 * h);
            a1[m] = columns(rows[m].q + column + 32 + 16 * h);
        }
        const auto add = [&]<int i>() __attribute__((always_inline)) {
            Pair w = nibbles(quants + 64 * (4 * h + i));
            if constexpr (fifth) {
                const U8 plane = load_bytes(panel + 256 + 64 * (4 * h + i));
                w = {either(w.low, fifth_bit<2 * c>(plane)), either(w.high, fifth_bit<2 * c + 1>(plane))};
            }
            for (int m = 0; m < M; ++m) {
                first[m] = dot4<i>(first[m], w.low, a0[m]);
                second[m] = dot4<i>(second[m], w.high, a1[m]);
            }
        };
        add.template operator()<0>();
        add.template operator()<1>();
        add.template operator()<2>();
        add.template operator()<3>();
    }
};
using Q4_K = Q45_K<false>;
using Q5_K = Q45_K<true>;

// Q6_K: two halves of 128 columns in four quarters of 32; 4 low bits and 2 high bits, minus 32. A byte holds the low
// bits of a column in its quarter and of the one two quarters on.
struct Q6_K {
    template <int M>
    static void dot(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, float* tile) {
        F32 acc[M];
        for (int m = 0; m < M; ++m) acc[m] = zero();
        for (int64_t b = 0; b < n_columns / 256; ++b, panel += 3360) {
            const int8_t* scales = reinterpret_cast<const int8_t*>(panel + 32);
            I32 sum[M];
            for (int m = 0; m < M; ++m) sum[m] = izero();
            for (int h = 0; h < 2; ++h) {
                const uint8_t* high = panel + 288 + 512 * h;
                const uint8_t* low = panel + 1312 + 1024 * h;
                for (int line = 0; line < 8; ++line) {
                    __builtin_prefetch(high + kPrefetch + 64 * line);
                    __builtin_prefetch(low + kPrefetch + 64 * line);
                    __builtin_prefetch(low + kPrefetch + 512 + 64 * line);
                }
                for (int s = 0; s < 2; ++s) {  // which 16 columns of each quarter
                    pair<M, 0>(sum, low + 256 * s, high + 256 * s, scales + 128 * h + 16 * s, rows,
                               256 * b + 128 * h + 16 * s);
                    pair<M, 1>(sum, low + 256 * s, high + 256 * s, scales + 128 * h + 16 * s, rows,
                               256 * b + 128 * h + 16 * s);
                }
            }
            finish<M>(acc, sum, halves(panel), rows, b, 1.0f);
        }
        for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
    }

    // Quarters q and q + 2.
    template <int M, int q>
    [[gnu::always_inline]] static void pair(I32* sum, const uint8_t* low, const uint8_t* high, const int8_t* scales,
                                            const ActivationRow* rows, int64_t column) {
        I32 first[M], second[M];
        Columns a0[M], a1[M];
        for (int m = 0; m < M; ++m) {
            a0[m] = columns(rows[m].q + column + 32 * q);
            a1[m] = columns(rows[m].q + column + 32 * q + 64);
            first[m] = second[m] = izero();
        }
        const auto add = [&]<int i>() __attribute__((always_inline)) {
            const Pair four = nibbles(low + 512 * q + 64 * i);
            const U8 two = load_bytes(high + 64 * i);
            // Bits 2q, 2q + 1 and 2q + 4, 2q + 5, each moved to bits 4 and 5.
            const U8 w0 = either(four.low, low_bits(q == 0 ? shift_left<4>(two) : shift_left<2>(two), 0x30));
            const U8 w1 = either(four.high, low_bits(q == 0 ? two : shift_right<2>(two), 0x30));
            for (int m = 0; m < M; ++m) {
                first[m] = dot4<i>(first[m], w0, a0[m]);
                second[m] = dot4<i>(second[m], w1, a1[m]);
            }
        };
        add.template operator()<0>();
        add.template operator()<1>();
        add.template operator()<2>();
        add.template operator()<3>();
        add_16<M>(sum, first, load_s8(scales + 32 * q), 32, rows, column + 32 * q);
        add_16<M>(sum, second, load_s8(scales + 32 * q + 64), 32, rows, column + 32 * q + 64);
    }
};

// Q3_K: two halves of 128 columns; 2 low bits in shifts of one byte, a high bit in a mask, minus 4.
struct Q3_K {
    template <int M>
    static void dot(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, float* tile) {
        F32 acc[M];
        for (int m = 0; m < M; ++m) acc[m] = zero();
        for (int64_t b = 0; b < n_columns / 256; ++b, panel += 1760) {
            for (int line = 0; line < 1760; line += 64) __builtin_prefetch(panel + kPrefetch + line);
            alignas(64) int8_t scales[256];
            unpack_scales(panel + 32, scales);
            I32 sum[M];
            for (int m = 0; m < M; ++m) sum[m] = izero();
            const auto all = [&]<int s>()
                                 __attribute__((always_inline)) { group<M, s>(sum, panel, scales, rows, 256 * b); };
            all.template operator()<0>();
            all.template operator()<1>();
            all.template operator()<2>();
            all.template operator()<3>();
            all.template operator()<4>();
            all.template operator()<5>();
            all.template operator()<6>();
            all.template operator()<7>();
            finish<M>(acc, sum, halves(panel), rows, b, 1.0f);
        }
        for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
    }

    // Sixteen six-bit scales in 12 bytes: low nibbles, high nibbles, then pairs of upper bits; minus 32.
    [[gnu::always_inline]] static void unpack_scales(const uint8_t* p, int8_t* scales) {
        for (int i = 0; i < 128; ++i) {
            const int shift = i < 64 ? 0 : 2;
            scales[i] = int8_t(((p[i] & 15) | (((p[128 + i % 64] >> shift) & 3) << 4)) - 32);
            scales[128 + i] = int8_t(((p[i] >> 4) | (((p[128 + i % 64] >> (shift + 4)) & 3) << 4)) - 32);
        }
    }

    // Group s of 32 columns: half s / 4, bits 2 * (s % 4), bit s of the mask.
    template <int M, int s>
    [[gnu::always_inline]] static void group(I32* sum, const uint8_t* panel, const int8_t* scales,
                                             const ActivationRow* rows, int64_t column) {
        const uint8_t* mask = panel + 224;
        const uint8_t* low = panel + 736 + 512 * (s / 4);
        for (int part = 0; part < 2; ++part) {
            I32 dot[M];
            dot16<M>(
                rows, column + 32 * s + 16 * part,
                [&]<int i>() __attribute__((always_inline)) {
                    const int at = 64 * (4 * part + i);
                    const U8 two = low_bits(shift_right<2 * (s % 4)>(load_bytes(low + at)), 3);
                    const U8 one = low_bits(shift_right<s>(load_bytes(mask + at)), 1);
                    return either(two, shift_left<2>(one));
                },
                dot);
            add_16<M>(sum, dot, load_s8(scales + 32 * s + 16 * part), 4, rows, column + 32 * s + 16 * part);
        }
    }
};

// Q2_K: as Q3_K without the mask; four-bit scales and minima in one byte per 16 columns.
struct Q2_K {
    template <int M>
    static void dot(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, float* tile) {
        F32 acc[M];
        for (int m = 0; m < M; ++m) acc[m] = zero();
        for (int64_t b = 0; b < n_columns / 256; ++b, panel += 1344) {
            for (int line = 0; line < 1344; line += 64) __builtin_prefetch(panel + kPrefetch + line);
            alignas(64) uint8_t scales[256], minima[256];
            for (int i = 0; i < 256; ++i) scales[i] = panel[64 + i] & 15, minima[i] = panel[64 + i] >> 4;
            I32 sum[M];
            for (int m = 0; m < M; ++m) sum[m] = izero();
            const auto all = [&]<int s>()
                                 __attribute__((always_inline)) { group<M, s>(sum, panel, scales, rows, 256 * b); };
            all.template operator()<0>();
            all.template operator()<1>();
            all.template operator()<2>();
            all.template operator()<3>();
            all.template operator()<4>();
            all.template operator()<5>();
            all.template operator()<6>();
            all.template operator()<7>();
            finish<M>(acc, sum, halves(panel), rows, b, 1.0f);
            for (int m = 0; m < M; ++m) {
                sum[m] = izero();
                for (int s = 0; s < 16; ++s)
                    sum[m] = iadd(sum[m], imul(load_u8(minima + 16 * s), iset1(rows[m].sums[16 * b + s])));
            }
            finish<M>(acc, sum, halves(panel + 32), rows, b, -1.0f);
        }
        for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
    }

    template <int M, int s>
    [[gnu::always_inline]] static void group(I32* sum, const uint8_t* panel, const uint8_t* scales,
                                             const ActivationRow* rows, int64_t column) {
        const uint8_t* low = panel + 320 + 512 * (s / 4);
        for (int part = 0; part < 2; ++part) {
            I32 dot[M];
            dot16<M>(
                rows, column + 32 * s + 16 * part,
                [&]<int i>() __attribute__((always_inline)) {
                    return low_bits(shift_right<2 * (s % 4)>(load_bytes(low + 64 * (4 * part + i))), 3);
                },
                dot);
            add_16<M>(sum, dot, load_u8(scales + 32 * s + 16 * part), 0, rows, column + 32 * s + 16 * part);
        }
    }
};

// IQ4_XS: eight groups of 32 columns in nibbles that index a table; six-bit scales minus 32.
struct IQ4_XS {
    template <int M>
    static void dot(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, float* tile) {
        F32 acc[M];
        for (int m = 0; m < M; ++m) acc[m] = zero();
        for (int64_t b = 0; b < n_columns / 256; ++b, panel += 2176) {
            I32 sum[M];
            for (int m = 0; m < M; ++m) sum[m] = izero();
            for (int g = 0; g < 8; ++g) {
                alignas(64) int8_t scales[16];
                for (int r = 0; r < 16; ++r) {
                    uint16_t high;
                    std::memcpy(&high, panel + 32 + 2 * r, 2);
                    const int low = (panel[64 + 16 * (g / 2) + r] >> (4 * (g % 2))) & 15;
                    scales[r] = int8_t((low | (((high >> (2 * g)) & 3) << 4)) - 32);
                }
                const uint8_t* quants = panel + 128 + 256 * g;
                for (int line = 0; line < 4; ++line) __builtin_prefetch(quants + kPrefetch + 64 * line);
                Columns low[M], high[M];
                I32 dot[M];
                for (int m = 0; m < M; ++m) {
                    low[m] = columns(rows[m].q + 256 * b + 32 * g);
                    high[m] = columns(rows[m].q + 256 * b + 32 * g + 16);
                    dot[m] = izero();
                }
                // A group is laid out as a block of IQ4_NL behind its scales.
                dot_pair<IQ4_NL, M, 0>(quants - 32, low, high, dot);
                dot_pair<IQ4_NL, M, 1>(quants - 32, low, high, dot);
                dot_pair<IQ4_NL, M, 2>(quants - 32, low, high, dot);
                dot_pair<IQ4_NL, M, 3>(quants - 32, low, high, dot);
                const I32 scale = load_s8(scales);
                for (int m = 0; m < M; ++m) {
                    const int32_t* sums = rows[m].sums + 16 * b + 2 * g;
                    if constexpr (kSignedOffset != 0) dot[m] = isub(dot[m], iset1(kSignedOffset * (sums[0] + sums[1])));
                    sum[m] = iadd(sum[m], imul(scale, dot[m]));
                }
            }
            finish<M>(acc, sum, halves(panel), rows, b, 1.0f);
        }
        for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
    }
};

}  // namespace woolly::WOOLLY_TARGET
