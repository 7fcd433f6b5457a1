// Mixtures of experts: what their kernels share. An entry is one expert of one row: entry row * n_used + i, experts of
// a row in ascending order.
#pragma once

#include "linears/linears.cuh"

// Rows that wait for one expert, as many as a kernel takes at once.
struct ExpertRows {
    int expert, first, n_rows, pad;  // of `members`
};
// Items in memory: how many there are, in the first, then the items.

// Matrices of experts, `step` times 16 bytes apart.
struct ExpertWeights {
    const u8* tiles;
    int step, n_panels, n_tiles;
    __device__ __forceinline__ const u8* of(int expert) const { return tiles + u64(expert) * u32(step) * 16; }
};
#define EXPERT_WEIGHTS const u8 *tiles, int step, int n_panels, int n_tiles
#define EXPERT_WEIGHTS_ARGS {tiles, step, n_panels, n_tiles}

// Halved rows: 64 bytes for two mma, of which lane t of a group of four has 16: eight columns that follow one another.
__device__ __forceinline__ int f16_offset(int k) {
    return ((k >> 8) * 8 + (k >> 3 & 7)) * 64 + (k >> 6 & 3) * 16 + (k & 7) * 2;
}

// What an expert's matrix gave, times its scale, plus its bias.
__device__ __forceinline__ float scaled_and_biased(float y, float share, int expert, const float* scale,
                                                   const float* bias, u64 place) {
    float v = y * share;
    if (scale != nullptr) v *= scale[expert];
    return bias == nullptr ? v : v + bias[place];
}

// What stands between an expert's products: act(gate) * up, of numbers of one entry.
struct GluParams {
    const float *gate_bias, *gate_scale, *up_bias, *up_scale;
    const float* shares;  // of entries, if their rows are weighed; else null
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
