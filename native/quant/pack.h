// Packing: 16 rows of a matrix interleaved so that a lane is a row and no kernel sums over lanes.
#pragma once

#include "quant/types.h"

namespace woolly {

// Packs rows [0, n_rows) at `source` (n_rows <= 16, `stride` bytes apart) into one panel. Missing rows become zeros.
// `panel` has panel_bytes(type, columns) bytes.
void pack_panel(int ggml_type, const uint8_t* source, size_t stride, int n_rows, int64_t columns, uint8_t* panel);

// Writes one row as f32.
void dequantize_row(int ggml_type, const uint8_t* source, int64_t columns, float* out);

}  // namespace woolly
