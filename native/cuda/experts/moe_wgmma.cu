// Expert products of large batches on Hopper, with the pipeline of linear_wgmma.cu (wgmma_pipeline.cuh): 128 weight
// rows by up to NT rows of an expert per block. If at most NT / 2 rows remain, wgmma of half the width is used.
//
// Prepared rows are sorted by expert; each item starts at a multiple of 8. Clusters of two blocks share activation
// rows: each block copies half of them for both.
#include "experts/moe.cuh"
#include "linears/wgmma_pipeline.cuh"

#if WOOLLY_HOPPER

namespace {

// Items and their rows, sorted by expert.
struct SortedRows {
    const ExpertRows* items;
    const int* members;
    const u16* x;
    const float* inv_scales;  // [places]
    int x_stride, n_tile_stages, n_row_stages;
};
#define SORTED_ROWS                                                                                   \
    const ExpertRows *items, const int *members, const u16 *x, const float *inv_scales, int x_stride, \
        int n_tile_stages, int n_row_stages
#define SORTED_ROWS_ARGS {items, members, x, inv_scales, x_stride, n_tile_stages, n_row_stages}

// Item and weight rows of one block of the cluster. Past the last weight rows it repeats them; those results are not
// stored.
struct WorkItem {
    ExpertRows item;
    int w_block;
    bool is_stored;
    __device__ __forceinline__ WorkItem(const ExpertRows* items, int number, int n_w_blocks, int rank) {
        const int n_block_pairs = (n_w_blocks + 1) / 2, i = number / n_block_pairs,
                  mine = 2 * (number - i * n_block_pairs) + rank;
        const int4 v = __ldcg(reinterpret_cast<const int4*>(items + 1 + i));
        item = {v.x, v.y, v.z, v.w};
        w_block = min(mine, n_w_blocks - 1), is_stored = mine < n_w_blocks;
    }
};

// Stores packed rows (weight rows out and out + 8).
struct StorePacked {
    float* y;
    int stride;
    __device__ __forceinline__ void put(float a, float b, int entry, int, int panel, int g) const {
        float* to = y + u64(entry) * stride + panel * 16 + g;
        to[0] = a, to[8] = b;
    }
};
// Stores the GLU of gate (out) and up (out + 8).
struct StoreGlu {
    GluParams glu;
    int n;
    float* hidden;
    bool has_silu_glu;
    __device__ __forceinline__ void put(float a, float b, int entry, int expert, int panel, int g) const {
        const int column = panel * 8 + g;
        if (column >= n) return;
        hidden[u64(entry) * n + column] =
            has_silu_glu ? silu_glu(a, b) : glu_general(glu, a, b, entry, expert, n, column);
    }
    static __device__ NEVER_INLINE float glu_general(const GluParams& glu, float a, float b, int entry, int expert,
                                                     int n, int column) {
        return glu.of(a, b, entry, expert, n, column);
    }
};

// State shared by all roles of a block.
template <class T, int NT, class Out>
struct MoeRoles {
    const Rings<T, NT>& rings;
    const SortedRows& sorted;
    const ExpertWeights& expert_weights;
    const Out& out;
    int first, step, n_work_items, n_w_blocks, n_tiles, lane, warp, rank;

    // Tile producer.
    __device__ __forceinline__ void copy_tiles() const {
        const u64 policy = evict_first_policy();
        PipelineState pipe = {rings.n_tile_stages, 0, 1};
        for (int number = first; number < n_work_items; number += step) {
            const WorkItem work_item(sorted.items, number, n_w_blocks, rank);
            // Past the last panel: reload it; its results are discarded.
            const u8* from =
                expert_weights.of(work_item.item.expert) +
                u64(min(work_item.w_block * 8 + (lane & 7), expert_weights.n_panels - 1)) * n_tiles * Tile<T>::bytes;
            for (int tile = 0; tile < n_tiles; tile++)
                rings.copy_tiles(pipe, from + u64(tile) * Tile<T>::bytes, lane, policy);
        }
    }
    // Row producer.
    __device__ __forceinline__ void copy_rows() const {
        const u64 policy = evict_last_policy();
        PipelineState pipe = {rings.n_row_stages, 0, 1};
        for (int number = first; number < n_work_items; number += step) {
            const WorkItem work_item(sorted.items, number, n_w_blocks, rank);
            const int n_half = work_item.item.n_rows <= NT / 2 ? NT / 4 : NT / 2;
            const u16* from = sorted.x + u64(work_item.item.first + rank * n_half) * 64;
            for (int block = 0; block < n_tiles * 4; block++)
                rings.copy_rows(pipe, from + u64(block) * sorted.x_stride * 64, n_half * 128, rank, lane, policy);
        }
        rings.drain_rows(pipe);
    }

    // Sums of a work item with W rows, over all slices.
    template <int W>
    __device__ __forceinline__ void multiply(Consumer<T, NT>& consumer, float (&sum)[W / 2]) const {
        float acc[W / 2];
#pragma unroll
        for (int i = 0; i < W / 2; i++) sum[i] = 0;
        consumer.unpack_next_tile();
        for (int slice = 0; slice < min(n_tiles, N_SLICES); slice++) {
            int is_added = 0, before = -1;
            for (int tile = slice_start(slice, n_tiles); tile < slice_start(slice + 1, n_tiles); tile++) {
#pragma unroll
                for (int k64 = 0; k64 < 4; k64++) {
                    const u64 operand = consumer.wait_for_rows();
                    wgmma_fence();
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        Wgmma<W>::go(acc, consumer.a[k64 & 1][e], operand + e * 2, is_added);
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
                        if (tile + 1 < n_tiles) consumer.unpack_next_tile();
                    }
                }
            }
            wgmma_wait<0>();
            consumer.free_rows(before);
#pragma unroll
            for (int i = 0; i < W / 2; i++) sum[i] += acc[i];
        }
    }
    // Work item of at most W rows: products and epilogue. `inv_scale` and `entry` of its rows are in shared memory.
    template <int W>
    __device__ __forceinline__ void compute(Consumer<T, NT>& consumer, const WorkItem& work_item,
                                            const float* inv_scale, const int* entry) const {
        float sum[W / 2];
        multiply<W>(consumer, sum);
        const int panel = work_item.w_block * 8 + warp, g = lane >> 2, t = lane & 3;
        if (!work_item.is_stored || panel >= expert_weights.n_panels) return;
        const float* factors = reinterpret_cast<const float*>(expert_weights.of(work_item.item.expert) +
                                                              u64(expert_weights.n_panels) * n_tiles * Tile<T>::bytes) +
                               panel * 16 + g;
        const float low = factors[0], w_block = factors[8];
#pragma unroll
        for (int i = 0; i < W / 4; i++) {
            const int row = (i >> 1) * 8 + 2 * t + (i & 1), at = (i >> 1) * 4 + (i & 1);
            if (row < work_item.item.n_rows)
                out.put(__fmul_rn(__fmul_rn(sum[at], low), inv_scale[row]),
                        __fmul_rn(__fmul_rn(sum[at + 2], w_block), inv_scale[row]), entry[row], work_item.item.expert,
                        panel, g);
        }
    }
    // Consumers.
    __device__ __forceinline__ void consume() const {
        // Inverse scales and entries of the item's rows, one copy per warp.
        float* inv_scale = rings.rest() + warp * 2 * NT;
        int* entry = reinterpret_cast<int*>(inv_scale + NT);
        Consumer<T, NT> consumer(rings, lane, warp);
        for (int number = first; number < n_work_items; number += step) {
            const WorkItem work_item(sorted.items, number, n_w_blocks, rank);
            __syncwarp();
            for (int i = lane; i < work_item.item.n_rows; i += 32) {
                inv_scale[i] = __ldcg(sorted.inv_scales + work_item.item.first + i);
                entry[i] = __ldcg(sorted.members + work_item.item.first + i);
            }
            __syncwarp();
            if (work_item.item.n_rows <= NT / 2)
                compute<NT / 2>(consumer, work_item, inv_scale, entry);
            else
                compute<NT>(consumer, work_item, inv_scale, entry);
        }
    }
};

template <class T, int NT, class Out>
__device__ __forceinline__ void moe_wgmma(const SortedRows& sorted, const ExpertWeights& expert_weights,
                                          const Out& out) {
    DYNAMIC_SHARED(raw);
    const Rings<T, NT> rings(raw, sorted.n_tile_stages, sorted.n_row_stages);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, rank = blockIdx.x & 1;
    rings.start();
    launch_dependents();
    // Items are known before the previous kernel ends.
    const int n_w_blocks = (expert_weights.n_panels + 7) / 8,
              n_work_items = __ldcg(&sorted.items[0].expert) * ((n_w_blocks + 1) / 2);
    const int first = blockIdx.x >> 1, step = gridDim.x >> 1;
    const MoeRoles<T, NT, Out> roles = {rings,        sorted,     expert_weights,         out,  first, step,
                                        n_work_items, n_w_blocks, expert_weights.n_tiles, lane, warp,  rank};
    if (warp >= 8) {
        setmaxnreg_dec<40>();
        if (warp == 8) {
            roles.copy_tiles();
        } else if (warp == 9) {
            wait_for_previous_kernel();
            roles.copy_rows();
        }
    } else {
        setmaxnreg_inc<232>();
        wait_for_previous_kernel();
        roles.consume();
    }
    // The blocks of a cluster write to each other's shared memory.
    cluster_sync();
}

}  // namespace

// grid: clusters of two blocks that share the work items. x: prepared rows, x_stride rows per 64-column block.
#define MOE_WGMMA_AT(name, Type, NT)                                                                            \
    KERNEL_CLUSTER2(384, moe_wgmma_glu__##name##_##NT)                                                          \
    (const Batch*, SORTED_ROWS, EXPERT_WEIGHTS, GLU_PARAMS, int n, float* hidden) {                             \
        const GluParams glu = GLU_ARGS;                                                                         \
        const bool is_plain = gate_bias == nullptr && gate_scale == nullptr && up_bias == nullptr &&            \
                              up_scale == nullptr && shares == nullptr && is_silu_glu(act, limit);              \
        moe_wgmma<Type, NT>(SORTED_ROWS_ARGS, EXPERT_WEIGHTS_ARGS, StoreGlu{glu, n, hidden, is_plain});         \
    }                                                                                                           \
    KERNEL_CLUSTER2(384, moe_wgmma_plain__##name##_##NT)(const Batch*, SORTED_ROWS, EXPERT_WEIGHTS, float* y) { \
        moe_wgmma<Type, NT>(SORTED_ROWS_ARGS, EXPERT_WEIGHTS_ARGS, StorePacked{y, n_panels * 16});              \
    }
#define MOE_WGMMA(name, Type) MOE_WGMMA_AT(name, Type, 64) MOE_WGMMA_AT(name, Type, 128)
#define MOE_WGMMA_OF(name, Type) MOE_WGMMA(name, Type)
#ifdef WOOLLY_TYPE
MOE_WGMMA_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(MOE_WGMMA)
#endif

#endif
