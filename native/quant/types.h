// Sizes of the storage types, and which activations each one is multiplied with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/table.h"

namespace woolly {

struct TypeInfo {
    int block;  // columns per block; 0: not a type that can be computed with
    int bytes;  // per block and row
    Activation activation;
};

TypeInfo type_info(int ggml_type);

inline size_t row_bytes(TypeInfo t, int64_t columns) { return size_t(columns / t.block) * size_t(t.bytes); }

// Bytes of one packed panel: 16 rows, as many as in the file.
inline size_t panel_bytes(TypeInfo t, int64_t columns) { return row_bytes(t, columns) * kPanel; }

}  // namespace woolly
