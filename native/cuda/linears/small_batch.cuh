// Shared by the small-batch kernels (rows8, rows32): cooperative preparation of rows by the first blocks, and clusters
// of TEAM blocks.
#pragma once

#include "linears/tile_stream.cuh"

constexpr int PAIR = WOOLLY_HOPPER ? 2 : 1;

// Barrier of a cluster of TEAM blocks; writes to shared memory before it are visible to all of them.
template <int TEAM>
__device__ __forceinline__ void team_barrier() {
    if constexpr (TEAM > 1) {
#ifdef WOOLLY_EMULATED
        emulated::group_barrier();
#elif WOOLLY_HOPPER
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    } else {
        __syncthreads();
    }
}
// Loads a float or float4 at the same shared address in block `rank` of the cluster.
template <int TEAM, class T>
__device__ __forceinline__ T load_of(const T* p, int rank) {
    if constexpr (TEAM == 1) {
        return *p;
    } else {
#ifdef WOOLLY_EMULATED
        return *reinterpret_cast<const T*>(emulated::dynamic_shared(rank) + shared_address(p));
#else
        u32 there;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
        T out;
        if constexpr (sizeof(T) == 4)
            asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(out) : "r"(there));
        else
            asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w)
                         : "r"(there));
        return out;
#endif
    }
}

struct SmallBatch {
    int n_columns, n_stages, n_early, n_group;  // n_early: stages fetched before the rows are ready
    const float *x, *norm;
    float eps;
    u8* x_f16;          // [n_tiles * 8][n_group][64 bytes]: 16 bytes per lane for two mma
    float* inv_scales;  // [n_group]
    u32* arrivals;      // [2]: rows ready, blocks done; zero between kernels
};

// Polls before a block prepares the rows of other blocks itself: 0.1 ms, where other blocks normally need microseconds.
constexpr int MAX_POLLS = 128;

// Returns true once n_rows rows are ready, false on a timeout; one thread polls. The result is a warp vote, so the
// compiler knows that the warp is converged and needs a fifth fewer registers.
__device__ __forceinline__ bool wait_for_rows_ready(const SmallBatch& input, int n_rows) {
    bool is_so = false;
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < MAX_POLLS && !is_so; i++) is_so = load_acquire(input.arrivals) >= u32(n_rows);
    }
    return __any_sync(ALL_LANES, __syncthreads_or(is_so));
}
// Norms rows and converts them to f16: block b takes rows b, b + gridDim.x, ... Returns when all rows are ready.
// PER_THREAD as in RowToF16.
//
// After a timeout a block prepares all rows itself, writing the same bits to the same addresses. This avoids a deadlock
// between processes that share a GPU and hold each other's multiprocessors.
template <int FOURS_PER_THREAD, bool IS_ONE_PASS, int PER_THREAD = 1>
__device__ __forceinline__ void prepare_rows(const SmallBatch& input, int n_rows, int n_tiles, float* reduced) {
    int first = blockIdx.x, step = gridDim.x;
    bool prepares_all = false;
#pragma unroll 1
    do {
#pragma unroll 1
        for (int row = first; row < n_rows; row += step) {
            RowToF16<FOURS_PER_THREAD, IS_ONE_PASS, (FOURS_PER_THREAD * PER_THREAD <= 7), PER_THREAD> to_f16(
                input.norm, input.n_columns, n_tiles * 256);
            const float* x = input.x + u64(row) * input.n_columns;
            const float inv_scale = to_f16.convert(x, input.eps, reduced, [&](int k, u32 low, u32 high) {
                *reinterpret_cast<Words2*>(input.x_f16 + f16_row_offset(k, row, input.n_group)) = {low, high};
            });
            if (threadIdx.x == 0) input.inv_scales[row] = inv_scale;
            __syncthreads();
            if (threadIdx.x == 0 && !prepares_all) {
                __threadfence();
                atomicAdd(input.arrivals, 1u);
            }
        }
        if (prepares_all) return;
        first = 0, step = 1, prepares_all = true;
    } while (!wait_for_rows_ready(input, n_rows));
}
