// Fused store and attention for one row with a long context, as attend_decode.cu, without clusters. Blocks take runs of
// complete splits of a KV head; when all runs of a head are done, its blocks merge a few columns each.
#include "attention/attend_fused_store.cuh"

namespace {

constexpr int SPLITS_PER_LANE = 4;  // splits per lane in one merge step

// Splits that a warp merges in one step.
struct MergeBuffer {
    float4 factors[32 * SPLITS_PER_LANE];  // factors of the sum so far and of the split; its sum of exp weights
    float4 columns[32 * SPLITS_PER_LANE][2];
};

// Merges splits `first` to `last` of a query in order, with one warp: eight columns from c on, in the first eight
// lanes. Lanes first compute the factors of SPLITS_PER_LANE splits each.
__device__ __forceinline__ float merge_columns(const float* from, int stride, int first, int last, int c,
                                               MergeBuffer& memory, Softmax& all) {
    const int lane = threadIdx.x % 32;
    float sum = 0.f;
    for (; first <= last; first += 32 * SPLITS_PER_LANE) {
        const int n = min(32 * SPLITS_PER_LANE, last - first + 1);
        float2 own[SPLITS_PER_LANE];
        float4 columns[SPLITS_PER_LANE][2];
        float upto[SPLITS_PER_LANE];
#pragma unroll
        for (int j = 0; j < SPLITS_PER_LANE; j++) {
            const float* const here = from + (long long)(first + min(32 * j + lane, n - 1)) * stride;
            own[j] = __ldcg(reinterpret_cast<const float2*>(here));
            columns[j][0] = __ldcg(reinterpret_cast<const float4*>(here + 4 + c));
            columns[j][1] = __ldcg(reinterpret_cast<const float4*>(here + (c + 8 < stride ? 8 : 4) + c));
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < SPLITS_PER_LANE; j++) {
            memory.columns[32 * j + lane][0] = columns[j][0], memory.columns[32 * j + lane][1] = columns[j][1];
            upto[j] = 32 * j + lane < n ? own[j].x : NO_SCORE;
        }
#pragma unroll
        for (int i = 1; i < 32; i *= 2)
#pragma unroll
            for (int j = 0; j < SPLITS_PER_LANE; j++) {
                const float other = __shfl_sync(ALL_LANES, upto[j], max(lane - i, 0));
                if (lane >= i) upto[j] = fmaxf(upto[j], other);
            }
#pragma unroll
        for (int j = 0; j < SPLITS_PER_LANE; j++) {
            upto[j] = fmaxf(upto[j], all.max_score);
            const float before = __shfl_sync(ALL_LANES, upto[j], max(lane - 1, 0)), base = finite_max(upto[j]);
            memory.factors[32 * j + lane] = make_float4(exp2_approx((lane == 0 ? all.max_score : before) - base),
                                                        exp2_approx(own[j].x - base), own[j].y, 0.f);
            all.max_score = __shfl_sync(ALL_LANES, upto[j], 31);
        }
        __syncwarp();
        const float* const mine = reinterpret_cast<const float*>(memory.columns) + lane % 8;
#pragma unroll 8
        for (int i = 0; i < n; i++) {
            const float4 by = memory.factors[i];
            all.sum = merged(all.sum, by.x, by.z, by.y);
            sum = merged(sum, by.x, mine[8 * i], by.y);
        }
    }
    return sum;
}

// Barrier of the blocks with runs of the same queries. Zero before and after use.
struct MergeBarrier {
    u32 there;  // bits 0 to 15: blocks with finished runs; bits 16 and up: blocks that wait
    u32 gone;   // waiting blocks that have merged
    u32 begun;  // blocks that have started
    u32 pad;
};

// Index among the merging blocks and their number; n = 0: this block does not merge.
struct MergeShare {
    u32 at, n;
};

// Waits for all n runs if the block may wait and all n blocks have started, so none needs this block's multiprocessor.
// Otherwise leaves the merge to the waiting blocks, or does it alone as the last block without any.
__device__ __forceinline__ MergeShare arrive_and_wait(MergeBarrier* merge_barrier, u32 n, bool may_wait,
                                                      MergeShare& shared) {
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 waits = may_wait && load_acquire(&merge_barrier->begun) == n;
        __threadfence();
        u32 there = atomicAdd(&merge_barrier->there, 1u + (waits << 16)), at = there >> 16;
        there += 1u + (waits << 16);
        while (waits && (there & 0xFFFFu) < n) there = load_acquire(&merge_barrier->there);
        const u32 n_waiting = there >> 16;
        const bool is_alone = (there & 0xFFFFu) == n && n_waiting == 0;
        __threadfence();
        shared = is_alone ? MergeShare{0, 1} : waits ? MergeShare{at, n_waiting} : MergeShare{0, 0};
    }
    __syncthreads();
    return shared;
}

template <int D, int type>
__device__ __forceinline__ void attend(const AttendParams& a, const NormRope& norm_rope, const float* k,
                                       const float* v) {
    DYNAMIC_SHARED(memory);
    __shared__ Shared shared;
    __shared__ MergeShare merge_share;
    launch_dependents();
    typedef KvStream<D, type, true> Streamed;
    const Streamed stream(a, shared, memory);
    static_assert(WARPS * sizeof(MergeBuffer) <= Streamed::ring, "runs are merged in the ring");
    constexpr int tiles_per_split = KV_SPLIT / KV_TILE;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_blocks = gridDim.x;
    const int tiles = (a.gqa() + QUERIES - 1) / QUERIES, items = a.kv_heads * tiles;
    const Entry entry = a.b->entries[a.entry];
    const KvRange range = visible_range(a, 0);
    const FusedHeads<D, Streamed> heads(stream, norm_rope, k, v);
    const int first = range.first / KV_SPLIT, last = range.last / KV_SPLIT;
    const Partials partials(a, KV_SPLIT);
    // Blocks per item (runs, which differ by at most one split), and concurrent items.
    const int n_splits = last - first + 1,
              n_runs = partials.is_split && 4 * items <= a.n_partials ? max(1, min(n_splits, n_blocks / items)) : 1,
              at_once = min(items, n_blocks / n_runs), run = blockIdx.x / at_once;
    // One merging block per multiprocessor; the others make room for the next kernel.
    const int n_first = min(n_runs, n_blocks / 2 / at_once);
    const int run_first = max(range.first / KV_TILE, (first + run * n_splits / n_runs) * tiles_per_split),
              run_last = min(range.last / KV_TILE, (first + (run + 1) * n_splits / n_runs) * tiles_per_split - 1);
    for (int item = blockIdx.x % at_once; item < items && run < n_runs; item += at_once) {
        const int tile = tiles == 1 ? 0 : item / a.kv_heads, kv_head = item - tile * a.kv_heads;
        const int first_head = kv_head * a.gqa() + tile * QUERIES, stride = a.partial_stride();
        float* const outside = a.partials + (long long)first_head * partials.n * stride;
        MergeBarrier* const merge_barrier = reinterpret_cast<MergeBarrier*>(a.done) + item;
        stream.attend(
            entry, {0, 0, 0, kv_head, tile, range, range}, run_first, run_last, n_runs > 1 ? KV_SPLIT : 0, 1,
            [&](const Query&, int i, int partial) { return outside + (long long)(i * partials.n + partial) * stride; },
            [&](const int* table) {
                heads.prepare(entry, table, first_head, kv_head, run_first, run_last, range);
                if (n_runs > 1 && threadIdx.x == 0) atomicAdd(&merge_barrier->begun, 1u);
            });
        if (n_runs == 1) continue;
        const MergeShare mine = arrive_and_wait(merge_barrier, n_runs, run < n_first, merge_share);
        if (mine.n == 0) continue;
        u32 n_gone = 0;
        if (threadIdx.x == 0) n_gone = atomicAdd(&merge_barrier->gone, 1u) + 1;  // no block waits for this value yet
        const int chunks = (a.v_dim + 7) / 8, n = min(QUERIES, a.gqa() - tile * QUERIES) * chunks;
        for (int i = mine.at * WARPS + warp; i < n; i += mine.n * WARPS) {
            const int head = i / chunks, c = (i - head * chunks) * 8;
            Softmax all;
            const float sum = merge_columns(outside + (long long)head * partials.n * stride, stride, first, last, c,
                                            reinterpret_cast<MergeBuffer*>(stream.copies)[warp], all);
            const float out_scale = inv_sum_of(a, all, first_head + head);
            if (lane < 8 && c + lane < a.v_dim)
                a.out[(long long)(first_head + head) * a.v_dim + c + lane] = __fmul_rn(sum, out_scale);
        }
        if (threadIdx.x == 0 && n_gone == mine.n) *merge_barrier = MergeBarrier{0, 0, 0, 0};
    }
    wait_for_previous_kernel();  // the next kernel relies on the previous one as well
}

}  // namespace

#define ATTEND_DECODE_LONG(name, type, D) \
    KERNEL_BOUNDS(128, 2, attend_decode_long_##name##_##D)(HEADS_PARAMETERS) { attend<D, type>(HEADS_ARGUMENTS); }

FOR_EACH_HEAD_SIZE(ATTEND_DECODE_LONG)
