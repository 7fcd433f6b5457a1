// A weight matrix and a weight vector, as steps hold them.
#pragma once

#include <climits>
#include <cstdint>
#include <memory>

#include "quant/types.h"

namespace woolly {

// `source` is the mapped file; `packed` is memory for its panels, or null if the budget has no room for them. A panel
// is packed ahead of its use, or by the thread that first computes with it; after the last one the pages of the file
// are given back (cpu/weights/prepare.cpp).
struct Matrix {
    int type = 0;
    TypeInfo info{};
    int64_t rows = 0, columns = 0;
    const uint8_t* source = nullptr;
    bool mapped = false;  // `source` is a mapped file, whose pages come back when they are read again
    uint8_t* packed = nullptr;
    std::unique_ptr<uint8_t[]> done;  // [n_panels]: 1 if the panel is packed
    mutable int64_t left = 0;         // panels that are not packed; read and counted down as an atomic
    bool whole = false;               // all panels were packed when the current run began
    mutable int wide_from = INT_MAX;  // rows from which its panels are opened (cpu/kernels/tune.h); read as an atomic
    int grid_from = INT_MAX;          // rows from which it is computed by tiles

    int64_t n_panels() const { return (rows + kPanel - 1) / kPanel; }
    size_t stride() const { return row_bytes(info, columns); }
};

struct Vector {
    const float* data = nullptr;
    int64_t n = 0;
};

}  // namespace woolly
