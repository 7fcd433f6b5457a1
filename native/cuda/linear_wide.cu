// Products of many rows on Hopper: 128 rows of weights by NT rows of activations in a block.
//
// Two groups of four warps open tiles in registers, as the operand A of wgmma, over prepared rows in shared memory; one
// warp copies tiles and rows. The sum of a slice and the sum of slices each have their registers. If a matrix has
// too few rows for all multiprocessors, blocks take a part of the slices each and leave their sums in `parts`, which
// linear_sum adds up.
#include "linears.cuh"
#include "wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace {

template <class T, int NT>
__device__ __forceinline__ void linear_wide(const Batch* batch, int kind, const u16* x, const float* backs,
                                            int x_stride, int n_columns, const Matrix (&all)[3], const Finish& finish,
                                            float* parts, int n_splits, int n_tile_stages, int n_row_stages) {
    typedef Tile<T> Opener;
    constexpr int ROW_BYTES = NT * 128;  // of 64 columns
    DYNAMIC_SHARED(raw);
    u8* shared = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
    u8 *rows = shared, *tiles = shared + n_row_stages * ROW_BYTES;
    const u32 barriers = shared_address(tiles + n_tile_stages * 8 * Opener::bytes);
    auto rows_full = [&](int i) { return barriers + i * 8; };
    auto rows_free = [&](int i) { return barriers + 128 + i * 8; };
    auto tiles_full = [&](int i) { return barriers + 256 + i * 8; };
    auto tiles_free = [&](int i) { return barriers + 384 + i * 8; };
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (threadIdx.x == 0) {
        for (int i = 0; i < n_row_stages; i++) barrier_start(rows_full(i), 1), barrier_start(rows_free(i), 8);
        for (int i = 0; i < n_tile_stages; i++) barrier_start(tiles_full(i), 1), barrier_start(tiles_free(i), 8);
        barriers_started();
    }
    __syncthreads();
    let_next_kernel_begin();
    const int n_rows = batch->rows(kind), n_tiles = (n_columns + 255) / 256;
    const Items items(all, n_rows, NT, n_splits);
    const int n_items = items.count(), n_each = N_SLICES / n_splits;
    int row_stage = 0, row_phase = 0, tile_stage = 0, tile_phase = 0;

    if (warp >= 8) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp > 8) return;
        const u64 keep = read_often(), once = read_once();
        bool is_first = true;
        for (int number = blockIdx.x; number < n_items; number += gridDim.x) {
            const Item item(items, number);
            const Matrix m = chosen(all, item.which);
            // Behind the last strip: that strip again, for results that nobody stores.
            const u8* from = m.tiles + u64(min(item.high * 8 + (lane & 7), m.n_strips - 1)) * n_tiles * Opener::bytes;
            const int end = slice_start((item.split + 1) * n_each, n_tiles);
            for (int tile = slice_start(item.split * n_each, n_tiles); tile < end; tile++) {
                barrier_wait(tiles_free(tile_stage), tile_phase ^ 1);
                if (lane == 0) barrier_expect(tiles_full(tile_stage), 8 * Opener::bytes);
                __syncwarp();
                if (lane < 8)
                    bulk_copy(shared_address(tiles + (tile_stage * 8 + lane) * Opener::bytes),
                              from + u64(tile) * Opener::bytes, Opener::bytes, tiles_full(tile_stage),
                              items.n_wide > 1 ? keep : once);
                if (++tile_stage == n_tile_stages) tile_stage = 0, tile_phase ^= 1;
                if (is_first) wait_for_kernel_before(), is_first = false;
                for (int i = 0; i < 4; i++) {
                    barrier_wait(rows_free(row_stage), row_phase ^ 1);
                    if (lane == 0) {
                        barrier_expect(rows_full(row_stage), ROW_BYTES);
                        bulk_copy(shared_address(rows + row_stage * ROW_BYTES),
                                  x + (u64(tile * 4 + i) * x_stride + item.wide * NT) * 64, ROW_BYTES,
                                  rows_full(row_stage), keep);
                    }
                    __syncwarp();
                    if (++row_stage == n_row_stages) row_stage = 0, row_phase ^= 1;
                }
            }
        }
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    wait_for_kernel_before();
    for (int number = blockIdx.x; number < n_items; number += gridDim.x) {
        const Item item(items, number);
        float sum[NT / 2], acc[NT / 2];
#pragma unroll
        for (int i = 0; i < NT / 2; i++) sum[i] = 0;
        for (int slice = item.split * n_each; slice < (item.split + 1) * n_each; slice++) {
            int is_added = 0, before = -1;
            for (int tile = slice_start(slice, n_tiles); tile < slice_start(slice + 1, n_tiles); tile++) {
                barrier_wait(tiles_full(tile_stage), tile_phase);
                const u8* opened = tiles + (tile_stage * 8 + warp) * Opener::bytes;
                const typename Opener::Scales scales = Opener::scales(opened, lane);
                u32 a[2][4][4];
#pragma unroll
                for (int k16 = 0; k16 < 16; k16++) {
                    Opener::open(opened, scales, lane, k16, a[k16 >> 2 & 1][k16 & 3]);
                    if ((k16 & 3) != 3) continue;
                    barrier_wait(rows_full(row_stage), row_phase);
                    const u64 operand = wgmma_operand(shared_address(rows + row_stage * ROW_BYTES));
                    wgmma_fence();
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        Wgmma<NT>::go(acc, a[k16 >> 2 & 1][e], operand + e * 2, is_added);
                        is_added = 1;
                    }
                    wgmma_commit();
                    wgmma_wait<1>();
                    if (before >= 0 && lane == 0) barrier_arrive(rows_free(before));
                    before = row_stage;
                    if (++row_stage == n_row_stages) row_stage = 0, row_phase ^= 1;
                }
                __syncwarp();
                if (lane == 0) barrier_arrive(tiles_free(tile_stage));
                if (++tile_stage == n_tile_stages) tile_stage = 0, tile_phase ^= 1;
            }
            wgmma_wait<0>();
            if (before >= 0 && lane == 0) barrier_arrive(rows_free(before));
            if (before < 0) {  // fewer tiles than slices
#pragma unroll
                for (int i = 0; i < NT / 2; i++) acc[i] = 0;
            }
            if (n_splits == 1) {
#pragma unroll
                for (int i = 0; i < NT / 2; i++) sum[i] += acc[i];
            } else {
                store_part<NT>(acc, parts, items, item, slice, warp);
            }
        }
        if (n_splits == 1) store_item<NT>(sum, all, item, warp, n_tiles * Opener::bytes, backs, n_rows, finish);
    }
}

}  // namespace

// grid: blocks that share the items. x: prepared rows, with x_stride rows in a block of 64 columns.
#define LINEAR_WIDE(name, Type, NT)                                                                                    \
    KERNEL_OF(384, linear_wide__##name##_##NT)                                                                         \
    (const Batch* batch, int kind, const u16* x, const float* backs, int x_stride, int n_columns, MATRIX(0),           \
     MATRIX(1), MATRIX(2), FINISH, float* parts, int n_splits, int n_tile_stages, int n_row_stages) {                  \
        const Matrix all[3] = {MATRIX_OF(0), MATRIX_OF(1), MATRIX_OF(2)};                                              \
        const Finish finish = FINISH_OF;                                                                               \
        linear_wide<Type, NT>(batch, kind, x, backs, x_stride, n_columns, all, finish, parts, n_splits, n_tile_stages, \
                              n_row_stages);                                                                           \
    }
#define LINEAR_WIDES(name, Type) \
    LINEAR_WIDE(name, Type, 16)  \
    LINEAR_WIDE(name, Type, 32)  \
    LINEAR_WIDE(name, Type, 64)  \
    LINEAR_WIDE(name, Type, 128)
#define LINEAR_WIDES_OF(name, Type) LINEAR_WIDES(name, Type)
#ifdef WOOLLY_TYPE
LINEAR_WIDES_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(LINEAR_WIDES)
#endif

#endif
