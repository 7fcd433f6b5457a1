// Attention over f16, q8_0 and q4 caches for few rows per sequence with equal head sizes of K and V: a block processes
// all query heads of one KV head (up to 16 queries) over a run of KV tiles.
#include "attention/attend_stream.cuh"

namespace {

// Grid-stride loop over rows, query tiles, KV heads and runs of KV tiles, about one run per block.
template <int D, int type>
__device__ __forceinline__ void attend(const AttendParams& a) {
    DYNAMIC_SHARED(memory);
    __shared__ Shared shared;
    launch_dependents();
    wait_for_previous_kernel();
    const Batch& b = *a.b;
    const int tiles = (a.gqa() + QUERIES - 1) / QUERIES, n_kv_tiles = (b.max_length + KV_TILE - 1) / KV_TILE;
    // Upper bound of the tiles visible to a block's rows with a sliding window.
    const bool is_bounded = a.window > 0 && a.mask != MASK_ALL && b.attn_ranges == nullptr;
    const int n_visible_tiles = is_bounded ? min(n_kv_tiles, (a.window + QUERIES) / KV_TILE + 2) : n_kv_tiles;
    // Nothing to do if all sequences belong to the prefill kernel.
    bool is_any = false;
    for (int i = threadIdx.x % 32; i < b.n_sequences; i += 32)
        is_any |= b.offsets[i + 1] - b.offsets[i] <= a.max_few_rows;
    if (!__any_sync(ALL_LANES, is_any)) return;
    const int n_unsplit = b.n_rows * a.kv_heads * tiles;
    int per_run =
        int(float(n_unsplit) * float(n_visible_tiles) / float(gridDim.x)) + 1;  // rounding does not affect results
    per_run = (per_run + KV_SPLIT / KV_TILE - 1) / (KV_SPLIT / KV_TILE) * (KV_SPLIT / KV_TILE);  // complete splits
    const Partials partials(a, KV_SPLIT);
    const bool is_unsplit = !partials.is_split || per_run >= n_kv_tiles;
    const int runs = is_unsplit ? 1 : min((n_kv_tiles + per_run - 1) / per_run, (n_visible_tiles - 1) / per_run + 2);
    const KvStream<D, type> stream(a, shared, memory);
    for (int item = blockIdx.x; item < n_unsplit * runs; item += gridDim.x) {
        const int next = item / a.kv_heads, kv_head = item - next * a.kv_heads, at = is_unsplit ? next : next / runs;
        const int row = tiles == 1 ? at : at / tiles;
        const int first_row = b.offsets[b.sequences[row]], rows = a.gqa() < QUERIES ? QUERIES / a.gqa() : 1;
        if (!has_few_rows(a, row) || (row - first_row) % rows != 0) continue;
        const typename KvStream<D, type>::Tile tile = stream.tile_of(row, at - row * tiles, kv_head);
        int first = tile.range.first / KV_TILE, last = tile.range.last / KV_TILE, n_runs = 1;
        if (!is_unsplit) {
            const int run = first / per_run + next - at * runs;
            n_runs = last / per_run - first / per_run + 1;
            first = max(first, run * per_run), last = min(last, run * per_run + per_run - 1);
        }
        if (first > last) continue;
        stream.attend(
            b.entries[a.entry], tile, first, last, n_runs > 1 ? partials.span : 0, 0,
            [&](const Query& one, int, int partial) { return partials.at(a, one.row, one.head, partial); },
            [&](const int*) { stream.load_queries(tile); });
        if (n_runs == 1) continue;
        u32* const done = a.done + (partials.place(a, row) * a.kv_heads + kv_head) * tiles + tile.tile;
        if (!is_last_of(n_runs, done, shared.is_last)) continue;
        for (int i = threadIdx.x / 32; i < QUERIES; i += WARPS) {
            const Query one = shared.queries[i];
            if (one.range.first > one.range.last) continue;
            const int c = threadIdx.x % 32 * 4;
            Softmax all;
            const float4 sum = merge_splits(a, partials.at(a, one.row, one.head, 0), one.range.first / KV_SPLIT,
                                            one.range.last / KV_SPLIT, c, stream.factors(), all);
            put_result(a, one.row, one.head, c, all, sum);
        }
    }
}

}  // namespace

#define ATTEND_STREAM(name, type, D) \
    KERNEL_BOUNDS(128, 2, attend_stream_##name##_##D)(ATTEND_PARAMETERS) { attend<D, type>(ATTEND_ARGUMENTS); }

ATTEND_STREAM(f16, F16, 64)
ATTEND_STREAM(f16, F16, 80)
ATTEND_STREAM(f16, F16, 96)
ATTEND_STREAM(f16, F16, 128)
ATTEND_STREAM(q8_0, Q8_0, 64)
ATTEND_STREAM(q8_0, Q8_0, 96)
ATTEND_STREAM(q8_0, Q8_0, 128)
ATTEND_STREAM(q4, Q4, 64)
ATTEND_STREAM(q4, Q4, 96)
ATTEND_STREAM(q4, Q4, 128)
