// Up to 64 rows that the blocks of a kernel of many rows prepare themselves, in place of linear_prepare: its launch and
// the wait for it take longer.
#pragma once

#include "linears/small_batch.cuh"
#include "linears/wgmma_pipeline.cuh"

#if WOOLLY_HOPPER

// Rows that the blocks of a kernel prepare themselves, if `x` is not null: of up to 14,336 columns in aligned fours.
struct FusedRows {
    const float *x, *norm;
    float eps;
    u16* prepared;
    float* inv_scales;
    u32* arrivals;  // as those of Few
    int n_columns, n_stride;
};
constexpr int MAX_OWN_ROWS = 64;  // rows; linear_prepare prepares more
constexpr int ROW_BARRIER = 1,
              READY_BARRIER = 2;  // named barriers: of the consumers, and of them and the producer of rows

// The consumers of a block prepare one row, as linear_prepare does.
template <int FOURS_PER_THREAD>
__device__ __forceinline__ void prepare_row(const FusedRows& fused, int row, float* reduced) {
    constexpr int PER_THREAD = 2;
    const int n_padded = (fused.n_columns + 255) / 256 * 256;
    RowToF16<FOURS_PER_THREAD, true, false, PER_THREAD, ROW_BARRIER> to_f16(fused.norm, fused.n_columns, n_padded);
    // Two lanes that are 16 apart share their words: one stores the first of both, the other the second, which lie 16
    // bytes on or before. A lane's next fours are 1024 columns on.
    const int is_companion = threadIdx.x & 16;
    u64 to = reinterpret_cast<u64>(fused.prepared +
                                   prepared_at(row, place_of(4 * (row_thread<PER_THREAD>() & ~16)), fused.n_stride)) ^
             is_companion;
    const float inv_scale =
        to_f16.convert(fused.x + u64(row) * fused.n_columns, fused.eps, reduced, [&](int, u32 low, u32 high) {
            const u32 brought = __shfl_xor_sync(ALL_LANES, is_companion ? low : high, 16);
            *reinterpret_cast<Words2*>(to) = {is_companion ? brought : low, is_companion ? high : brought};
            to += u64(fused.n_stride) * 2048;
        });
    if (threadIdx.x == 0) fused.inv_scales[row] = inv_scale;
    named_barrier(ROW_BARRIER, 256);
}
// Block b prepares rows b, b + gridDim.x, ... for all blocks, and waits for those of others; as prepare_rows of
// small_batch.cuh, it prepares all rows itself if it waits too long.
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

// Consumers: the rows of the kernel before, if they are its own to prepare.
__device__ __forceinline__ void prepare_fused_rows(const FusedRows& fused, int n_rows, float* reduced) {
    if (fused.n_columns <= 2 * 4 * ROW_THREADS)
        prepare_rows_of_block<2>(fused, n_rows, reduced);
    else
        prepare_rows_of_block<7>(fused, n_rows, reduced);
    named_barrier(READY_BARRIER, 288);
}
// Producer of rows: waits for them.
__device__ __forceinline__ void await_fused_rows() {
    named_barrier(READY_BARRIER, 288);
    fence_async_proxy();
}
// The last block leaves zeros.
__device__ __forceinline__ void reset_arrivals(const FusedRows& fused) {
    if (threadIdx.x == 0 && atomicAdd(fused.arrivals + 1, 1u) + 1 == gridDim.x)
        fused.arrivals[0] = fused.arrivals[1] = 0;
}

#endif
