// Fused store and attention for one row of each of several sequences (batched decode) over f16 and q8_0 caches with
// equal head sizes of K and V. Every block norms and rotates its q; the block with the newest position also k, and
// writes k and v to the cache. Older positions load before the previous kernel ends, so no sequence may share a page
// that this step writes.
#include "attention/attend_fused_store.cuh"

namespace {

// maximum batch whose sequences are split into runs
constexpr int TILES_PER_SPLIT = KV_SPLIT / KV_TILE, MAX_ROWS = 256;
constexpr int UNSPLIT = 1 << 30;

// Work distribution: complete sequences, or runs of complete splits.
struct Runs {
    int per;      // KV tiles per run; UNSPLIT: all
    int n_items;  // runs of all rows, times KV heads and query tiles

    // Number of runs; the last one takes up to a quarter more, which avoids a short extra run.
    __device__ __forceinline__ int count(int first, int last) const {
        const int n = last / per - first / per + 1;
        return n > 1 && last % per < max(1, per / 4) ? n - 1 : n;
    }
};

// First and last KV tile of a row.
__device__ __forceinline__ int2 kv_tiles_of(const AttendParams& a, int row) {
    const KvRange range = visible_range(a, row);
    return make_int2(range.first / KV_TILE, range.last / KV_TILE);
}

// Chooses the run length with the shortest makespan, in each warp, and fills `ends` with the inclusive prefix sum of
// runs per row. Cost unit: one KV tile read by all blocks together. Three quarters of the blocks saturate memory, so
// splitting pays only with fewer blocks or a few long rows.
__device__ __forceinline__ Runs plan_runs(const AttendParams& a, const Partials& partials, int of_row,
                                          int (&ends)[MAX_ROWS]) {
    const int lane = threadIdx.x % 32, n_rows = a.b->n_rows, at_once = gridDim.x;
    // alone: cost of a tile read by one block; merging: cost of the merge
    const int alone = 3 * at_once / 4, merging = 3 * at_once / 2;
    const Runs whole{UNSPLIT, n_rows * of_row};
    if (!partials.is_split || n_rows > MAX_ROWS || whole.n_items >= 4 * at_once) return whole;
    int longest = 0, sum = 0;
#pragma unroll 1
    for (int row = lane; row < n_rows; row += 32) {
        const int2 kv_tiles = kv_tiles_of(a, row);
        longest = max(longest, kv_tiles.y - kv_tiles.x + 1), sum += kv_tiles.y - kv_tiles.x + 1;
    }
#pragma unroll 1
    for (int i = 16; i > 0; i >>= 1) {
        longest = max(longest, __shfl_xor_sync(ALL_LANES, longest, i));
        sum += __shfl_xor_sync(ALL_LANES, sum, i);
    }
    const int all = sum * of_row, cost_of_whole = max(all, longest * alone);
    // Return early: the code below is long and cold. With runs for more than half of the blocks, splitting is slower.
    if (cost_of_whole <= all + merging || (2 * whole.n_items > at_once && cost_of_whole <= 2 * all)) return whole;
    // Each lane tries one run length: longest row / n, rounded down or up to complete splits.
    const int length = longest / (lane / 2 + 1);
    Runs mine{max(TILES_PER_SPLIT, (length + lane % 2 * (TILES_PER_SPLIT - 1)) / TILES_PER_SPLIT * TILES_PER_SPLIT), 0};
    const int cost = max(all, min(mine.per, longest) * alone) + merging;
    int best = cost;
#pragma unroll 1
    for (int i = 16; i > 0; i >>= 1) best = min(best, __shfl_xor_sync(ALL_LANES, best, i));
    if (cost_of_whole <= best) return whole;
    mine.per = __shfl_sync(ALL_LANES, mine.per, __ffs(int(__ballot_sync(ALL_LANES, cost == best))) - 1);
    int before = 0;
    for (int base = 0; base < n_rows; base += 32) {
        int n = 0;
        if (base + lane < n_rows) {
            const int2 kv_tiles = kv_tiles_of(a, base + lane);
            n = mine.count(kv_tiles.x, kv_tiles.y);
        }
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            const int other = __shfl_sync(ALL_LANES, n, max(lane - i, 0));
            if (lane >= i) n += other;
        }
        if (base + lane < n_rows && threadIdx.x < 32) ends[base + lane] = before + n;
        before += __shfl_sync(ALL_LANES, n, 31);
    }
    mine.n_items = before * of_row;
    return mine;
}

// One run of a row and KV head.
struct Run {
    int row, kv_head, tile, first, last, n;  // n: runs of the row
    KvRange range;

    // Runs of a row are consecutive, and within a run all KV heads.
    __device__ __forceinline__ Run(const AttendParams& a, const Runs& runs, int of_row, const int* ends, int item) {
        const int lane = threadIdx.x % 32, next = item / of_row, at = item - next * of_row;
        int number = 0;
        row = next, tile = at / a.kv_heads, kv_head = at - tile * a.kv_heads;
        if (runs.per != UNSPLIT) {
            row = 0;
            for (int base = 0; base < a.b->n_rows; base += 32)
                row += __popc(__ballot_sync(ALL_LANES, base + lane < a.b->n_rows && ends[base + lane] <= next));
            number = next - (row == 0 ? 0 : ends[row - 1]);
        }
        range = visible_range(a, row);
        first = range.first / KV_TILE, last = range.last / KV_TILE, n = 1;
        if (runs.per == UNSPLIT) return;
        n = runs.count(first, last);
        const int from = (first / runs.per + number) * runs.per;
        first = max(first, from), last = number == n - 1 ? last : from + runs.per - 1;
    }
};

template <int D, int type>
__device__ __forceinline__ void attend(const AttendParams& a, const NormRope& norm_rope, const float* k,
                                       const float* v) {
    DYNAMIC_SHARED(memory);
    __shared__ Shared shared;
    __shared__ int ends[MAX_ROWS];
    launch_dependents();
    const int tiles = (a.gqa() + QUERIES - 1) / QUERIES, of_row = a.kv_heads * tiles, lane = threadIdx.x % 32;
    const Entry entry = a.b->entries[a.entry];
    const Partials partials(a, KV_SPLIT);
    const Runs runs = plan_runs(a, partials, of_row, ends);
    __syncthreads();
    typedef KvStream<D, type, true> Streamed;
    const Streamed stream(a, shared, memory);
    for (int item = blockIdx.x; item < runs.n_items; item += gridDim.x) {
        const Run run(a, runs, of_row, ends, item);
        const FusedHeads<D, Streamed> heads(stream, norm_rope, k, v, run.row);
        const int first_head = run.kv_head * a.gqa() + run.tile * QUERIES;
        stream.attend(
            entry, {run.row, run.row, run.row, run.kv_head, run.tile, run.range, run.range}, run.first, run.last,
            run.n > 1 ? KV_SPLIT : 0, 1,
            [&](const Query& one, int, int partial) { return partials.at(a, one.row, one.head, partial); },
            [&](const int* table) {
                heads.prepare(entry, table, first_head, run.kv_head, run.first, run.last, run.range);
            });
        if (run.n == 1) continue;
        u32* const done = a.done + ((long long)run.row * a.kv_heads + run.kv_head) * tiles + run.tile;
        if (!is_last_of(run.n, done, shared.is_last)) continue;
        for (int i = threadIdx.x / 32; i < QUERIES; i += WARPS) {
            const Query one = shared.queries[i];
            if (one.range.first > one.range.last) continue;
            Softmax all;
            const float4 sum = merge_splits(a, partials.at(a, one.row, one.head, 0), one.range.first / KV_SPLIT,
                                            one.range.last / KV_SPLIT, lane * 4, stream.factors(), all);
            put_result(a, one.row, one.head, lane * 4, all, sum);
        }
    }
    wait_for_previous_kernel();  // the next kernel relies on the previous one as well
}

}  // namespace

#define ATTEND_DECODE_BATCH(name, type, D) \
    KERNEL_BOUNDS(128, 2, attend_decode_batch_##name##_##D)(HEADS_PARAMETERS) { attend<D, type>(HEADS_ARGUMENTS); }

FOR_EACH_HEAD_SIZE(ATTEND_DECODE_BATCH)
