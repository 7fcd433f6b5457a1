// Packing: interleaves 16 rows of a matrix so that a lane is a row and kernels need no sum over lanes.
#pragma once

#include "cpu/kernels/table.h"

namespace woolly {

// Bytes of a packed panel of 16 rows, equal to its size in the file.
inline size_t panel_bytes(TypeInfo t, int64_t columns) { return row_bytes(t, columns) * kPanel; }

// Packs rows [0, n_rows) at `source` (n_rows <= 16, `stride` bytes apart) into one panel, in the order of the type's
// layout (quant/types.h). Missing rows become zeros. `panel` has panel_bytes(type, columns) bytes. With
// `q4_k_in_row_pairs`, a byte of Q4_K holds a column of rows r and r + 8, the latter minus 8
// (cpu/kernels/isa/neon_pairs.h); else columns c and c + 32 of one row, as in the file.
void pack_panel(int ggml_type, const uint8_t* source, size_t stride, int n_rows, int64_t columns,
                bool q4_k_in_row_pairs, uint8_t* panel);

// True if an F16 panel has no infinity or NaN.
bool finite_halves(const uint8_t* panel, size_t bytes);

}  // namespace woolly
