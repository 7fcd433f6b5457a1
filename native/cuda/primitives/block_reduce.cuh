// Block reductions. Their order depends only on the number of threads, so a row gives the same bits in every batch.
#pragma once

#include "primitives/common.cuh"

// Two values reduced together.
struct SumPair {
    float a, b;
};

// Returns both sums over the block to every thread. All threads must call it; their number is a multiple of 32.
__device__ inline SumPair block_sum2(float a, float b) {
    __shared__ SumPair parts[32];
    for (int n = 16; n; n /= 2) {
        a += __shfl_xor_sync(ALL_LANES, a, n);
        b += __shfl_xor_sync(ALL_LANES, b, n);
    }
    const int n_warps = blockDim.x / 32;
    if (n_warps == 1) return {a, b};
    __syncthreads();  // the previous reduction has been read
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = {a, b};
    __syncthreads();
    a = b = 0.0f;
    for (int i = 0; i < n_warps; i++) {
        a += parts[i].a;
        b += parts[i].b;
    }
    return {a, b};
}

__device__ inline float block_sum(float a) { return block_sum2(a, 0.0f).a; }

// Sum of squares of n floats over the block, with four accumulators per thread.
__device__ inline float sum_of_squares(const float* x, int n) {
    float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (n % 4 == 0) {  // x is 16-byte aligned
        for (int i = 4 * threadIdx.x; i < n; i += 4 * blockDim.x) {
            const float4 v = *(const float4*)(x + i);
            s[0] = fmaf(v.x, v.x, s[0]);
            s[1] = fmaf(v.y, v.y, s[1]);
            s[2] = fmaf(v.z, v.z, s[2]);
            s[3] = fmaf(v.w, v.w, s[3]);
        }
    } else {  // same sums, same order
        for (int i = 4 * threadIdx.x; i < n; i += 4 * blockDim.x)
            for (int j = 0; j < 4 && i + j < n; j++) s[j] = fmaf(x[i + j], x[i + j], s[j]);
    }
    return block_sum((s[0] + s[1]) + (s[2] + s[3]));
}
