// Norm and f16 conversion of rows for expert products.
#pragma once

#include "experts/moe.cuh"
#include "primitives/block_reduce.cuh"

// Maximum over the block.
__device__ inline float block_max(float x) {
    __shared__ float parts[32];
    for (int n = 16; n; n /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, n));
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < int(blockDim.x / 32); i++) x = fmaxf(x, parts[i]);
    return x;
}

// Converts a row to f16, scaled by a power of two and zero-padded; writes the inverse scale to `inv_scale`. `row_max`
// is this thread's largest magnitude; at(k) returns column k.
template <class At>
__device__ inline void to_f16(At&& at, float row_max, int n, int n_padded, u8* x_f16, float* inv_scale) {
    const RowScale row_scale = row_scale_for(block_max(row_max));
    for (int k = 2 * threadIdx.x; k < n_padded; k += 2 * blockDim.x)
        *reinterpret_cast<u32*>(x_f16 + f16_offset(k)) =
            to_half2_saturated(k < n ? at(k) * row_scale.value : 0.0f, k + 1 < n ? at(k + 1) * row_scale.value : 0.0f);
    if (threadIdx.x == 0) *inv_scale = row_scale.inverse;
}

// RMSNorm of rows by 256 threads. Up to 4 FOURS_PER_THREAD norm weights per thread are loaded before the rows.
struct RowNormalizer {
    static constexpr int THREADS = 256, FOURS_PER_THREAD = 4;
    const float* norm;  // null: no norm
    float eps;
    int n;
    bool is_in_registers;
    float4 w[FOURS_PER_THREAD];

    __device__ __forceinline__ static int column(int i) { return 4 * (int(threadIdx.x) + i * THREADS); }
    __device__ __forceinline__ RowNormalizer(const float* norm, float eps, int n)
        : norm(norm), eps(eps), n(n), is_in_registers((n & 3) == 0 && n <= 4 * FOURS_PER_THREAD * THREADS) {
#pragma unroll
        for (int i = 0; i < FOURS_PER_THREAD; i++) {
            w[i] = make_float4(1, 1, 1, 1);
            if (is_in_registers && norm != nullptr && column(i) < n)
                w[i] = *reinterpret_cast<const float4*>(norm + column(i));
        }
    }
    // Norms row x into `here` in shared memory, visible after a barrier. Returns this thread's largest magnitude.
    __device__ __forceinline__ float apply(const float* x, float* here) const {
        float row_max = 0.0f;
        if (is_in_registers) {
            float4 v[FOURS_PER_THREAD];
            float s[4] = {0, 0, 0, 0};
#pragma unroll
            for (int i = 0; i < FOURS_PER_THREAD; i++) {
                v[i] = make_float4(0, 0, 0, 0);
                if (column(i) < n) v[i] = __ldcg(reinterpret_cast<const float4*>(x + column(i)));
            }
            float scale = 1.0f;
            if (norm != nullptr) {
#pragma unroll
                for (int i = 0; i < FOURS_PER_THREAD; i++) {
                    s[0] = fmaf(v[i].x, v[i].x, s[0]), s[1] = fmaf(v[i].y, v[i].y, s[1]);
                    s[2] = fmaf(v[i].z, v[i].z, s[2]), s[3] = fmaf(v[i].w, v[i].w, s[3]);
                }
                scale = scale_of_norm(block_sum((s[0] + s[1]) + (s[2] + s[3])), float(n), eps);
            }
#pragma unroll
            for (int i = 0; i < FOURS_PER_THREAD; i++) {
                v[i].x = v[i].x * scale * w[i].x, v[i].y = v[i].y * scale * w[i].y;
                v[i].z = v[i].z * scale * w[i].z, v[i].w = v[i].w * scale * w[i].w;
                row_max =
                    fmaxf(fmaxf(row_max, fmaxf(fabsf(v[i].x), fabsf(v[i].y))), fmaxf(fabsf(v[i].z), fabsf(v[i].w)));
                if (column(i) < n) *reinterpret_cast<float4*>(here + column(i)) = v[i];
            }
            return row_max;
        }
        for (int k = threadIdx.x; k < n; k += THREADS) here[k] = __ldcg(x + k);
        __syncthreads();
        const float scale = norm == nullptr ? 1.0f : scale_of_norm(sum_of_squares(here, n), float(n), eps);
        __syncthreads();
        for (int k = threadIdx.x; k < n; k += THREADS) {
            if (norm != nullptr) here[k] = here[k] * scale * norm[k];
            row_max = fmaxf(row_max, fabsf(here[k]));
        }
        return row_max;
    }
};

// Columns k to k + 3 of a row of n columns, zero past the end.
__device__ __forceinline__ float4 load_four(const float* row, int k, int n) {
    if ((n & 3) == 0) return *reinterpret_cast<const float4*>(row + k);
    return make_float4(row[k], k + 1 < n ? row[k + 1] : 0.0f, k + 2 < n ? row[k + 2] : 0.0f,
                       k + 3 < n ? row[k + 3] : 0.0f);
}
__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
    sum = fmaf(a.x, b.x, sum), sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum), sum = fmaf(a.w, b.w, sum);
    return sum;
}
