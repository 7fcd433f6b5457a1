// Weight types with one float scale per 32 columns. Each supplies a block's bytes as eight vectors of 16 rows by 4
// columns; the dot is the same for all.
//
// A packed block of a panel: f16 scales of 16 rows, f16 minima of 16 rows if the type has them, then
// the quants in chunks of 4 bytes, row after row (cpu/weights/pack.cpp).

namespace woolly::WOOLLY_TARGET {

// Bytes of a panel's packed block, and of the header before its quants.
template <class Block>
struct Packed {
    static constexpr int bytes = kPanel * int(sizeof(Block)), quants = kPanel * part_bytes(Block::layout(), false);
    static constexpr int most = 255;  // maximum quant
};

[[gnu::always_inline]] inline F32 halves(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }

// Nibbles: the first 16 columns are the low ones.
template <class Block>
struct Nibbles : Packed<Block> {
    template <class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, const Use& use) {
        each<4>([&]<int v>()
                    __attribute__((always_inline)) { four_bits<v, 4>(p + Packed<Block>::quants + 64 * v, use); });
    }
};
template <class Block>
struct FiveBits : Packed<Block> {
    template <class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, const Use& use) {
        unpack_five_bits(p + Packed<Block>::quants, use);
    }
};
struct Scale {
    static constexpr bool one_by_one = false;
    [[gnu::always_inline]] static F32 scale(const uint8_t* p) { return halves(p); }
};

struct Q4_0 : Scale, Nibbles<BlockQ4_0> {
    static constexpr int offset = 8, most = 15;
    static constexpr bool is_signed = false, has_min = false;
};
struct Q4_1 : Scale, Nibbles<BlockQ4_1> {
    static constexpr int offset = 0, most = 15;
    static constexpr bool is_signed = false, has_min = true;
};
struct Q5_0 : Scale, FiveBits<BlockQ5_0> {
    static constexpr int offset = 16;
    static constexpr bool is_signed = false, has_min = false;
};
struct Q5_1 : Scale, FiveBits<BlockQ5_1> {
    static constexpr int offset = 0;
    static constexpr bool is_signed = false, has_min = true;
};
struct Q8_0 : Scale, Packed<BlockQ8_0> {
    static constexpr int offset = 0;
    static constexpr bool is_signed = true, has_min = false;
    template <class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, const Use& use) {
        each<8>([&]<int v>()
                    __attribute__((always_inline)) { use.template operator()<v>(load_bytes(p + quants + 64 * v)); });
    }
};
// Nibbles that index a table of values.
template <class Block, const int8_t* table>
struct Indices : Packed<Block> {
    template <class Use>
    [[gnu::always_inline]] static void unpack(const uint8_t* p, const Use& use) {
        Nibbles<Block>::unpack(p, [&]<int v>(U8 index) __attribute__((always_inline)) {
            use.template operator()<v>(lookup(table, index));
        });
    }
};
struct IQ4_NL : Scale, Indices<BlockIQ4_NL, kIq4Values> {
    static constexpr int offset = 0;
    static constexpr bool is_signed = true, has_min = false;
};
struct MXFP4 : Indices<BlockMXFP4, kMxfp4Values> {
    static constexpr int offset = 0;
    static constexpr bool is_signed = true, has_min = false;
    static F32 scale(const uint8_t* p) {
        float scales[16];
        for (int r = 0; r < 16; ++r) scales[r] = BlockMXFP4::scale(p[r]);
        return load(scales);
    }
};

// Blocks in column order; per block one exact integer dot, then one fma (two with a minimum).
template <class Type, int M>
inline void dot_blocks32(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, float* tile) {
    F32 acc[M];
    // As in Open32::dot.
    const int8_t* q[M];
    const float *scales[M], *lows[M];
    for (int m = 0; m < M; ++m) {
        acc[m] = zero();
        q[m] = rows[m].q, scales[m] = rows[m].scale, lows[m] = rows[m].lows;
    }
    const int64_t n_blocks = n_columns / 32;
    for (int64_t b = 0; b < n_blocks; ++b, panel += Type::bytes) {
        for (int line = 0; line < Type::bytes; line += 64) prefetch(panel + kPrefetch + line);
        Columns a[2][M];
        I32 dot[M];
        for (int m = 0; m < M; ++m) {
            constexpr int32_t offset = Type::offset + (Type::is_signed ? kSignedOffset : 0);
            for (int i = 0; i < 2; ++i) a[i][m] = columns(q[m] + 32 * b + 16 * i);
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
            acc[m] = fma(unbiased(dot[m]), mul(d, set1(scales[m][b])), acc[m]);
            if constexpr (Type::has_min) acc[m] = fma(halves(panel + 32), set1(lows[m][b]), acc[m]);
        }
    }
    for (int m = 0; m < M; ++m) store(tile + 16 * m, acc[m]);
}

}  // namespace woolly::WOOLLY_TARGET
