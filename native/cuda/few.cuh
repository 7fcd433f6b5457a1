// What kernels of few rows share beside their stream of tiles: rows that the first blocks prepare for all, and blocks
// that work in teams.
#pragma once

#include "ring.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define IN_PAIRS 1
#define KERNEL_OF_TEAM(n_threads, name) \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(n_threads, 1) name
constexpr int PAIR = 2;
#else
#define IN_PAIRS 0
#define KERNEL_OF_TEAM(n_threads, name) KERNEL_OF(n_threads, name)
constexpr int PAIR = 1;
#endif

// Waits for all blocks of a team. What they wrote to shared memory is there for all, until they pass another.
template <int TEAM>
__device__ __forceinline__ void team_barrier() {
#if IN_PAIRS
    if constexpr (TEAM > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }
#endif
    __syncthreads();
}
// A number in shared memory of a block of the team.
template <int TEAM>
__device__ __forceinline__ float load_of(const float* p, int rank) {
#if IN_PAIRS
    if constexpr (TEAM > 1) {
        float x;
        u32 there;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
        asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there));
        return x;
    }
#endif
    return *p;
}

// Four of them.
template <int TEAM>
__device__ __forceinline__ float4 load_four_of(const float4* p, int rank) {
#if IN_PAIRS
    if constexpr (TEAM > 1) {
        float4 v;
        u32 there;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "r"(there));
        return v;
    }
#endif
    return *p;
}

struct Few {
    int n_columns, n_stages, n_early, n_group;  // n_early: stages that are fetched before the rows are there
    const float *x, *norm;
    float eps;
    u8* halves;     // [n_tiles * 8][n_group][64 bytes]: 16 of each lane for two mma
    float* backs;   // of each row
    u32* arrivals;  // rows that are ready, and blocks that know it; zeros between kernels
};

// Norms and halves rows, one by one, and counts them. Each thread stands for EACH of ROW_THREADS.
template <int HELD, bool IS_WHOLE, int EACH = 1>
__device__ __forceinline__ void leave_rows(const Few& few, int n_rows, int n_tiles, float* reduced) {
#ifdef WOOLLY_EMULATED
    const int first = blockIdx.x == 0 ? 0 : n_rows, step = 1;  // its blocks run one after another
#else
    const int first = blockIdx.x, step = gridDim.x;
#endif
#pragma unroll 1
    for (int row = first; row < n_rows; row += step) {
        RowHalver<HELD, IS_WHOLE, (HELD * EACH <= 7), EACH> halver(few.norm, few.n_columns, n_tiles * 256);
        const float* x = few.x + u64(row) * few.n_columns;
        const float back = halver.halve(x, few.eps, reduced, [&](int k, u32 low, u32 high) {
            u8* place = few.halves + half_at(k, row, few.n_group);
            *reinterpret_cast<u32*>(place) = low;
            *reinterpret_cast<u32*>(place + 16) = high;
        });
        if (threadIdx.x == 0) few.backs[row] = back;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(few.arrivals, 1u);
        }
    }
}
// Until all rows are ready. One thread asks.
__device__ __forceinline__ void await_rows(const Few& few, int n_rows) {
    if (threadIdx.x == 0) {
        u32 n;
        do {
#ifdef WOOLLY_EMULATED
            n = *few.arrivals;
#else
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(few.arrivals) : "memory");
#endif
        } while (n < u32(n_rows));
    }
    __syncthreads();
}
