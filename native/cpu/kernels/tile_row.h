// Rows of activations in tiles (cpu/kernels/table.h).
#pragma once

#include <cstring>

#include "cpu/kernels/table.h"
#include "cpu/kernels/vec4.h"

namespace woolly {

// Writes four rows of f32, `distance` numbers apart, as rows r to r + 3 of their tile, like four calls of
// write_tile_row: a cache line of a tile has one number per row, and row by row it would be written 16 times.
inline void write_four_rows(const float* x, int64_t distance, int64_t columns, int r, uint8_t* tiles, int64_t step) {
    constexpr int sum = kFloatColumns / 4 * kTileRows;
    for (int64_t from = 0; from < columns; from += kFloatColumns, tiles += step) {
        const int64_t end = columns - from < kFloatColumns ? columns : from + kFloatColumns;
        float* to = reinterpret_cast<float*>(tiles) + r;
        for (int64_t c = from; c < end; c += 4, to += kTileRows) {
            FourFloats row[4];
            for (int i = 0; i < 4; ++i) std::memcpy(&row[i], x + i * distance + c, 16);
            const FourFloats low[] = {choose_four<0, 4, 1, 5>(row[0], row[1]), choose_four<0, 4, 1, 5>(row[2], row[3])};
            const FourFloats high[] = {choose_four<2, 6, 3, 7>(row[0], row[1]),
                                       choose_four<2, 6, 3, 7>(row[2], row[3])};
            const FourFloats column[] = {
                choose_four<0, 1, 4, 5>(low[0], low[1]), choose_four<2, 3, 6, 7>(low[0], low[1]),
                choose_four<0, 1, 4, 5>(high[0], high[1]), choose_four<2, 3, 6, 7>(high[0], high[1])};
            for (int i = 0; i < 4; ++i) std::memcpy(to + i * sum, &column[i], 16);
        }
    }
}

// Writes a row as row `r` of its tile in each block of columns. `tiles` is the tile of the first block; the next starts
// `step` bytes later.
inline void write_tile_row(Activation kind, const ActivationRow& row, int64_t columns, int r, uint8_t* tiles,
                           int64_t step) {
    if (kind == Activation::f32) {
        for (int64_t from = 0; from < columns; from += kFloatColumns, tiles += step) {
            const int64_t n = columns - from < kFloatColumns ? columns - from : kFloatColumns;
            float* to = reinterpret_cast<float*>(tiles) + r;
            for (int64_t c = 0; c < n; c += 4, to += kTileRows)
                for (int i = 0; i < 4; ++i) to[i * kFloatColumns / 4 * kTileRows] = row.x[from + c + i];
        }
        return;
    }
    if (kind == Activation::q8_32) {
        for (int64_t b = 0; b < columns / 32; ++b, tiles += step) {
            const int32_t less = -row.sums[b];
            std::memcpy(tiles + 32 * r, row.q + 32 * b, 32);
            std::memcpy(tiles + kTile32Scales + 4 * r, row.scale + b, 4);
            std::memcpy(tiles + kTile32Lows + 4 * r, row.lows + b, 4);
            std::memcpy(tiles + kTile32Less + 4 * r, &less, 4);
        }
        return;
    }
    for (int64_t b = 0; b < columns / kTileColumns; ++b, tiles += step) {
        for (int k = 0; k < 4; ++k) std::memcpy(tiles + 1024 * k + 64 * r, row.q + kTileColumns * b + 64 * k, 64);
        std::memcpy(tiles + kTileScales + 4 * r, row.scale + b, 4);
        int16_t of_32[8], of_16[16];
        for (int i = 0; i < 16; ++i) of_16[i] = int16_t(row.sums[16 * b + i]);
        for (int i = 0; i < 8; ++i) of_32[i] = int16_t(of_16[2 * i] + of_16[2 * i + 1]);
        std::memcpy(tiles + kTileSums32 + 16 * r, of_32, sizeof of_32);
        std::memcpy(tiles + kTileSums16 + 32 * r, of_16, sizeof of_16);
    }
}

}  // namespace woolly
