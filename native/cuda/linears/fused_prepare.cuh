// Fused preparation of up to 64 rows: the blocks of a GEMM kernel norm and convert the rows themselves. A separate
// linear_prepare costs a launch and a wait.
#pragma once

#include "linears/small_batch.cuh"
#include "linears/wgmma_pipeline.cuh"

#if WOOLLY_HOPPER

// Arguments of the fused preparation; `x` is null without it. Rows have up to 14,336 columns, a multiple of 4.
struct FusedRows {
    const float *x, *norm;
    float eps;
    u16* prepared;
    float* inv_scales;
    u32* arrivals;  // see SmallBatch
    int n_columns, n_stride;
};
constexpr int MAX_OWN_ROWS = 64;  // linear_prepare prepares larger batches
constexpr int ROW_BARRIER = 1,
              READY_BARRIER = 2;  // named barriers: consumers; consumers and the row producer

// Consumers prepare one row, with the same result as linear_prepare.
template <int FOURS_PER_THREAD>
__device__ __forceinline__ void prepare_row(const FusedRows& fused, int row, float* reduced) {
    constexpr int PER_THREAD = 2;
    const int n_padded = (fused.n_columns + 255) / 256 * 256;
    RowToF16<FOURS_PER_THREAD, true, false, PER_THREAD, ROW_BARRIER> to_f16(fused.norm, fused.n_columns, n_padded);
    // Lanes i and i + 16 exchange words so that each stores 8 contiguous bytes; their addresses differ by 16. The next
    // float4 of a lane is 1024 columns further.
    const int is_upper_lane = threadIdx.x & 16;
    u64 to = reinterpret_cast<u64>(fused.prepared +
                                   prepared_at(row, place_of(4 * (row_thread<PER_THREAD>() & ~16)), fused.n_stride)) ^
             is_upper_lane;
    const float inv_scale =
        to_f16.convert(fused.x + u64(row) * fused.n_columns, fused.eps, reduced, [&](int, u32 low, u32 high) {
            const u32 brought = __shfl_xor_sync(ALL_LANES, is_upper_lane ? low : high, 16);
            *reinterpret_cast<Words2*>(to) = {is_upper_lane ? brought : low, is_upper_lane ? high : brought};
            to += u64(fused.n_stride) * 2048;
        });
    if (threadIdx.x == 0) fused.inv_scales[row] = inv_scale;
    named_barrier(ROW_BARRIER, 256);
}
// Block b prepares rows b, b + gridDim.x, ... and waits for the rows of other blocks. On a timeout it prepares all rows
// itself, as prepare_rows of small_batch.cuh.
template <int FOURS_PER_THREAD>
__device__ __forceinline__ void prepare_rows_of_block(const FusedRows& fused, int n_rows, float* reduced) {
    int first = blockIdx.x, step = gridDim.x;
    bool prepares_all = false;
#pragma unroll 1
    while (true) {
#pragma unroll 1
        for (int row = first; row < n_rows; row += step) {
            prepare_row<FOURS_PER_THREAD>(fused, row, reduced);
            if (threadIdx.x == 0 && !prepares_all) {
                __threadfence();
                atomicAdd(fused.arrivals, 1u);
            }
        }
        if (prepares_all) break;
        if (threadIdx.x == 0) {
            bool is_ready = false;
#pragma unroll 1
            for (int i = 0; i < MAX_POLLS && !is_ready; i++) is_ready = load_acquire(fused.arrivals) >= u32(n_rows);
            reduced[0] = is_ready;
        }
        named_barrier(ROW_BARRIER, 256);
        if (reduced[0] != 0.f) break;
        named_barrier(ROW_BARRIER, 256);
        first = 0, step = 1, prepares_all = true;
    }
    if (prepares_all) __threadfence();
}

// Consumers: prepare the rows and release the row producer.
__device__ __forceinline__ void prepare_fused_rows(const FusedRows& fused, int n_rows, float* reduced) {
    if (fused.n_columns <= 2 * 4 * ROW_THREADS)
        prepare_rows_of_block<2>(fused, n_rows, reduced);
    else
        prepare_rows_of_block<7>(fused, n_rows, reduced);
    named_barrier(READY_BARRIER, 288);
}
// Row producer: waits for the prepared rows.
__device__ __forceinline__ void await_fused_rows() {
    named_barrier(READY_BARRIER, 288);
    fence_async_proxy();
}
// The last block resets the counters.
__device__ __forceinline__ void reset_arrivals(const FusedRows& fused) {
    if (threadIdx.x == 0 && atomicAdd(fused.arrivals + 1, 1u) + 1 == gridDim.x)
        fused.arrivals[0] = fused.arrivals[1] = 0;
}

#endif
