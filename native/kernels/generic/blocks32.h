// Weight types with one float scale per 32 columns. Each gives a block's bytes as eight vectors of 16 rows by 4
// columns; the dot is the same for all.
//
// A packed block of a panel: f16 scales of 16 rows, f16 minima of 16 rows where the type has them, a plane of fifth
// bits where it has them, then the quants in chunks of 4 bytes, row after row (quant/pack.cpp).

namespace woolly::WOOLLY_TARGET {

inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Low nibbles are columns 0 to 15 of the block, high nibbles 16 to 31.
[[gnu::always_inline]] inline void nibbles(const uint8_t* p, U8* w) {
    for (int g = 0; g < 4; ++g) {
        const U8 both = load_bytes(p + 64 * g);
        w[g] = low_bits(both, 15);
        w[g + 4] = shift_right<4>(both);
    }
}

template <int v>
inline U8 fifth_bit(U8 plane) {
    if constexpr (v < 4) return low_bits(shift_left<4 - v>(plane), 16);
    if constexpr (v == 4) return low_bits(plane, 16);
    if constexpr (v > 4) return low_bits(shift_right<v - 4>(plane), 16);
}

[[gnu::always_inline]] inline void five_bits(const uint8_t* plane, const uint8_t* p, U8* w) {
    const U8 bits = load_bytes(plane);
    nibbles(p, w);
    w[0] = either(w[0], fifth_bit<0>(bits));
    w[1] = either(w[1], fifth_bit<1>(bits));
    w[2] = either(w[2], fifth_bit<2>(bits));
    w[3] = either(w[3], fifth_bit<3>(bits));
    w[4] = either(w[4], fifth_bit<4>(bits));
    w[5] = either(w[5], fifth_bit<5>(bits));
    w[6] = either(w[6], fifth_bit<6>(bits));
    w[7] = either(w[7], fifth_bit<7>(bits));
}

[[gnu::always_inline]] inline F32 halves(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }

struct Q4_0 {
    static constexpr int bytes = 288, offset = 8;
    static constexpr bool is_signed = false, has_min = false;
    static F32 scale(const uint8_t* p) { return halves(p); }
    static F32 min(const uint8_t*) { return zero(); }
    static void unpack(const uint8_t* p, U8* w) { nibbles(p + 32, w); }
};
struct Q4_1 {
    static constexpr int bytes = 320, offset = 0;
    static constexpr bool is_signed = false, has_min = true;
    static F32 scale(const uint8_t* p) { return halves(p); }
    static F32 min(const uint8_t* p) { return halves(p + 32); }
    static void unpack(const uint8_t* p, U8* w) { nibbles(p + 64, w); }
};
struct Q5_0 {
    static constexpr int bytes = 352, offset = 16;
    static constexpr bool is_signed = false, has_min = false;
    static F32 scale(const uint8_t* p) { return halves(p); }
    static F32 min(const uint8_t*) { return zero(); }
    static void unpack(const uint8_t* p, U8* w) { five_bits(p + 32, p + 96, w); }
};
struct Q5_1 {
    static constexpr int bytes = 384, offset = 0;
    static constexpr bool is_signed = false, has_min = true;
    static F32 scale(const uint8_t* p) { return halves(p); }
    static F32 min(const uint8_t* p) { return halves(p + 32); }
    static void unpack(const uint8_t* p, U8* w) { five_bits(p + 64, p + 128, w); }
};
struct Q8_0 {
    static constexpr int bytes = 544, offset = 0;
    static constexpr bool is_signed = true, has_min = false;
    static F32 scale(const uint8_t* p) { return halves(p); }
    static F32 min(const uint8_t*) { return zero(); }
    static void unpack(const uint8_t* p, U8* w) {
        for (int v = 0; v < 8; ++v) w[v] = load_bytes(p + 32 + 64 * v);
    }
};
struct IQ4_NL {
    static constexpr int bytes = 288, offset = 0;
    static constexpr bool is_signed = true, has_min = false;
    static F32 scale(const uint8_t* p) { return halves(p); }
    static F32 min(const uint8_t*) { return zero(); }
    static void unpack(const uint8_t* p, U8* w) {
        nibbles(p + 32, w);
        for (int v = 0; v < 8; ++v) w[v] = lookup(kIq4Values, w[v]);
    }
};
struct MXFP4 {
    static constexpr int bytes = 272, offset = 0;
    static constexpr bool is_signed = true, has_min = false;
    // Half of 2^(e - 127): the table holds twice the values. Exponents 0 and 1 give subnormals.
    static F32 scale(const uint8_t* p) {
        float scales[16];
        for (int r = 0; r < 16; ++r) {
            const uint32_t bits = p[r] < 2 ? 0x00200000u << p[r] : uint32_t(p[r] - 1) << 23;
            std::memcpy(&scales[r], &bits, 4);
        }
        return load(scales);
    }
    static F32 min(const uint8_t*) { return zero(); }
    static void unpack(const uint8_t* p, U8* w) {
        nibbles(p + 16, w);
        for (int v = 0; v < 8; ++v) w[v] = lookup(kMxfp4Values, w[v]);
    }
};

// Blocks in order of columns; per block one exact integer dot, then one fma (two with a minimum).
template <class Type, int M>
inline void dot_blocks32(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
    F32 acc[M];
    for (int m = 0; m < M; ++m) acc[m] = zero();
    const int64_t n_blocks = columns / 32;
    for (int64_t b = 0; b < n_blocks; ++b, panel += Type::bytes) {
        for (int line = 0; line < Type::bytes; line += 64) __builtin_prefetch(panel + kPrefetch + line);
        U8 w[8];
        Type::unpack(panel, w);
        const F32 d = Type::scale(panel);
        for (int m = 0; m < M; ++m) {
            const int8_t* a = rows[m].q + 32 * b;
            I32 dot;
            int32_t offset = Type::offset;
            if constexpr (Type::is_signed) {
                offset += kSignedOffset;
                dot = dot16_signed(izero(), w[0], w[1], w[2], w[3], a);
                dot = dot16_signed(dot, w[4], w[5], w[6], w[7], a + 16);
            } else {
                dot = dot16(izero(), w[0], w[1], w[2], w[3], a);
                dot = dot16(dot, w[4], w[5], w[6], w[7], a + 16);
            }
            const int32_t sum = rows[m].sums[b];
            if (offset != 0) dot = isub(dot, iset1(offset * sum));
            const float scale = rows[m].scale[b];
            acc[m] = fma(to_float(dot), mul(d, set1(scale)), acc[m]);
            if constexpr (Type::has_min) acc[m] = fma(Type::min(panel), set1(scale * float(sum)), acc[m]);
        }
    }
    for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
}

}  // namespace woolly::WOOLLY_TARGET
