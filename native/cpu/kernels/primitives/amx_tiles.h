// AMX: eight tiles of 16 rows by 64 bytes, and their byte dots. Used together with avx512.h.

namespace woolly::WOOLLY_TARGET {

struct alignas(64) TileShapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Sum and activation tiles have one row per batch row. A dot sums `columns`, at most 64: a row of the weight tile holds
// four of them.
[[gnu::noinline]] inline void tiles_begin(int rows, int more, int columns) {
    TileShapes shapes;
    const int of[8] = {rows, rows, more, more, rows, more, columns / 4, columns / 4};
    for (int i = 0; i < 8; ++i) {
        shapes.rows[i] = uint8_t(of[i]);
        shapes.row_bytes[i] = uint16_t(of[i] == 0 ? 0 : i == 4 || i == 5 ? columns : 64);
    }
    // GCC 12 assumes that the instruction reads eight bytes and would drop the stores to the others.
    asm volatile("" ::"r"(&shapes) : "memory");
    _tile_loadconfig(&shapes);
}
[[gnu::always_inline]] inline void tiles_end() { _tile_release(); }

// GCC writes the tile number into the instruction text, so it must be a literal.
template <int t>
void tile_zero();
template <int t>
void tile_load(const void* p, int64_t stride);
// Non-temporal load for data that is not reused soon: it pollutes L1 less.
template <int t>
void tile_load_once(const void* p, int64_t stride);
template <int t>
void tile_store(void* p, int64_t stride);
// Tile c += signed bytes of tile a times signed (or unsigned) bytes of tile b.
template <int c, int a, int b>
void tile_dot();
template <int c, int a, int b>
void tile_dot_unsigned();

#define WOOLLY_SUMS(c, a, b)                                                    \
    template <>                                                                 \
    [[gnu::always_inline]] inline void tile_zero<c>() {                         \
        _tile_zero(c);                                                          \
    }                                                                           \
    template <>                                                                 \
    [[gnu::always_inline]] inline void tile_store<c>(void* p, int64_t stride) { \
        _tile_stored(c, p, stride);                                             \
    }                                                                           \
    template <>                                                                 \
    [[gnu::always_inline]] inline void tile_dot<c, a, b>() {                    \
        _tile_dpbssd(c, a, b);                                                  \
    }                                                                           \
    template <>                                                                 \
    [[gnu::always_inline]] inline void tile_dot_unsigned<c, a, b>() {           \
        _tile_dpbsud(c, a, b);                                                  \
    }
WOOLLY_SUMS(0, 4, 6)
WOOLLY_SUMS(1, 4, 7)
WOOLLY_SUMS(2, 5, 6)
WOOLLY_SUMS(3, 5, 7)
#undef WOOLLY_SUMS
#define WOOLLY_OPERAND(t)                                                                 \
    template <>                                                                           \
    [[gnu::always_inline]] inline void tile_load<t>(const void* p, int64_t stride) {      \
        _tile_loadd(t, p, stride);                                                        \
    }                                                                                     \
    template <>                                                                           \
    [[gnu::always_inline]] inline void tile_load_once<t>(const void* p, int64_t stride) { \
        _tile_stream_loadd(t, p, stride);                                                 \
    }
WOOLLY_OPERAND(4)
WOOLLY_OPERAND(5)
WOOLLY_OPERAND(6)
WOOLLY_OPERAND(7)
#undef WOOLLY_OPERAND

// factor * (weight - offset) = low + 128 * high, in bytes, low below 128. `factor` is one per lane of four weights.
template <int offset, bool is_signed>
[[gnu::always_inline]] inline void split_products(U8 w, I32 factor, U8* low, U8* high) {
    const __m512i byte = _mm512_set1_epi16(0xff), less = _mm512_set1_epi16(offset);
    const __m512i evens = is_signed ? _mm512_srai_epi16(_mm512_slli_epi16(w.v, 8), 8) : _mm512_and_si512(w.v, byte);
    const __m512i odds = is_signed ? _mm512_srai_epi16(w.v, 8) : _mm512_srli_epi16(w.v, 8);
    const __m512i both =
        _mm512_or_si512(_mm512_slli_epi32(factor.v, 16), _mm512_and_si512(factor.v, _mm512_set1_epi32(0xffff)));
    const __m512i even = _mm512_mullo_epi16(_mm512_sub_epi16(evens, less), both);
    const __m512i odd = _mm512_mullo_epi16(_mm512_sub_epi16(odds, less), both);
    const __m512i seven = _mm512_set1_epi16(0x7f);
    low->v = _mm512_or_si512(_mm512_and_si512(even, seven), _mm512_slli_epi16(_mm512_and_si512(odd, seven), 8));
    high->v = _mm512_or_si512(_mm512_and_si512(_mm512_srai_epi16(even, 7), byte),
                              _mm512_slli_epi16(_mm512_srai_epi16(odd, 7), 8));
}

// Byte k of each lane in both halves, and products of bytes with such factors, below 256. A 16-bit multiplication then
// does two byte multiplications, because the lower one does not carry.
template <int k>
[[gnu::always_inline]] inline I32 scale_twice(U8 a) {
    const __m512i one = _mm512_and_si512(_mm512_srli_epi32(a.v, 8 * k), _mm512_set1_epi32(255));
    return {_mm512_or_si512(one, _mm512_slli_epi32(one, 16))};
}
[[gnu::always_inline]] inline U8 byte_products(U8 w, I32 factor) { return {_mm512_mullo_epi16(w.v, factor.v)}; }

// Bytes 2k and 2k + 1 of each lane, as 16 bits each.
template <int k>
[[gnu::always_inline]] inline U8 byte_pair(U8 a) {
    const __m512i low = _mm512_srli_epi32(a.v, 16 * k);
    return {_mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi32(0xff)),
                            _mm512_and_si512(_mm512_slli_epi32(low, 8), _mm512_set1_epi32(0xff0000)))};
}

}  // namespace woolly::WOOLLY_TARGET
