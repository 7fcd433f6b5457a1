// Shared by the MoE kernels. An entry is one expert of one row: entry row * n_used + i, experts of a row in ascending
// order.
#pragma once

#include "linears/linears.cuh"

// Work item: up to max_item_rows rows of one expert. In memory, element 0 holds the number of items in `expert`.
struct ExpertRows {
    int expert, first, n_rows, pad;  // first, n_rows: range of `members`
};

// Matrices of all experts, 16 * step bytes apart.
struct ExpertWeights {
    const u8* tiles;
    int step, n_panels, n_tiles;
    __device__ __forceinline__ const u8* of(int expert) const { return tiles + u64(expert) * u32(step) * 16; }
};
#define EXPERT_WEIGHTS const u8 *tiles, int step, int n_panels, int n_tiles
#define EXPERT_WEIGHTS_ARGS {tiles, step, n_panels, n_tiles}

// Byte offset of column k in an f16 row: 64 bytes per two mma, of which lane t has 16, eight consecutive columns.
__device__ __forceinline__ int f16_offset(int k) {
    return ((k >> 8) * 8 + (k >> 3 & 7)) * 64 + (k >> 6 & 3) * 16 + (k & 7) * 2;
}

// Output of an expert's matrix, times its scale, plus its bias.
__device__ __forceinline__ float scaled_and_biased(float y, float share, int expert, const float* scale,
                                                   const float* bias, u64 place) {
    float v = y * share;
    if (scale != nullptr) v *= scale[expert];
    return bias == nullptr ? v : v + bias[place];
}

// GLU between an expert's products: act(gate) * up of one entry.
struct GluParams {
    const float *gate_bias, *gate_scale, *up_bias, *up_scale;
    const float* shares;  // [entries], if the router weights apply to the input; else null
    int act;
    float limit;
    __device__ __forceinline__ float of(float gate, float up, int entry, int expert, int n, int column) const {
        const float share = shares == nullptr ? 1.0f : __ldcg(shares + entry);
        const u64 place = u64(expert) * n + column;
        return apply_glu(act, limit, scaled_and_biased(gate, share, expert, gate_scale, gate_bias, place),
                         scaled_and_biased(up, share, expert, up_scale, up_bias, place));
    }
};
#define GLU_PARAMS                                                                                                     \
    const float *gate_bias, const float *gate_scale, const float *up_bias, const float *up_scale, const float *shares, \
        int act, float limit
#define GLU_ARGS {gate_bias, gate_scale, up_bias, up_scale, shares, act, limit}
