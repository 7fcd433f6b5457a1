// The algorithm of the tiles over the portable primitives, with tiles of plain arrays: what can be tested of it on
// every machine. Built like a level's target, as k_tiles_table.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET tiles
#include "kernels/isa/scalar.h"
#include "kernels/generic/strips.h"
#include "kernels/generic/kernels.h"
// clang-format on

namespace woolly::tiles {

int tile_rows[8];
uint8_t tile_bytes[8][16][64];

inline void tiles_begin(int rows, int more) {
    const int of[8] = {rows, rows, more, more, rows, more, 16, 16};
    std::memcpy(tile_rows, of, sizeof of);
    std::memset(tile_bytes, 0, sizeof tile_bytes);
}
inline void tiles_end() { std::memset(tile_rows, 0, sizeof tile_rows); }

// As the instruction does, a tile without a shape refuses.
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
    for (int r = 0; r < rows_of(t); ++r) std::memcpy(tile_bytes[t][r], static_cast<const char*>(p) + r * stride, 64);
}
template <int t>
inline void tile_store(void* p, int64_t stride) {
    for (int r = 0; r < rows_of(t); ++r) std::memcpy(static_cast<char*>(p) + r * stride, tile_bytes[t][r], 64);
}
template <int c, int a, int b>
inline void tile_dot() {
    if (rows_of(c) != rows_of(a) || rows_of(b) != 16) std::abort();
    for (int m = 0; m < rows_of(c); ++m)
        for (int n = 0; n < 16; ++n) {
            int32_t sum;
            std::memcpy(&sum, &tile_bytes[c][m][4 * n], 4);
            for (int k = 0; k < 64; ++k)
                sum += int8_t(tile_bytes[a][m][k]) * int8_t(tile_bytes[b][k / 4][4 * n + k % 4]);
            std::memcpy(&tile_bytes[c][m][4 * n], &sum, 4);
        }
}

template <int offset, bool is_signed>
inline void split_planes(U8 w, I32 factor, U8* low, U8* high) {
    for (int i = 0; i < 64; ++i) {
        const int product = factor.v[i / 4] * ((is_signed ? int8_t(w.v[i]) : w.v[i]) - offset);
        low->v[i] = uint8_t(product & 127);
        high->v[i] = uint8_t(product >> 7);
    }
}

}  // namespace woolly::tiles

#include "kernels/generic/tiles256.h"

namespace woolly {

extern const KernelTable k_tiles_table;
constinit const KernelTable k_tiles_table = [] {
    KernelTable table = tiles::make_table("tiles");
    tiles::set_tiles(table);
    return table;
}();

}  // namespace woolly
