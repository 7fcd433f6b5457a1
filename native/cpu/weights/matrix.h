// Weight matrices and vectors of steps.
#pragma once

#include <climits>
#include <cstdint>
#include <memory>

#include "quant/types.h"

namespace woolly {

// `source` is the mapped file; `packed` is memory for its panels, or null if the budget has no room. A panel is packed
// ahead of time, or by the first thread that uses it; after the last one the file's pages are released
// (cpu/weights/prepare.cpp).
struct Matrix {
    int type = 0;
    TypeInfo info{};
    int64_t rows = 0, columns = 0;
    const uint8_t* source = nullptr;
    bool mapped = false;  // `source` is a mapped file, whose released pages are read again on access
    uint8_t* packed = nullptr;
    std::unique_ptr<uint8_t[]> done;  // [n_panels]: 1 if the panel is packed
    mutable int64_t left = 0;         // panels not packed yet; atomic access
    bool whole = false;               // all panels were packed when the current run began
    mutable int wide_from = INT_MAX;  // minimum rows for opened panels (cpu/kernels/tune.h); atomic access
    int grid_from = INT_MAX;          // minimum rows for tile kernels

    int64_t n_panels() const { return (rows + kPanel - 1) / kPanel; }
    size_t stride() const { return row_bytes(info, columns); }
};

struct Vector {
    const float* data = nullptr;
    int64_t n = 0;
};

}  // namespace woolly
