// GEMM on Hopper: 128 weight rows by NT activation rows per block.
//
// Two consumer warpgroups unpack tiles into registers as operand A of wgmma; prepared rows in shared memory are operand
// B; one warp copies tiles, another rows (wgmma_pipeline.cuh). The sum of a slice and the sum over slices have separate
// registers. Clusters of two blocks share activation rows: each block copies half of them for both.
//
// If a matrix has too few rows for all multiprocessors, blocks take part of the slices each and leave the sums in
// `parts` for linear_reduce (split-K). If the items do not fill complete rounds, the last ones are distributed by
// slices (stream-K): a cluster starts an item, hands over its sum, and the next cluster continues.
#include "linears/fused_prepare.cuh"
#include "linears/stream_k.cuh"

#if WOOLLY_HOPPER

namespace {

// Item of one block of the cluster. Past the last weight rows it repeats them; those results are not stored.
struct PairItem : Item {
    bool is_stored;
    __device__ __forceinline__ PairItem(const Items& items, int number, int n_in, int pair, int rank)
        : Item(items, min(2 * pair + rank, items.n_w_blocks - 1), number - pair * n_in),
          is_stored(2 * pair + rank < items.n_w_blocks) {}
    __device__ __forceinline__ PairItem(const Items& items, int number, int rank)
        : PairItem(items, number, items.n_x_blocks * items.n_splits, number / (items.n_x_blocks * items.n_splits),
                   rank) {}
};

// Sum that a warp hands over for an unfinished item. Each has a flag, zero between kernels.
template <int NT>
__device__ __forceinline__ float4* handoff_at(float* parts, int block, int warp) {
    return reinterpret_cast<float4*>(parts) + (block * 8 + warp) * (NT * 4) + (threadIdx.x & 31);
}
template <int NT>
__device__ __forceinline__ void send_sum(const float (&sum)[NT / 2], float* parts, u32* flags, int warp) {
    float4* to = handoff_at<NT>(parts, blockIdx.x, warp);
#pragma unroll
    for (int i = 0; i < NT / 2; i += 4) __stcg(to + i * 8, make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]));
    __threadfence();
    __syncwarp();
    if ((threadIdx.x & 31) == 0) store_release(flags + blockIdx.x * 8 + warp, 1);
}
// Continues from the sum of the previous cluster.
template <int NT>
__device__ __forceinline__ void receive_sum(float (&sum)[NT / 2], float* parts, u32* flags, int warp) {
    u32* flag = flags + (blockIdx.x - 2) * 8 + warp;
    if ((threadIdx.x & 31) == 0) {
        while (!load_acquire(flag)) spin_wait();
        *flag = 0;
    }
    __syncwarp();
    const float4* from = handoff_at<NT>(parts, blockIdx.x - 2, warp);
#pragma unroll
    for (int i = 0; i < NT / 2; i += 4) {
        const float4 v = __ldcg(from + i * 8);
        sum[i] = v.x, sum[i + 1] = v.y, sum[i + 2] = v.z, sum[i + 3] = v.w;
    }
}

// State shared by all roles of a block.
template <class T, int NT>
struct WgmmaRoles {
    const Rings<T, NT>& rings;
    const u16* x;
    const float* inv_scales;
    int x_stride, n_rows, n_tiles, n_splits;
    const Matrix (&all)[3];
    const EpilogueParams& epi;
    float* parts;
    u32* flags;
    const Items& items;
    int lane, warp, rank;

    // Tile producer.
    __device__ __forceinline__ void copy_tiles(StreamKScheduler& scheduler) const {
        const u64 policy = items.n_x_blocks > 1 ? evict_last_policy() : evict_first_policy();
        PipelineState pipe = {rings.n_tile_stages, 0, 1};
        WorkRange part;
        while (scheduler.next(part)) {
            const PairItem item(items, part.number, rank);
            const Matrix m = matrix_at(all, item.which);
            // Past the last panel: reload it; its results are discarded.
            const u8* from =
                m.tiles + u64(min(item.w_block * 8 + (lane & 7), m.n_panels - 1)) * n_tiles * Tile<T>::bytes;
            const int end = slice_start(part.end, n_tiles);
            for (int tile = slice_start(part.first, n_tiles); tile < end; tile++)
                rings.copy_tiles(pipe, from + u64(tile) * Tile<T>::bytes, lane, policy);
        }
    }
    // Row producer.
    __device__ __forceinline__ void copy_rows(StreamKScheduler& scheduler) const {
        const u64 policy = evict_last_policy();
        PipelineState pipe = {rings.n_row_stages, 0, 1};
        WorkRange part;
        while (scheduler.next(part)) {
            const PairItem item(items, part.number, rank);
            const u16* from = x + u64(item.x_block * NT + rank * (NT / 2)) * 64;
            const int end = slice_start(part.end, n_tiles) * 4;
            for (int block = slice_start(part.first, n_tiles) * 4; block < end; block++)
                rings.copy_rows(pipe, from + u64(block) * x_stride * 64, rings.ROW_BYTES / 2, rank, lane, policy);
        }
        rings.drain_rows(pipe);
    }

    // Accumulates one slice. `last`: last tile of the range.
    __device__ __forceinline__ void multiply(Consumer<T, NT>& consumer, float (&acc)[NT / 2], int slice,
                                             int last) const {
        int is_added = 0, before = -1;
        for (int tile = slice_start(slice, n_tiles); tile < slice_start(slice + 1, n_tiles); tile++) {
#pragma unroll
            for (int k64 = 0; k64 < 4; k64++) {
                const u64 operand = consumer.wait_for_rows();
                wgmma_fence();
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    Wgmma<NT>::go(acc, consumer.a[k64 & 1][e], operand + e * 2, is_added);
                    is_added = 1;
                }
                wgmma_commit();
                wgmma_wait<1>();
                if (before >= 0) consumer.free_rows(before);
                before = consumer.row.stage;
                consumer.row.advance();
                // Unpack the next fragments while wgmma runs.
                if (k64 < 3) {
                    consumer.unpack(k64 + 1);
                } else {
                    consumer.free_tile();
                    if (tile < last) consumer.unpack_next_tile();
                }
            }
        }
        wgmma_wait<0>();
        if (before >= 0) consumer.free_rows(before);
        if (before < 0) {  // fewer tiles than slices
#pragma unroll
            for (int i = 0; i < NT / 2; i++) acc[i] = 0;
        }
    }
    // Consumers: products and epilogue.
    __device__ __forceinline__ void consume(StreamKScheduler& scheduler) const {
        constexpr int CHUNK = NT / 4 < 8 ? NT / 4 : 8;
        Consumer<T, NT> consumer(rings, lane, warp);
        // Inverse scales of the item's rows, one copy per warp.
        float* inv_scale = rings.rest() + warp * NT;
        WorkRange part;
        while (scheduler.next(part)) {
            const PairItem item(items, part.number, rank);
            // Few of them stay in registers until the epilogue.
            constexpr bool SCALES_IN_REGISTERS = NT <= 64;
            float scale_registers[SCALES_IN_REGISTERS ? (NT + 31) / 32 : 1];
            __syncwarp();
#pragma unroll
            for (int i = 0; i < NT; i += 32) {
                const float one = __ldcg(inv_scales + min(item.x_block * NT + i + lane, n_rows - 1));
                if (SCALES_IN_REGISTERS)
                    scale_registers[i / 32] = one;
                else if (i + lane < NT)
                    inv_scale[i + lane] = one;
            }
            float sum[NT / 2], acc[NT / 2];
            if (n_splits == 1 && part.first > 0) {
                receive_sum<NT>(sum, parts, flags, warp);
            } else {
#pragma unroll
                for (int i = 0; i < NT / 2; i++) sum[i] = 0;
            }
            const int last = slice_start(part.end, n_tiles) - 1;
            if (slice_start(part.first, n_tiles) <= last) consumer.unpack_next_tile();
            for (int slice = part.first; slice < part.end; slice++) {
                multiply(consumer, acc, slice, last);
                if (n_splits == 1) {
#pragma unroll
                    for (int i = 0; i < NT / 2; i++) sum[i] += acc[i];
                } else if (item.is_stored) {
                    store_part<NT>(acc, parts, items, item, slice, warp);
                }
            }
            if (n_splits > 1) continue;
            if (part.end < scheduler.n_slices)
                send_sum<NT>(sum, parts, flags, warp);
            else if (item.is_stored) {
                if constexpr (SCALES_IN_REGISTERS) {
#pragma unroll
                    for (int i = 0; i < NT; i += 32)
                        if (i + lane < NT) inv_scale[i + lane] = scale_registers[i / 32];
                    __syncwarp();
                }
                store_item<NT, CHUNK>(sum, all, item, warp, n_tiles * Tile<T>::bytes, n_rows, epi,
                                      [&](int row) { return inv_scale[row]; });
            }
        }
    }
};

template <class T, int NT>
__device__ __forceinline__ void linear_wgmma(const Batch* batch, int kind, const u16* x, const float* inv_scales,
                                             int x_stride, int n_columns, const Matrix (&all)[3],
                                             const EpilogueParams& epi, float* parts, u32* flags, int n_splits,
                                             int n_tile_stages, int n_row_stages, const FusedRows& fused) {
    DYNAMIC_SHARED(raw);
    const Rings<T, NT> rings(raw, n_tile_stages, n_row_stages);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rank = blockIdx.x & 1;
    rings.start();
    launch_dependents();
    const int n_rows = batch->rows(kind), n_tiles = (n_columns + 255) / 256;
    const Items items(all, n_rows, NT, n_splits);
    StreamKScheduler scheduler(blockIdx.x >> 1, gridDim.x >> 1,
                               (items.n_w_blocks + 1) / 2 * items.n_x_blocks * n_splits, n_tiles, n_splits);
    const WgmmaRoles<T, NT> roles = {rings, x,     inv_scales, x_stride, n_rows, n_tiles, n_splits, all,
                                     epi,   parts, flags,      items,    lane,   warp,    rank};
    const bool is_fused = NT <= MAX_OWN_ROWS && fused.x != nullptr && n_rows <= MAX_OWN_ROWS;
    if (warp >= 8) {
        setmaxnreg_dec<40>();
        if (warp == 8) {
            roles.copy_tiles(scheduler);
        } else if (warp == 9) {
            wait_for_previous_kernel();
            if (is_fused) await_fused_rows();
            roles.copy_rows(scheduler);
        }
    } else {
        setmaxnreg_inc<232>();
        wait_for_previous_kernel();
        if constexpr (NT <= MAX_OWN_ROWS) {
            if (is_fused) prepare_fused_rows(fused, n_rows, rings.rest());
        }
        roles.consume(scheduler);
    }
    // The blocks of a cluster write to each other's shared memory.
    cluster_sync();
    if (is_fused) reset_arrivals(fused);
}

}  // namespace

// grid: clusters of two blocks that share the work items. x: prepared rows, x_stride rows per 64-column block.
#define LINEAR_WGMMA(name, Type, NT)                                                                              \
    KERNEL_CLUSTER2(384, linear_wgmma__##name##_##NT)                                                             \
    (const Batch* batch, int kind, u16* x, float* inv_scales, int x_stride, int n_columns, MATRIX(0), MATRIX(1),  \
     MATRIX(2), EPILOGUE_PARAMS, float* parts, u32* flags, int n_splits, int n_tile_stages, int n_row_stages,     \
     const float* fused_x, const float* norm, float eps, u32* arrivals) {                                         \
        const Matrix all[3] = {MATRIX_OF(0), MATRIX_OF(1), MATRIX_OF(2)};                                         \
        const EpilogueParams epi = EPILOGUE_ARGS;                                                                 \
        const FusedRows fused = {fused_x, norm, eps, x, inv_scales, arrivals, n_columns, x_stride};               \
        linear_wgmma<Type, NT>(batch, kind, x, inv_scales, x_stride, n_columns, all, epi, parts, flags, n_splits, \
                               n_tile_stages, n_row_stages, fused);                                               \
    }
#define LINEAR_WGMMAS(name, Type) \
    LINEAR_WGMMA(name, Type, 16)  \
    LINEAR_WGMMA(name, Type, 32)  \
    LINEAR_WGMMA(name, Type, 64)  \
    LINEAR_WGMMA(name, Type, 128)
#define LINEAR_WGMMAS_OF(name, Type) LINEAR_WGMMAS(name, Type)
#define LINEAR_WGMMA_160(name, Type) LINEAR_WGMMA(name, Type, 160)
#define LINEAR_WGMMA_160_OF(name, Type) LINEAR_WGMMA_160(name, Type)
// These tiles and 160 rows together exceed the shared memory of every GPU.
#define WGMMA_IS_TOO_LARGE_f16 1
#define WGMMA_IS_TOO_LARGE_q8_0 1
#define WGMMA_IS_TOO_LARGE_wide 1
#ifdef WOOLLY_TYPE
LINEAR_WGMMAS_OF(WOOLLY_NAME, WOOLLY_TYPE)
#if !CONCAT(WGMMA_IS_TOO_LARGE_, WOOLLY_NAME)
LINEAR_WGMMA_160_OF(WOOLLY_NAME, WOOLLY_TYPE)
#endif
#else
TILE_TYPES(LINEAR_WGMMAS)
TILE_TYPES(LINEAR_WGMMA_160)
#endif

#endif
