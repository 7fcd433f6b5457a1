// Tile kernels over the portable primitives, with plain arrays as tiles: the part that can be tested on every machine.
// Built like a level's target, as k_tiles_table, which has only the kernels that are compared with tiles: a complete
// table would take minutes to compile. With TEST_DOTS, it has the kernels for super-blocks without tiles, and floats.
// Codebook types look up their weights and then use the code of Q6_K.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cpu/kernels/table.h"

// Code that kernels call millions of times is always optimized, even in unoptimized tests (tests/native): otherwise it
// would take 12 s of 17.
// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET tiles
#pragma GCC push_options
#pragma GCC optimize("O1")
#include "cpu/kernels/primitives/scalar.h"
#include "cpu/kernels/primitives/strips.h"
#pragma GCC pop_options
#include "cpu/kernels/generic/kernels.h"
// clang-format on

#pragma GCC push_options
#pragma GCC optimize("O1")
namespace woolly::tiles {

int tile_rows[8], tile_columns = 64;
uint8_t tile_bytes[8][16][64];

inline void tiles_begin(int rows, int more, int columns) {
    const int of[8] = {rows, rows, more, more, rows, more, columns / 4, columns / 4};
    tile_columns = columns;
    std::memcpy(tile_rows, of, sizeof of);
    std::memset(tile_bytes, 0, sizeof tile_bytes);
}
inline void tiles_end() { std::memset(tile_rows, 0, sizeof tile_rows); }

// Fails for a tile without a shape, like the instruction.
inline int rows_of(int t) {
    if (tile_rows[t] < 1 || tile_rows[t] > 16) std::abort();
    return tile_rows[t];
}
template <int t>
inline void tile_zero() {
    rows_of(t);
    std::memset(tile_bytes[t], 0, sizeof tile_bytes[t]);
}
template <int t>
inline void tile_load(const void* p, int64_t stride) {
    const size_t n = size_t(t == 4 || t == 5 ? tile_columns : 64);
    for (int r = 0; r < rows_of(t); ++r) std::memcpy(tile_bytes[t][r], static_cast<const char*>(p) + r * stride, n);
}
template <int t>
inline void tile_load_once(const void* p, int64_t stride) {
    tile_load<t>(p, stride);
}
template <int t>
inline void tile_store(void* p, int64_t stride) {
    for (int r = 0; r < rows_of(t); ++r) std::memcpy(static_cast<char*>(p) + r * stride, tile_bytes[t][r], 64);
}
template <class Byte>
inline void tile_sum(int c, int a, int b) {
    if (rows_of(c) != rows_of(a) || rows_of(b) != tile_columns / 4) std::abort();
    for (int m = 0; m < rows_of(c); ++m)
        for (int n = 0; n < 16; ++n) {
            int32_t sum;
            std::memcpy(&sum, &tile_bytes[c][m][4 * n], 4);
            for (int k = 0; k < tile_columns; ++k)
                sum += int8_t(tile_bytes[a][m][k]) * Byte(tile_bytes[b][k / 4][4 * n + k % 4]);
            std::memcpy(&tile_bytes[c][m][4 * n], &sum, 4);
        }
}
template <int c, int a, int b>
inline void tile_dot() {
    tile_sum<int8_t>(c, a, b);
}
template <int c, int a, int b>
inline void tile_dot_unsigned() {
    tile_sum<uint8_t>(c, a, b);
}

template <int offset, bool is_signed>
inline void split_products(U8 w, I32 factor, U8* low, U8* high) {
    for (int i = 0; i < 64; ++i) {
        const int product = factor.v[i / 4] * ((is_signed ? int8_t(w.v[i]) : w.v[i]) - offset);
        low->v[i] = uint8_t(product & 127);
        high->v[i] = uint8_t(product >> 7);
    }
}

template <int k>
inline I32 scale_twice(U8 a) {
    I32 r;
    for (int i = 0; i < 16; ++i) r.v[i] = a.v[4 * i + k] * 0x10001;
    return r;
}
inline U8 byte_products(U8 w, I32 factor) {
    for (int i = 0; i < 64; ++i) w.v[i] = uint8_t(w.v[i] * (factor.v[i / 4] & 255));
    return w;
}
template <int k>
inline U8 byte_pair(U8 a) {
    U8 r{};
    for (int i = 0; i < 16; ++i) r.v[4 * i] = a.v[4 * i + 2 * k], r.v[4 * i + 2] = a.v[4 * i + 2 * k + 1];
    return r;
}
inline U8 pair_of(I32 low, I32 high) {
    U8 r;
    for (int i = 0; i < 16; ++i) {
        const int16_t both[2] = {int16_t(low.v[i]), int16_t(high.v[i])};
        std::memcpy(&r.v[4 * i], both, 4);
    }
    return r;
}
inline I32 pair_dot(I32 acc, U8 pairs, const uint8_t* sums) {
    int16_t two[2], pair[2];
    std::memcpy(two, sums, 4);
    for (int i = 0; i < 16; ++i) {
        std::memcpy(pair, &pairs.v[4 * i], 4);
        acc.v[i] += pair[0] * two[0] + pair[1] * two[1];
    }
    return acc;
}

}  // namespace woolly::tiles
#pragma GCC pop_options

// clang-format off: the kernels need the shared headers first
#include "cpu/kernels/generic/grids.h"
#include "cpu/kernels/generic/grid256.h"
#include "cpu/kernels/generic/grid256_dots.h"
#include "cpu/kernels/generic/grid32.h"
#include "cpu/kernels/generic/grid32_tiles.h"
// clang-format on

namespace woolly::tiles {

template <class Kernel>
constexpr void set_tiles(KernelTable& t, WeightType type) {
#ifdef TEST_DOTS
    Grids256::set(t, type, Kernel{});
    Grids32::set(t, type, Kernel{});
    GridsFloats::set(t, type, Kernel{});
#else
    GridsTiles256::set(t, type, Kernel{});
    GridsTiles32::set(t, type, Kernel{});
#endif
    t.dot[int(type)] = dot_any<Kernel>;
}

constexpr KernelTable make_tiles() {
    KernelTable t{};
    t.name = "tiles";
    t.quantize_32 = quantize<32, 32>;
    t.quantize_256 = quantize<256, 16>;
    t.planes = planes;
#define WOOLLY_ROW(name, id, columns, bytes, activation, kernel) set_tiles<kernel>(t, WeightType::name);
#ifdef TEST_DOTS
    WOOLLY_FLOATS(WOOLLY_ROW)
#endif
    WOOLLY_BLOCKS_32(WOOLLY_ROW)
    WOOLLY_BLOCKS_256(WOOLLY_ROW)
#undef WOOLLY_ROW
    return t;
}

}  // namespace woolly::tiles

namespace woolly {

extern const KernelTable k_tiles_table;
constinit const KernelTable k_tiles_table = tiles::make_tiles();

}  // namespace woolly
