// Mixtures of experts: what their kernels share. An entry is one expert of one row: entry row * n_used + i, experts of
// a row in ascending order.
#pragma once

#include "half.cuh"

// Rows that wait for one expert, as many as a kernel of many rows takes.
struct Bundle {
    int expert, first, n_rows, pad;  // of `members`
};
constexpr int BUNDLE_ROWS = 64;
// Items in memory: how many there are, in the first, then the items.

// Halved rows: 64 bytes for 32 columns, of which lane t of a group of four has 16: what two mma take of a row.
__device__ __forceinline__ int halved_at(int k) {
    return (k >> 5) * 64 + ((k & 7) >> 1) * 16 + (k >> 4 & 1) * 8 + (k >> 3 & 1) * 4;
}
