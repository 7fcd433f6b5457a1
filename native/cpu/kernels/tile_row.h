// One row of activations in tiles (cpu/kernels/table.h).
#pragma once

#include <cstring>

#include "cpu/kernels/table.h"

namespace woolly {

// Writes a row as row `r` of its tile of each block of columns. `tiles` is the tile of the first block,
// the next one begins `step` bytes on.
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
