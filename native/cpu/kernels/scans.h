// Kernels of recurrent layers, with their contracts. They have a separate table and separate files, so that a change
// compiles in seconds, and levels that differ only in integer arithmetic share them.
#pragma once

#include <cstdint>

namespace woolly {

// Update rule of the state S [n_keys][n_columns] of a head by a token; the output is y = S^T read of the new state:
// plain: S = decay S + write v^T.
// delta: the same with beta (v - S^T probe) instead of v.
// pair:  S = decay S + write v^T + second (S^T probe)^T.
// S^T probe uses S before the token.
enum class ScanRule : uint8_t { plain, delta, pair };
constexpr int kScanRules = 3;

// Columns of a state that are stored together, row after row; the last block may be narrower. 64 columns of 128 keys
// fill two thirds of an L1 cache, and contiguous rows use all of its sets.
constexpr int64_t kStateBlock = 64;

// Tokens of one sequence through one head.
struct ScanTile {
    const float* from;  // the state before the first token
    float* state;       // the state after the last one; may be `from`
    int64_t n_keys, n_columns, n_tokens;
    const float *decay, *probe, *write, *second, *read;  // [n_tokens, n_keys]; those that the rule uses
    const float* beta;                                   // [n_tokens]
    const float* v;                                      // row stride: v_stride
    float* y;                                            // row stride: y_stride
    int64_t v_stride, y_stride;
};

// Tokens of one sequence through columns of Mamba's scan: S = exp(dt a) S + dt x b, y = c S + d x.
struct MambaTile {
    const float* from;  // [n_states, stride]
    float* state;       // may be `from`
    int64_t n_states, n_columns, n_tokens;
    const float *a, *d;   // [n_states, stride], [stride]
    const float *x, *dt;  // [n_tokens, stride]
    const float *b, *c;   // [n_tokens, n_states]
    float* y;             // [n_tokens, stride]
    int64_t stride;
};

// One output row of a convolution over the `kernel` latest rows.
struct ConvRow {
    const float* const* rows;  // [kernel], oldest first
    const float* weights;      // [kernel], at distance stride
    const float* bias;         // null for none
    float* y;
    int64_t n, stride;
    int kernel;
    bool silu;
};

struct ScanTable {
    void (*scan[kScanRules])(const ScanTile& tile);
    void (*mamba)(const MambaTile& tile);
    void (*conv)(const ConvRow& row);
};

// Returns the table of a kernel level, which must be in this build.
const ScanTable& scan_table(const char* level);

}  // namespace woolly
