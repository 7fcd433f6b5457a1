// The k-quants: super-blocks of 256 columns with integer sub-scales. With activations quantized per 256, a super-block
// is pure integer arithmetic; one conversion and one fma (two with minima) end it.
//
// A packed super-block of a panel: f16 scales of 16 rows, f16 minima of 16 rows where the type has them, sub-scales
// transposed (one byte of each row), then the quants in chunks of 4 bytes, row after row (quant/pack.cpp).

namespace woolly::WOOLLY_TARGET {

// Adds sub * dot(32 columns in w) to acc.
template <bool is_signed>
[[gnu::always_inline]] inline I32 dot32(const U8* w, const int8_t* a) {
    if constexpr (is_signed)
        return dot16_signed(dot16_signed(izero(), w[0], w[1], w[2], w[3], a), w[4], w[5], w[6], w[7], a + 16);
    else
        return dot16(dot16(izero(), w[0], w[1], w[2], w[3], a), w[4], w[5], w[6], w[7], a + 16);
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
template <int M, bool fifth>
inline void dot_q45k(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
    constexpr int bytes = fifth ? 2816 : 2304;
    F32 acc[M];
    for (int m = 0; m < M; ++m) acc[m] = zero();
    for (int64_t b = 0; b < columns / 256; ++b, panel += bytes) {
        alignas(64) uint8_t scales[128], minima[128];
        six_bits(panel + 64, scales, minima);
        const uint8_t* high = panel + 256;
        const uint8_t* quants = high + (fifth ? 512 : 0);
        I32 sum[M], low[M];
        for (int m = 0; m < M; ++m) sum[m] = low[m] = izero();
        for (int c = 0; c < 4; ++c) {
            U8 w0[8], w1[8];
            for (int g = 0; g < 8; ++g) {
                const uint8_t* at = quants + (8 * c + g) * 64;
                __builtin_prefetch(at + kPrefetch);
                const U8 both = load_bytes(at);
                w0[g] = low_bits(both, 15);
                w1[g] = shift_right<4>(both);
                if constexpr (fifth) {
                    const U8 plane = load_bytes(high + 64 * g);
                    U8 first, second;  // bits 2c and 2c + 1, moved to bit 4
                    switch (c) {
                        case 0:
                            first = shift_left<4>(plane), second = shift_left<3>(plane);
                            break;
                        case 1:
                            first = shift_left<2>(plane), second = shift_left<1>(plane);
                            break;
                        case 2:
                            first = plane, second = shift_right<1>(plane);
                            break;
                        default:
                            first = shift_right<2>(plane), second = shift_right<3>(plane);
                    }
                    w0[g] = either(w0[g], low_bits(first, 16));
                    w1[g] = either(w1[g], low_bits(second, 16));
                }
            }
            const I32 s0 = load_u8(scales + 32 * c), s1 = load_u8(scales + 32 * c + 16);
            const I32 m0 = load_u8(minima + 32 * c), m1 = load_u8(minima + 32 * c + 16);
            for (int m = 0; m < M; ++m) {
                const int8_t* a = rows[m].q + 256 * b + 64 * c;
                const int32_t* sums = rows[m].sums + 16 * b + 4 * c;
                sum[m] = iadd(sum[m], imul(s0, dot32<false>(w0, a)));
                sum[m] = iadd(sum[m], imul(s1, dot32<false>(w1, a + 32)));
                low[m] = iadd(low[m], imul(m0, iset1(sums[0] + sums[1])));
                low[m] = iadd(low[m], imul(m1, iset1(sums[2] + sums[3])));
            }
        }
        const F32 d = halves(panel), d_min = halves(panel + 32);
        for (int m = 0; m < M; ++m) {
            const float scale = rows[m].scale[b];
            acc[m] = fma(to_float(sum[m]), mul(d, set1(scale)), acc[m]);
            acc[m] = fma(to_float(low[m]), mul(d_min, set1(-scale)), acc[m]);
        }
    }
    for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
}

struct Q4_K {
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        dot_q45k<M, false>(panel, columns, rows, tile);
    }
};
struct Q5_K {
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        dot_q45k<M, true>(panel, columns, rows, tile);
    }
};

// Two sub-groups of 16 columns with a scale each: sum += s0 * (dot - offset * a) + s1 * (...).
template <int M>
[[gnu::always_inline]] inline void add_16s(I32* sum, const U8* w, const I32 s0, const I32 s1, int offset,
                                           const ActivationRow* rows, int64_t column) {
    for (int m = 0; m < M; ++m) {
        const int8_t* a = rows[m].q + column;
        const int32_t* sums = rows[m].sums + column / 16;
        const I32 first = isub(dot16(izero(), w[0], w[1], w[2], w[3], a), iset1(offset * sums[0]));
        const I32 second = isub(dot16(izero(), w[4], w[5], w[6], w[7], a + 16), iset1(offset * sums[1]));
        sum[m] = iadd(sum[m], iadd(imul(s0, first), imul(s1, second)));
    }
}

template <int M>
[[gnu::always_inline]] inline void finish(F32* acc, const I32* sum, const uint8_t* panel, const ActivationRow* rows,
                                          int64_t b) {
    const F32 d = halves(panel);
    for (int m = 0; m < M; ++m) acc[m] = fma(to_float(sum[m]), mul(d, set1(rows[m].scale[b])), acc[m]);
}

// Q6_K: two halves of 128 columns in four quarters of 32; 4 low bits and 2 high bits, minus 32.
struct Q6_K {
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        F32 acc[M];
        for (int m = 0; m < M; ++m) acc[m] = zero();
        for (int64_t b = 0; b < columns / 256; ++b, panel += 3360) {
            const int8_t* scales = reinterpret_cast<const int8_t*>(panel + 32);
            I32 sum[M];
            for (int m = 0; m < M; ++m) sum[m] = izero();
            for (int half = 0; half < 2; ++half) {
                const uint8_t* high = panel + 288 + 512 * half;
                const uint8_t* low = panel + 1312 + 1024 * half;
                for (int line = 0; line < 8; ++line) {
                    __builtin_prefetch(high + kPrefetch + 64 * line);
                    __builtin_prefetch(low + kPrefetch + 64 * line);
                    __builtin_prefetch(low + kPrefetch + 512 + 64 * line);
                }
                quarter<M, 0>(sum, low, high, scales + 128 * half, rows, 256 * b + 128 * half);
                quarter<M, 1>(sum, low, high, scales + 128 * half, rows, 256 * b + 128 * half);
                quarter<M, 2>(sum, low, high, scales + 128 * half, rows, 256 * b + 128 * half);
                quarter<M, 3>(sum, low, high, scales + 128 * half, rows, 256 * b + 128 * half);
            }
            finish<M>(acc, sum, panel, rows, b);
        }
        for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
    }

    template <int M, int q>
    [[gnu::always_inline]] static void quarter(I32* sum, const uint8_t* low, const uint8_t* high, const int8_t* scales,
                                               const ActivationRow* rows, int64_t column) {
        U8 w[8];
        for (int g = 0; g < 8; ++g) {
            const U8 nibble = load_bytes(low + 64 * (g + 8 * (q % 2)));
            const U8 four = q < 2 ? low_bits(nibble, 15) : shift_right<4>(nibble);
            const U8 two = low_bits(shift_right<2 * q>(load_bytes(high + 64 * g)), 3);
            w[g] = either(four, shift_left<4>(two));
        }
        add_16s<M>(sum, w, load_s8(scales + 32 * q), load_s8(scales + 32 * q + 16), 32, rows, column + 32 * q);
    }
};

// Q3_K: two halves of 128 columns; 2 low bits in shifts of one byte, a high bit in a mask, minus 4.
struct Q3_K {
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        F32 acc[M];
        for (int m = 0; m < M; ++m) acc[m] = zero();
        for (int64_t b = 0; b < columns / 256; ++b, panel += 1760) {
            alignas(64) int8_t scales[256];
            unpack_scales(panel + 32, scales);
            I32 sum[M];
            for (int m = 0; m < M; ++m) sum[m] = izero();
            const uint8_t* mask = panel + 224;
            const uint8_t* low = panel + 736;
            shift<M, 0>(sum, low, mask, scales, rows, 256 * b);
            shift<M, 1>(sum, low, mask, scales, rows, 256 * b);
            shift<M, 2>(sum, low, mask, scales, rows, 256 * b);
            shift<M, 3>(sum, low, mask, scales, rows, 256 * b);
            shift<M, 4>(sum, low, mask, scales, rows, 256 * b);
            shift<M, 5>(sum, low, mask, scales, rows, 256 * b);
            shift<M, 6>(sum, low, mask, scales, rows, 256 * b);
            shift<M, 7>(sum, low, mask, scales, rows, 256 * b);
            finish<M>(acc, sum, panel, rows, b);
        }
        for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
    }

    // Sixteen six-bit scales in 12 bytes: low nibbles, high nibbles, then pairs of upper bits; minus 32.
    static void unpack_scales(const uint8_t* p, int8_t* scales) {
        for (int s = 0; s < 16; ++s)
            for (int r = 0; r < 16; ++r) {
                const int low = s < 8 ? p[16 * s + r] & 15 : p[16 * (s - 8) + r] >> 4;
                const int high = (p[16 * (8 + s % 4) + r] >> (2 * (s / 4))) & 3;
                scales[16 * s + r] = int8_t((low | (high << 4)) - 32);
            }
    }

    // Group s of 32 columns: half s / 4, bits 2 * (s % 4), bit s of the mask.
    template <int M, int s>
    [[gnu::always_inline]] static void shift(I32* sum, const uint8_t* low, const uint8_t* mask, const int8_t* scales,
                                             const ActivationRow* rows, int64_t column) {
        U8 w[8];
        for (int g = 0; g < 8; ++g) {
            const U8 two = low_bits(shift_right<2 * (s % 4)>(load_bytes(low + 512 * (s / 4) + 64 * g)), 3);
            const U8 one = low_bits(shift_right<s>(load_bytes(mask + 64 * g)), 1);
            w[g] = either(two, shift_left<2>(one));
        }
        add_16s<M>(sum, w, load_s8(scales + 32 * s), load_s8(scales + 32 * s + 16), 4, rows, column + 32 * s);
    }
};

// Q2_K: as Q3_K without the mask; four-bit scales and minima in one byte per 16 columns.
struct Q2_K {
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        F32 acc[M];
        for (int m = 0; m < M; ++m) acc[m] = zero();
        for (int64_t b = 0; b < columns / 256; ++b, panel += 1344) {
            alignas(64) uint8_t scales[256], minima[256];
            for (int i = 0; i < 256; ++i) scales[i] = panel[64 + i] & 15, minima[i] = panel[64 + i] >> 4;
            I32 sum[M];
            for (int m = 0; m < M; ++m) sum[m] = izero();
            const uint8_t* low = panel + 320;
            shift<M, 0>(sum, low, scales, rows, 256 * b);
            shift<M, 1>(sum, low, scales, rows, 256 * b);
            shift<M, 2>(sum, low, scales, rows, 256 * b);
            shift<M, 3>(sum, low, scales, rows, 256 * b);
            shift<M, 4>(sum, low, scales, rows, 256 * b);
            shift<M, 5>(sum, low, scales, rows, 256 * b);
            shift<M, 6>(sum, low, scales, rows, 256 * b);
            shift<M, 7>(sum, low, scales, rows, 256 * b);
            finish<M>(acc, sum, panel, rows, b);
            const F32 d_min = halves(panel + 32);
            for (int m = 0; m < M; ++m) {
                I32 lost = izero();
                for (int s = 0; s < 16; ++s)
                    lost = iadd(lost, imul(load_u8(minima + 16 * s), iset1(rows[m].sums[16 * b + s])));
                acc[m] = fma(to_float(lost), mul(d_min, set1(-rows[m].scale[b])), acc[m]);
            }
        }
        for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
    }

    template <int M, int s>
    [[gnu::always_inline]] static void shift(I32* sum, const uint8_t* low, const uint8_t* scales,
                                             const ActivationRow* rows, int64_t column) {
        U8 w[8];
        for (int g = 0; g < 8; ++g)
            w[g] = low_bits(shift_right<2 * (s % 4)>(load_bytes(low + 512 * (s / 4) + 64 * g)), 3);
        add_16s<M>(sum, w, load_u8(scales + 32 * s), load_u8(scales + 32 * s + 16), 0, rows, column + 32 * s);
    }
};

// IQ4_XS: eight groups of 32 columns in nibbles that index a table; six-bit scales minus 32.
struct IQ4_XS {
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        F32 acc[M];
        for (int m = 0; m < M; ++m) acc[m] = zero();
        for (int64_t b = 0; b < columns / 256; ++b, panel += 2176) {
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
                U8 w[8];
                nibbles(panel + 128 + 256 * g, w);
                for (int v = 0; v < 8; ++v) w[v] = lookup(kIq4Values, w[v]);
                const I32 s = load_s8(scales);
                for (int m = 0; m < M; ++m) {
                    const int32_t* sums = rows[m].sums + 16 * b + 2 * g;
                    I32 dot = dot32<true>(w, rows[m].q + 256 * b + 32 * g);
                    if constexpr (kSignedOffset != 0) dot = isub(dot, iset1(kSignedOffset * (sums[0] + sums[1])));
                    sum[m] = iadd(sum[m], imul(s, dot));
                }
            }
            finish<M>(acc, sum, panel, rows, b);
        }
        for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
    }
};

}  // namespace woolly::WOOLLY_TARGET
