// Packing: 16 rows of a matrix interleaved so that a lane is a row and no kernel sums over lanes.
#pragma once

#include "quant/types.h"

namespace woolly {

// Packs rows [0, n_rows) at `source` (n_rows <= 16, `stride` bytes apart) into one panel. Missing rows become zeros.
// `panel` has panel_bytes(type, columns) bytes. With `pairs`, a byte of Q4_K holds a column of rows r and r + 8, the
// latter minus 8 (kernels/isa/neon_pairs.h); else columns c and c + 32 of one row, as in the file.
void pack_panel(int ggml_type, const uint8_t* source, size_t stride, int n_rows, int64_t columns, bool pairs,
                uint8_t* panel);

// Whether no value of an F16 panel is infinite or NaN.
bool finite_halves(const uint8_t* panel, size_t bytes);

// Writes one row as f32.
void dequantize_row(int ggml_type, const uint8_t* source, int64_t columns, float* out);

}  // namespace woolly
