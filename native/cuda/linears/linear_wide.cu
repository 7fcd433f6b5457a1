// Products of many rows on Hopper: 128 rows of weights by NT rows of activations in a block.
//
// Two groups of four warps open tiles in registers, as the operand A of wgmma, over prepared rows in shared memory; one
// warp copies tiles, another rows. The sum of a slice and the sum of slices each have their registers. Blocks work in
// pairs, with other rows of weights and the same rows of activations: each copies half of these, for both.
//
// If a matrix has too few rows for all multiprocessors, blocks take a part of the slices each and leave their sums in
// `parts`, which linear_sum adds up. If it has more, but not for whole rounds of all, the last items are dealt by
// slices: a pair of blocks begins an item, leaves its sum, and the next pair goes on from there.
#include "primitives/walk.cuh"
#include "primitives/wgmma.cuh"

#if WOOLLY_HOPPER

namespace {

// A part's item for one block of the pair. Behind the last rows of weights: those again, for results nobody stores.
struct PairItem : Item {
    bool is_stored;
    __device__ __forceinline__ PairItem(const Items& items, int number, int n_in, int pair, int rank)
        : Item(items, min(2 * pair + rank, items.n_high - 1), number - pair * n_in),
          is_stored(2 * pair + rank < items.n_high) {}
    __device__ __forceinline__ PairItem(const Items& items, int number, int rank)
        : PairItem(items, number, items.n_wide * items.n_splits, number / (items.n_wide * items.n_splits), rank) {}
};

// Where a warp of a block leaves the sum of an item that it began. Each has a flag, which is zero between kernels.
template <int NT>
__device__ __forceinline__ float4* left_by(float* parts, int block, int warp) {
    return reinterpret_cast<float4*>(parts) + (block * 8 + warp) * (NT * 4) + (threadIdx.x & 31);
}
template <int NT>
__device__ __forceinline__ void leave_sum(const float (&sum)[NT / 2], float* parts, u32* flags, int warp) {
    float4* to = left_by<NT>(parts, blockIdx.x, warp);
#pragma unroll
    for (int i = 0; i < NT / 2; i += 4) __stcg(to + i * 8, make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]));
    __threadfence();
    __syncwarp();
    if ((threadIdx.x & 31) == 0) store_for_blocks(flags + blockIdx.x * 8 + warp, 1);
}
// Goes on from what the pair before left.
template <int NT>
__device__ __forceinline__ void take_sum(float (&sum)[NT / 2], float* parts, u32* flags, int warp) {
    u32* flag = flags + (blockIdx.x - 2) * 8 + warp;
    if ((threadIdx.x & 31) == 0) {
        while (!load_of_blocks(flag)) wait_for_blocks();
        *flag = 0;
    }
    __syncwarp();
    const float4* from = left_by<NT>(parts, blockIdx.x - 2, warp);
#pragma unroll
    for (int i = 0; i < NT / 2; i += 4) {
        const float4 v = __ldcg(from + i * 8);
        sum[i] = v.x, sum[i + 1] = v.y, sum[i + 2] = v.z, sum[i + 3] = v.w;
    }
}

template <class T, int NT>
__device__ __forceinline__ void linear_wide(const Batch* batch, int kind, const u16* x, const float* backs,
                                            int x_stride, int n_columns, const Matrix (&all)[3], const Finish& finish,
                                            float* parts, u32* flags, int n_splits, int n_tile_stages,
                                            int n_row_stages) {
    typedef Tile<T> Opener;
    constexpr int ROW_BYTES = NT * 128;  // of 64 columns
    constexpr int CHUNK = NT / 4 < 8 ? NT / 4 : 8;
    DYNAMIC_SHARED(raw);
    u8* shared = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
    u8 *rows = shared, *tiles = shared + n_row_stages * ROW_BYTES;
    const u32 barriers = shared_address(tiles + n_tile_stages * 8 * Opener::bytes);
    auto rows_full = [&](int i) { return barriers + i * 8; };
    auto rows_free = [&](int i) { return barriers + 128 + i * 8; };
    auto tiles_full = [&](int i) { return barriers + 256 + i * 8; };
    auto tiles_free = [&](int i) { return barriers + 384 + i * 8; };
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rank = blockIdx.x & 1;
    if (threadIdx.x == 0) {
        for (int i = 0; i < n_row_stages; i++) barrier_start(rows_full(i), 1), barrier_start(rows_free(i), 16);
        for (int i = 0; i < n_tile_stages; i++) barrier_start(tiles_full(i), 1), barrier_start(tiles_free(i), 8);
        barriers_started();
    }
    pair_sync();
    let_next_kernel_begin();
    const int n_rows = batch->rows(kind), n_tiles = (n_columns + 255) / 256;
    const Items items(all, n_rows, NT, n_splits);
    Walk walk(blockIdx.x >> 1, gridDim.x >> 1, (items.n_high + 1) / 2 * items.n_wide * n_splits, n_splits);
    Part part;

    if (warp >= 8) {
        leave_registers<40>();
        const u64 keep = read_often(), once = read_once();
        int stage = 0, phase = 1;
        if (warp == 8) {
            while (walk.next(part)) {
                const PairItem item(items, part.number, rank);
                const Matrix m = chosen(all, item.which);
                // Past the last strip: reload it; the results are discarded.
                const u8* from =
                    m.tiles + u64(min(item.high * 8 + (lane & 7), m.n_strips - 1)) * n_tiles * Opener::bytes;
                const int end = slice_start(part.end, n_tiles);
                for (int tile = slice_start(part.first, n_tiles); tile < end; tile++) {
                    barrier_wait(tiles_free(stage), phase);
                    if (lane == 0) barrier_expect(tiles_full(stage), 8 * Opener::bytes);
                    __syncwarp();
                    if (lane < 8)
                        bulk_copy(shared_address(tiles + (stage * 8 + lane) * Opener::bytes),
                                  from + u64(tile) * Opener::bytes, Opener::bytes, tiles_full(stage),
                                  items.n_wide > 1 ? keep : once);
                    if (++stage == n_tile_stages) stage = 0, phase ^= 1;
                }
            }
        } else if (warp == 9) {
            wait_for_kernel_before();
            while (walk.next(part)) {
                const PairItem item(items, part.number, rank);
                const u16* from = x + u64(item.wide * NT + rank * (NT / 2)) * 64;
                const int end = slice_start(part.end, n_tiles) * 4;
                for (int block = slice_start(part.first, n_tiles) * 4; block < end; block++) {
                    barrier_wait(rows_free(stage), phase);
                    if (lane == 0) {
                        barrier_expect(rows_full(stage), ROW_BYTES);
                        bulk_copy_to_pair(shared_address(rows + stage * ROW_BYTES + rank * (ROW_BYTES / 2)),
                                          from + u64(block) * x_stride * 64, ROW_BYTES / 2, rows_full(stage), keep);
                    }
                    __syncwarp();
                    if (++stage == n_row_stages) stage = 0, phase ^= 1;
                }
            }
            // The other block says here that it has read rows: it must not say so to a block that has left.
            for (int i = 0; i < n_row_stages; i++) {
                barrier_wait(rows_free(stage), phase);
                if (++stage == n_row_stages) stage = 0, phase ^= 1;
            }
        }
    } else {
        take_registers<232>();
        wait_for_kernel_before();
        int row_stage = 0, row_phase = 0, tile_stage = 0, tile_phase = 0;
        // Inverses of the powers of an item's rows, of each warp by itself.
        float* back = reinterpret_cast<float*>(tiles + n_tile_stages * 8 * Opener::bytes + 512) + warp * NT;
        const u8* opened;
        typename Opener::Scales scales;
        u32 a[2][4][4];
        auto open = [&](int k64) { open_four<T>(opened, scales, lane, k64, a[k64 & 1]); };
        auto open_next_tile = [&] {
            barrier_wait(tiles_full(tile_stage), tile_phase);
            opened = tiles + (tile_stage * 8 + warp) * Opener::bytes;
            scales = Opener::scales(opened, lane);
            open(0);
        };
        auto free_rows = [&](int stage) {
            if (lane < 2) barrier_arrive_at(rows_free(stage), lane);
        };
        while (walk.next(part)) {
            const PairItem item(items, part.number, rank);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < NT; i += 32)
                if (i + lane < NT) back[i + lane] = __ldcg(backs + min(item.wide * NT + i + lane, n_rows - 1));
            float sum[NT / 2], acc[NT / 2];
            if (n_splits == 1 && part.first > 0) {
                take_sum<NT>(sum, parts, flags, warp);
            } else {
#pragma unroll
                for (int i = 0; i < NT / 2; i++) sum[i] = 0;
            }
            const int last = slice_start(part.end, n_tiles) - 1;
            if (slice_start(part.first, n_tiles) <= last) open_next_tile();
            for (int slice = part.first; slice < part.end; slice++) {
                int is_added = 0, before = -1;
                for (int tile = slice_start(slice, n_tiles); tile < slice_start(slice + 1, n_tiles); tile++) {
#pragma unroll
                    for (int k64 = 0; k64 < 4; k64++) {
                        barrier_wait(rows_full(row_stage), row_phase);
                        const u64 operand = wgmma_operand(shared_address(rows + row_stage * ROW_BYTES));
                        wgmma_fence();
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            Wgmma<NT>::go(acc, a[k64 & 1][e], operand + e * 2, is_added);
                            is_added = 1;
                        }
                        wgmma_commit();
                        wgmma_wait<1>();
                        if (before >= 0) free_rows(before);
                        before = row_stage;
                        if (++row_stage == n_row_stages) row_stage = 0, row_phase ^= 1;
                        // While this runs, what follows is opened.
                        if (k64 < 3) {
                            open(k64 + 1);
                        } else {
                            __syncwarp();
                            if (lane == 0) barrier_arrive(tiles_free(tile_stage));
                            if (++tile_stage == n_tile_stages) tile_stage = 0, tile_phase ^= 1;
                            if (tile < last) open_next_tile();
                        }
                    }
                }
                wgmma_wait<0>();
                if (before >= 0) free_rows(before);
                if (before < 0) {  // fewer tiles than slices
#pragma unroll
                    for (int i = 0; i < NT / 2; i++) acc[i] = 0;
                }
                if (n_splits == 1) {
#pragma unroll
                    for (int i = 0; i < NT / 2; i++) sum[i] += acc[i];
                } else if (item.is_stored) {
                    store_part<NT>(acc, parts, items, item, slice, warp);
                }
            }
            if (n_splits > 1) continue;
            if (part.end < N_SLICES)
                leave_sum<NT>(sum, parts, flags, warp);
            else if (item.is_stored)
                store_item<NT, CHUNK>(sum, all, item, warp, n_tiles * Opener::bytes, n_rows, finish,
                                      [&](int row) { return back[row]; });
        }
    }
    // Copies of one block go to the other, too.
    pair_sync();
}

}  // namespace

// grid: pairs of blocks that share the items. x: prepared rows, with x_stride rows in a block of 64 columns.
#define LINEAR_WIDE(name, Type, NT)                                                                               \
    KERNEL_IN_PAIRS(384, linear_wide__##name##_##NT)                                                              \
    (const Batch* batch, int kind, const u16* x, const float* backs, int x_stride, int n_columns, MATRIX(0),      \
     MATRIX(1), MATRIX(2), FINISH, float* parts, u32* flags, int n_splits, int n_tile_stages, int n_row_stages) { \
        const Matrix all[3] = {MATRIX_OF(0), MATRIX_OF(1), MATRIX_OF(2)};                                         \
        const Finish finish = FINISH_OF;                                                                          \
        linear_wide<Type, NT>(batch, kind, x, backs, x_stride, n_columns, all, finish, parts, flags, n_splits,    \
                              n_tile_stages, n_row_stages);                                                       \
    }
#define LINEAR_WIDES(name, Type) \
    LINEAR_WIDE(name, Type, 16)  \
    LINEAR_WIDE(name, Type, 32)  \
    LINEAR_WIDE(name, Type, 64)  \
    LINEAR_WIDE(name, Type, 128)
#define LINEAR_WIDES_OF(name, Type) LINEAR_WIDES(name, Type)
#define LINEAR_WIDEST(name, Type) LINEAR_WIDE(name, Type, 160)
#define LINEAR_WIDEST_OF(name, Type) LINEAR_WIDEST(name, Type)
// No GPU has shared memory for such tiles beside 160 rows.
#define WIDE_IS_TOO_LARGE_f16 1
#define WIDE_IS_TOO_LARGE_q8_0 1
#define WIDE_IS_TOO_LARGE_wide 1
#ifdef WOOLLY_TYPE
LINEAR_WIDES_OF(WOOLLY_NAME, WOOLLY_TYPE)
#if !NAMED(WIDE_IS_TOO_LARGE_, WOOLLY_NAME)
LINEAR_WIDEST_OF(WOOLLY_NAME, WOOLLY_TYPE)
#endif
#else
TILE_TYPES(LINEAR_WIDES)
TILE_TYPES(LINEAR_WIDEST)
#endif

#endif
