// Up to 64 rows that the blocks of a kernel of many rows prepare themselves, in place of linear_prepare: its launch and
// the wait for it take longer.
#pragma once

#include "linears/wide.cuh"
#include "primitives/small_batch.cuh"

#if WOOLLY_HOPPER

// Rows that the blocks of a kernel prepare themselves, if `x` is not null: of up to 14,336 columns in aligned fours.
struct OwnRows {
    const float *x, *norm;
    float eps;
    u16* prepared;
    float* backs;
    u32* arrivals;  // as those of Few
    int n_columns, n_stride;
};
constexpr int MAX_OWN_ROWS = 64;      // rows; linear_prepare prepares more
constexpr int OF_ROW = 1, READY = 2;  // named barriers: of the consumers, and of them and the producer of rows

// The consumers of a block prepare one row, as linear_prepare does.
template <int HELD>
__device__ __forceinline__ void prepare_row(const OwnRows& own, int row, float* reduced) {
    constexpr int EACH = 2;
    const int n_padded = (own.n_columns + 255) / 256 * 256;
    RowHalver<HELD, true, false, EACH, OF_ROW> halver(own.norm, own.n_columns, n_padded);
    // Two lanes that are 16 apart share their words: one stores the first of both, the other the second, which lie 16
    // bytes on or before. A lane's next fours are 1024 columns on.
    const int is_companion = threadIdx.x & 16;
    u64 to =
        reinterpret_cast<u64>(own.prepared + prepared_at(row, place_of(4 * (row_thread<EACH>() & ~16)), own.n_stride)) ^
        is_companion;
    const float back = halver.halve(own.x + u64(row) * own.n_columns, own.eps, reduced, [&](int, u32 low, u32 high) {
        const u32 brought = __shfl_xor_sync(ALL_LANES, is_companion ? low : high, 16);
        *reinterpret_cast<Words2*>(to) = {is_companion ? brought : low, is_companion ? high : brought};
        to += u64(own.n_stride) * 2048;
    });
    if (threadIdx.x == 0) own.backs[row] = back;
    named_barrier(OF_ROW, 256);
}
// Block b prepares rows b, b + gridDim.x, ... for all blocks, and waits for those of others; as prepare_rows of
// small_batch.cuh, it prepares all rows itself if it waits too long.
template <int HELD>
__device__ __forceinline__ void prepare_own(const OwnRows& own, int n_rows, float* reduced) {
    int first = blockIdx.x, step = gridDim.x;
    bool is_alone = false;
#pragma unroll 1
    while (true) {
#pragma unroll 1
        for (int row = first; row < n_rows; row += step) {
            prepare_row<HELD>(own, row, reduced);
            if (threadIdx.x == 0 && !is_alone) {
                __threadfence();
                atomicAdd(own.arrivals, 1u);
            }
        }
        if (is_alone) break;
        if (threadIdx.x == 0) {
            bool is_ready = false;
#pragma unroll 1
            for (int i = 0; i < MAX_POLLS && !is_ready; i++) is_ready = load_acquire(own.arrivals) >= u32(n_rows);
            reduced[0] = is_ready;
        }
        named_barrier(OF_ROW, 256);
        if (reduced[0] != 0.f) break;
        named_barrier(OF_ROW, 256);
        first = 0, step = 1, is_alone = true;
    }
    if (is_alone) __threadfence();
}

// Consumers: the rows of the kernel before, if they are its own to prepare.
__device__ __forceinline__ void own_rows(const OwnRows& own, int n_rows, float* reduced) {
    if (own.n_columns <= 2 * 4 * ROW_THREADS)
        prepare_own<2>(own, n_rows, reduced);
    else
        prepare_own<7>(own, n_rows, reduced);
    named_barrier(READY, 288);
}
// Producer of rows: waits for them.
__device__ __forceinline__ void await_own_rows() {
    named_barrier(READY, 288);
    fence_async_proxy();
}
// The last block leaves zeros.
__device__ __forceinline__ void leave_own_rows(const OwnRows& own) {
    if (threadIdx.x == 0 && atomicAdd(own.arrivals + 1, 1u) + 1 == gridDim.x) own.arrivals[0] = own.arrivals[1] = 0;
}

#endif
