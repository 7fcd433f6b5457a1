// attend over f16, q8_0 and q4 caches for few rows of each sequence, heads of K and V as long: a block takes all heads
// of one KV head, up to 16 queries, and a run of groups of positions.
#include "attention/attend_groups.cuh"

namespace {

// Items are dealt to the blocks of any grid: rows, KV heads, and runs of groups, as long as leave each block about one.
template <int D, int type>
__device__ __forceinline__ void attend(const Attend& a) {
    DYNAMIC_SHARED(memory);
    __shared__ Shared shared;
    launch_dependents();
    wait_for_previous_kernel();
    const Batch& b = *a.b;
    const int tiles = (a.group() + QUERIES - 1) / QUERIES, n_groups = (b.max_length + GROUP - 1) / GROUP;
    // A row sees no more groups than these, and the rows of a block a window and a few.
    const bool is_bounded = a.window > 0 && a.mask != MASK_ALL && b.sees == nullptr;
    const int n_seen = is_bounded ? min(n_groups, (a.window + QUERIES) / GROUP + 2) : n_groups;
    // Where all rows are of sequences with many, there is nothing to do.
    bool is_any = false;
    for (int i = threadIdx.x % 32; i < b.n_sequences; i += 32) is_any |= b.offsets[i + 1] - b.offsets[i] <= a.most;
    if (!__any_sync(ALL_LANES, is_any)) return;
    const int wholes = b.n_rows * a.kv_heads * tiles;
    int per_run = int(float(wholes) * float(n_seen) / float(gridDim.x)) + 1;   // a little more changes no bit
    per_run = (per_run + UNIT / GROUP - 1) / (UNIT / GROUP) * (UNIT / GROUP);  // whole units
    const Parts parts(a, UNIT);
    const bool is_whole = !parts.apart || per_run >= n_groups;
    const int runs = is_whole ? 1 : min((n_groups + per_run - 1) / per_run, (n_seen - 1) / per_run + 2);
    const Groups<D, type> groups(a, shared, memory);
    for (int item = blockIdx.x; item < wholes * runs; item += gridDim.x) {
        const int next = item / a.kv_heads, kv_head = item - next * a.kv_heads, at = is_whole ? next : next / runs;
        const int row = tiles == 1 ? at : at / tiles;
        const int first_row = b.offsets[b.sequences[row]], rows = a.group() < QUERIES ? QUERIES / a.group() : 1;
        if (!is_of_few(a, row) || (row - first_row) % rows != 0) continue;
        const typename Groups<D, type>::Tile tile = groups.tile_of(row, at - row * tiles, kv_head);
        int first = tile.range.first / GROUP, last = tile.range.last / GROUP, n_runs = 1;
        if (!is_whole) {
            const int run = first / per_run + next - at * runs;
            n_runs = last / per_run - first / per_run + 1;
            first = max(first, run * per_run), last = min(last, run * per_run + per_run - 1);
        }
        if (first > last) continue;
        groups.attend(
            b.entries[a.entry], tile, first, last, n_runs > 1 ? parts.span : 0, 0,
            [&](const Query& one, int, int part) { return parts.at(a, one.row, one.head, part); },
            [&](const int*) { groups.load_queries(tile); });
        if (n_runs == 1) continue;
        u32* const done = a.done + (parts.place(a, row) * a.kv_heads + kv_head) * tiles + tile.tile;
        if (!is_last_of(n_runs, done, shared.is_last)) continue;
        for (int i = threadIdx.x / 32; i < QUERIES; i += WARPS) {
            const Query one = shared.queries[i];
            if (one.range.first > one.range.last) continue;
            const int c = threadIdx.x % 32 * 4;
            Softmax all;
            const float4 sum = merge_units(a, parts.at(a, one.row, one.head, 0), one.range.first / UNIT,
                                           one.range.last / UNIT, c, groups.factors(), all);
            put_result(a, one.row, one.head, c, all, sum);
        }
    }
}

}  // namespace

#define ATTEND_GROUPS(name, type, D) \
    KERNEL_BOUNDS(128, 2, attend_groups_##name##_##D)(ATTEND_PARAMETERS) { attend<D, type>(ATTEND_ARGUMENTS); }

ATTEND_GROUPS(f16, F16, 64)
ATTEND_GROUPS(f16, F16, 80)
ATTEND_GROUPS(f16, F16, 96)
ATTEND_GROUPS(f16, F16, 128)
ATTEND_GROUPS(q8_0, Q8_0, 64)
ATTEND_GROUPS(q8_0, Q8_0, 96)
ATTEND_GROUPS(q8_0, Q8_0, 128)
ATTEND_GROUPS(q4, Q4, 64)
ATTEND_GROUPS(q4, Q4, 96)
ATTEND_GROUPS(q4, Q4, 128)
