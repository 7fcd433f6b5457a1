// What kernels of few rows share beside their pipeline of tiles: rows that the first blocks prepare for all blocks, and
// clusters of blocks.
#pragma once

#include "primitives/ring.cuh"

constexpr int PAIR = WOOLLY_HOPPER ? 2 : 1;

// Waits for all blocks of a team. What they wrote to shared memory is there for all, until they pass another.
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
// What lies at that place in the shared memory of a block of the team: a number, or four.
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

struct Few {
    int n_columns, n_stages, n_early, n_group;  // n_early: stages that are fetched before the rows are there
    const float *x, *norm;
    float eps;
    u8* halves;     // [n_tiles * 8][n_group][64 bytes]: 16 of each lane for two mma
    float* backs;   // of each row
    u32* arrivals;  // rows that are ready, and blocks that know it; zeros between kernels
};

// How often a block polls for the rows of other blocks before it prepares them itself. Other blocks need microseconds;
// this many polls take a tenth of a millisecond.
constexpr int MAX_POLLS = 128;

// Returns whether n rows are ready, or become ready while one thread polls. All threads get the answer by a vote: so
// the compiler knows that the warp stays converged, and needs a fifth fewer registers after it.
__device__ __forceinline__ bool are_ready(const Few& few, int n_rows) {
    bool is_so = false;
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < MAX_POLLS && !is_so; i++) is_so = load_acquire(few.arrivals) >= u32(n_rows);
    }
    return __any_sync(ALL_LANES, __syncthreads_or(is_so));
}
// Normalizes rows and converts them to f16. Block b takes rows b, b + gridDim.x, ...; returns when all rows are ready.
// One thread does the work of EACH of ROW_THREADS.
//
// A block that waits too long prepares all rows itself: the same bits at the same addresses. This avoids a deadlock
// between programs that share a GPU, of which each could hold the multiprocessors that the other's blocks need.
template <int HELD, bool IS_WHOLE, int EACH = 1>
__device__ __forceinline__ void prepare_rows(const Few& few, int n_rows, int n_tiles, float* reduced) {
    int first = blockIdx.x, step = gridDim.x;
    bool is_alone = false;
#pragma unroll 1
    do {
#pragma unroll 1
        for (int row = first; row < n_rows; row += step) {
            RowHalver<HELD, IS_WHOLE, (HELD * EACH <= 7), EACH> halver(few.norm, few.n_columns, n_tiles * 256);
            const float* x = few.x + u64(row) * few.n_columns;
            const float back = halver.halve(x, few.eps, reduced, [&](int k, u32 low, u32 high) {
                *reinterpret_cast<Words2*>(few.halves + half_at(k, row, few.n_group)) = {low, high};
            });
            if (threadIdx.x == 0) few.backs[row] = back;
            __syncthreads();
            if (threadIdx.x == 0 && !is_alone) {
                __threadfence();
                atomicAdd(few.arrivals, 1u);
            }
        }
        if (is_alone) return;
        first = 0, step = 1, is_alone = true;
    } while (!are_ready(few, n_rows));
}
