// Weight types with one float scale per 32 columns. Each gives a block's bytes as eight vectors of 16 rows by 4
// columns; the dot is the same for all.
//
// A packed block of a panel: f16 scales of 16 rows, f16 minima of 16 rows where the type has them, a plane of fifth
// bits where it has them, then the quants in chunks of 4 bytes, row after row (quant/pack.cpp).

namespace woolly::WOOLLY_TARGET {

inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Two vectors of a block: columns 4g to 4g + 3, and the same 16 further on.
struct Pair {
    U8 low, high;
};

[[gnu::always_inline]] inline Pair nibbles(const uint8_t* p) {
    const U8 both = load_bytes(p);
    return {low_bits(both, 15), shift_right<4>(both)};
}

// Bit v of the plane as bit 4.
template <int v>
[[gnu::always_inline]] inline U8 fifth_bit(U8 plane) {
    if constexpr (v < 4) return low_bits(shift_left<4 - v>(plane), 16);
    if constexpr (v == 4) return low_bits(plane, 16);
    if constexpr (v > 4) return low_bits(shift_right<v - 4>(plane), 16);
}

template <int g>
[[gnu::always_inline]] inline Pair five_bits(const uint8_t* plane, const uint8_t* p) {
    const U8 bits = load_bytes(plane);
    const Pair four = nibbles(p + 64 * g);
    return {either(four.low, fifth_bit<g>(bits)), either(four.high, fifth_bit<g + 4>(bits))};
}

[[gnu::always_inline]] inline F32 halves(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }

struct Q4_0 {
    static constexpr int bytes = 288, offset = 8;
    static constexpr bool is_signed = false, has_min = false;
    static F32 scale(const uint8_t* p) { return halves(p); }
    static F32 min(const uint8_t*) { return zero(); }
    template <int g>
    static Pair unpack(const uint8_t* p) {
        return nibbles(p + 32 + 64 * g);
    }
};
struct Q4_1 {
    static constexpr int bytes = 320, offset = 0;
    static constexpr bool is_signed = false, has_min = true;
    static F32 scale(const uint8_t* p) { return halves(p); }
    static F32 min(const uint8_t* p) { return halves(p + 32); }
    template <int g>
    static Pair unpack(const uint8_t* p) {
        return nibbles(p + 64 + 64 * g);
    }
};
struct Q5_0 {
    static constexpr int bytes = 352, offset = 16;
    static constexpr bool is_signed = false, has_min = false;
    static F32 scale(const uint8_t* p) { return halves(p); }
    static F32 min(const uint8_t*) { return zero(); }
    template <int g>
    static Pair unpack(const uint8_t* p) {
        return five_bits<g>(p + 32, p + 96);
    }
};
struct Q5_1 {
    static constexpr int bytes = 384, offset = 0;
    static constexpr bool is_signed = false, has_min = true;
    static F32 scale(const uint8_t* p) { return halves(p); }
    static F32 min(const uint8_t* p) { return halves(p + 32); }
    template <int g>
    static Pair unpack(const uint8_t* p) {
        return five_bits<g>(p + 64, p + 128);
    }
};
struct Q8_0 {
    static constexpr int bytes = 544, offset = 0;
    static constexpr bool is_signed = true, has_min = false;
    static F32 scale(const uint8_t* p) { return halves(p); }
    static F32 min(const uint8_t*) { return zero(); }
    template <int g>
    static Pair unpack(const uint8_t* p) {
        return {load_bytes(p + 32 + 64 * g), load_bytes(p + 288 + 64 * g)};
    }
};
struct IQ4_NL {
    static constexpr int bytes = 288, offset = 0;
    static constexpr bool is_signed = true, has_min = false;
    static F32 scale(const uint8_t* p) { return halves(p); }
    static F32 min(const uint8_t*) { return zero(); }
    template <int g>
    static Pair unpack(const uint8_t* p) {
        const Pair index = nibbles(p + 32 + 64 * g);
        return {lookup(kIq4Values, index.low), lookup(kIq4Values, index.high)};
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
    template <int g>
    static Pair unpack(const uint8_t* p) {
        const Pair index = nibbles(p + 16 + 64 * g);
        return {lookup(kMxfp4Values, index.low), lookup(kMxfp4Values, index.high)};
    }
};

// Adds columns 4g.. and 16 + 4g.. of a block to the dots. Few vectors are alive at a time: NEON has 32 registers, and a
// whole block unpacked would fill them.
template <class Type, int M, int g>
[[gnu::always_inline]] inline void dot_pair(const uint8_t* panel, const Columns* low, const Columns* high, I32* dot) {
    const Pair w = Type::template unpack<g>(panel);
    for (int m = 0; m < M; ++m) {
        if constexpr (Type::is_signed) {
            dot[m] = dot4_signed<g>(dot4_signed<g>(dot[m], w.low, low[m]), w.high, high[m]);
        } else {
            dot[m] = dot4<g>(dot4<g>(dot[m], w.low, low[m]), w.high, high[m]);
        }
    }
}

// Blocks in order of columns; per block one exact integer dot, then one fma (two with a minimum).
template <class Type, int M>
inline void dot_blocks32(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, float* tile) {
    F32 acc[M];
    for (int m = 0; m < M; ++m) acc[m] = zero();
    const int64_t n_blocks = n_columns / 32;
    for (int64_t b = 0; b < n_blocks; ++b, panel += Type::bytes) {
        for (int line = 0; line < Type::bytes; line += 64) __builtin_prefetch(panel + kPrefetch + line);
        Columns low[M], high[M];
        I32 dot[M];
        for (int m = 0; m < M; ++m) {
            low[m] = columns(rows[m].q + 32 * b);
            high[m] = columns(rows[m].q + 32 * b + 16);
            dot[m] = izero();
        }
        dot_pair<Type, M, 0>(panel, low, high, dot);
        dot_pair<Type, M, 1>(panel, low, high, dot);
        dot_pair<Type, M, 2>(panel, low, high, dot);
        dot_pair<Type, M, 3>(panel, low, high, dot);
        const F32 d = Type::scale(panel);
        for (int m = 0; m < M; ++m) {
            constexpr int32_t offset = Type::offset + (Type::is_signed ? kSignedOffset : 0);
            const int32_t sum = rows[m].sums[b];
            if constexpr (offset != 0) dot[m] = isub(dot[m], iset1(offset * sum));
            const float scale = rows[m].scale[b];
            acc[m] = fma(to_float(dot[m]), mul(d, set1(scale)), acc[m]);
            if constexpr (Type::has_min) acc[m] = fma(Type::min(panel), set1(scale * float(sum)), acc[m]);
        }
    }
    for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
}

}  // namespace woolly::WOOLLY_TARGET
