// Weight types with one float scale per 32 columns. Each gives a block's bytes as eight vectors of 16 rows by 4
// columns; the dot is the same for all.
//
// A packed block of a panel: f16 scales of 16 rows, f16 minima of 16 rows where the type has them, then
// the quants in chunks of 4 bytes, row after row (quant/pack.cpp).

namespace woolly::WOOLLY_TARGET {

inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

[[gnu::always_inline]] inline F32 halves(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }

// Nibbles: the first 16 columns are the low ones.
template <int at>
struct Nibbles {
    template <class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, const Use& use) {
        each<4>([&]<int v>() __attribute__((always_inline)) { four_bits<v, 4>(p + at + 64 * v, use); });
    }
};
template <int at>
struct FiveBits {
    template <class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, const Use& use) {
        five_bits(p + at, use);
    }
};
struct Scale {
    [[gnu::always_inline]] static F32 scale(const uint8_t* p) { return halves(p); }
};

struct Q4_0 : Scale, Nibbles<32> {
    static constexpr int bytes = 288, offset = 8;
    static constexpr bool is_signed = false, has_min = false;
};
struct Q4_1 : Scale, Nibbles<64> {
    static constexpr int bytes = 320, offset = 0;
    static constexpr bool is_signed = false, has_min = true;
};
struct Q5_0 : Scale, FiveBits<32> {
    static constexpr int bytes = 352, offset = 16;
    static constexpr bool is_signed = false, has_min = false;
};
struct Q5_1 : Scale, FiveBits<64> {
    static constexpr int bytes = 384, offset = 0;
    static constexpr bool is_signed = false, has_min = true;
};
struct Q8_0 : Scale {
    static constexpr int bytes = 544, offset = 0;
    static constexpr bool is_signed = true, has_min = false;
    template <class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, const Use& use) {
        each<8>([&]<int v>()
                    __attribute__((always_inline)) { use.template operator()<v>(load_bytes(p + 32 + 64 * v)); });
    }
};
// Nibbles that index a table.
template <int at, const int8_t* table>
struct Indices {
    template <class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, const Use& use) {
        Nibbles<at>::unpack(p, [&]<int v>(U8 index) __attribute__((always_inline)) {
            use.template operator()<v>(lookup(table, index));
        });
    }
};
struct IQ4_NL : Scale, Indices<32, kIq4Values> {
    static constexpr int bytes = 288, offset = 0;
    static constexpr bool is_signed = true, has_min = false;
};
struct MXFP4 : Indices<16, kMxfp4Values> {
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
};

// Blocks in order of columns; per block one exact integer dot, then one fma (two with a minimum).
template <class Type, int M>
inline void dot_blocks32(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, float* tile) {
    F32 acc[M];
    for (int m = 0; m < M; ++m) acc[m] = zero();
    const int64_t n_blocks = n_columns / 32;
    for (int64_t b = 0; b < n_blocks; ++b, panel += Type::bytes) {
        for (int line = 0; line < Type::bytes; line += 64) prefetch(panel + kPrefetch + line);
        Columns a[2][M];
        I32 dot[M];
        for (int m = 0; m < M; ++m) {
            constexpr int32_t offset = Type::offset + (Type::is_signed ? kSignedOffset : 0);
            for (int i = 0; i < 2; ++i) a[i][m] = columns(rows[m].q + 32 * b + 16 * i);
            dot[m] = biased(offset == 0 ? 0 : -offset * rows[m].sums[b]);
        }
        Type::unpack(panel, [&]<int v>(U8 w) __attribute__((always_inline)) {
            for (int m = 0; m < M; ++m) {
                if constexpr (Type::is_signed) {
                    dot[m] = dot4_signed<v % 4>(dot[m], w, a[v / 4][m]);
                } else {
                    dot[m] = dot4<v % 4>(dot[m], w, a[v / 4][m]);
                }
            }
        });
        const F32 d = Type::scale(panel);
        for (int m = 0; m < M; ++m) {
            const float scale = rows[m].scale[b];
            acc[m] = fma(unbiased(dot[m]), mul(d, set1(scale)), acc[m]);
            if constexpr (Type::has_min) acc[m] = fma(halves(panel + 32), set1(rows[m].lows[b]), acc[m]);
        }
    }
    for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
}

}  // namespace woolly::WOOLLY_TARGET
