// Loop over the elements of a value. grid: (rows, chunks of columns).
#pragma once

#include "primitives/common.cuh"

// Calls f(offset, row, column) for the block's elements of a value of `width` columns.
template <class F>
__device__ inline void each(const Batch* b, int kind, int width, F f) {
    const int row = blockIdx.x;
    if (row >= b->rows(kind)) return;
    for (int c = blockIdx.y * blockDim.x + threadIdx.x; c < width; c += gridDim.y * blockDim.x)
        f((long long)row * width + c, row, c);
}
