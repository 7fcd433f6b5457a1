// wgmma for attention: q.k with both operands in shared memory; exp weights in registers times V, whose rows in shared
// memory are positions. Same bits as chains of mma.
#pragma once

#include "attention/attend_mma.cuh"
#include "primitives/wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Warp-uniform value, known as such to the compiler: wgmma requires converged warps.
__device__ __forceinline__ int warp_uniform(int x) { return __shfl_sync(ALL_LANES, x, 0); }

// Descriptor of V: 64-column blocks with rows of 128 bytes, swizzled; 1024 bytes per 8 positions, `block` bytes per
// 64-column block.
__device__ __forceinline__ u64 transposed_descriptor(u32 address, u32 block) {
    return (u64(address & 0x3FFFF) >> 4) | (u64(block >> 4) << 16) | (64ull << 32) | (1ull << 62);
}

// Keeps the compiler from reading accumulators before the wait.
template <int n>
__device__ __forceinline__ void fence_registers(float (&sums)[n]) {
#pragma unroll
    for (int i = 0; i < n; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// Exp weights of a KV tile, row maxima and sums.
__device__ __forceinline__ void compute_exp_weights(u32 (&exp_weights)[KV_TILE / 16][4], float (&row_max)[2],
                                                    float (&exp_sums)[4], const float (&scores)[KV_TILE / 2],
                                                    const Query (&mine)[2], bool is_plain) {
    const float factors[2] = {mine[0].factor(is_plain), mine[1].factor(is_plain)};
    float bases[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float two[2] = {scores[2 * half], scores[2 * half + 1]};
#pragma unroll
        for (int n = 1; n < KV_TILE / 8; n++) {
            two[0] = fmaxf(two[0], scores[4 * n + 2 * half]);
            two[1] = fmaxf(two[1], scores[4 * n + 2 * half + 1]);
        }
        float max_score = fmaxf(two[0], two[1]);
        max_score = fmaxf(max_score, __shfl_xor_sync(ALL_LANES, max_score, 1));
        row_max[half] = __fmul_rn(fmaxf(max_score, __shfl_xor_sync(ALL_LANES, max_score, 2)), factors[half]);
        bases[half] = finite_max(row_max[half]);
    }
#pragma unroll
    for (int i = 0; i < KV_TILE / 16; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float* two = scores + 8 * i + 2 * e;
            exp_weights[i][e] = to_half2(exp_weight_at(two[0], factors[e % 2], bases[e % 2]),
                                         exp_weight_at(two[1], factors[e % 2], bases[e % 2]));
        }
        mma(exp_sums, exp_weights[i], ONES, ONES);
    }
}

// d = a b (64 columns, both operands in shared memory), plus d if `is_added`.
__device__ __forceinline__ void start_qk(float (&d)[32], u64 a, u64 b, int is_added) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
        "%29,%30,%31"
        "}, %32, %33, p, 1, 1, 0, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(is_added));
}

#endif
