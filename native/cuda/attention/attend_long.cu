// attend over f16 and q8_0 caches for a run of one row that sees many positions, together with store, as attend_row.cu
// computes it for fewer. Blocks take runs of whole units of a KV head. When all runs of a head are there, its blocks
// merge a few columns each.
#include "attention/attend_heads.cuh"

namespace {

constexpr int AT_ONCE = 4;  // units of a lane that are merged at once

// Numbers of the units that a warp merges at once.
struct Merged {
    float4 factors[32 * AT_ONCE];  // of the sum so far, of the unit, and its own sum
    float4 columns[32 * AT_ONCE][2];
};

// Units from `first` to `last` of a query, which lie apart in memory from `from` on, merged in order by a warp: eight
// columns from c on, of the first eight lanes. Lanes are units first, and find what sums are multiplied by.
__device__ __forceinline__ float merge_columns(const float* from, int stride, int first, int last, int c,
                                               Merged& memory, Softmax& all) {
    const int lane = threadIdx.x % 32;
    float sum = 0.f;
    for (; first <= last; first += 32 * AT_ONCE) {
        const int n = min(32 * AT_ONCE, last - first + 1);
        float2 own[AT_ONCE];
        float4 columns[AT_ONCE][2];
        float upto[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const float* const here = from + (long long)(first + min(32 * j + lane, n - 1)) * stride;
            own[j] = __ldcg(reinterpret_cast<const float2*>(here));
            columns[j][0] = __ldcg(reinterpret_cast<const float4*>(here + 4 + c));
            columns[j][1] = __ldcg(reinterpret_cast<const float4*>(here + (c + 8 < stride ? 8 : 4) + c));
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            memory.columns[32 * j + lane][0] = columns[j][0], memory.columns[32 * j + lane][1] = columns[j][1];
            upto[j] = 32 * j + lane < n ? own[j].x : NOTHING;
        }
#pragma unroll
        for (int i = 1; i < 32; i *= 2)
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const float other = __shfl_sync(ALL_LANES, upto[j], max(lane - i, 0));
                if (lane >= i) upto[j] = fmaxf(upto[j], other);
            }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            upto[j] = fmaxf(upto[j], all.top);
            const float before = __shfl_sync(ALL_LANES, upto[j], max(lane - 1, 0)), base = finite_top(upto[j]);
            memory.factors[32 * j + lane] = make_float4(power_of_2((lane == 0 ? all.top : before) - base),
                                                        power_of_2(own[j].x - base), own[j].y, 0.f);
            all.top = __shfl_sync(ALL_LANES, upto[j], 31);
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

// Blocks that compute runs of the same queries meet here. Numbers are zeros, and are so again afterwards.
struct Meeting {
    u32 there;  // how many have done their runs; from bit 16 on, how many of them wait for the others
    u32 gone;   // how many of these have merged
    u32 begun;  // how many have begun
    u32 pad;
};

// A block's place among those that merge, and how many these are; none if it is not one of them.
struct Share {
    u32 at, n;
};

// Waits until n blocks have done their runs, if the block may and if all of them have begun: then none needs the place
// of this one. Else it leaves the merging to those that wait or, if it is the last and there are none, does all of it.
__device__ __forceinline__ Share meet(Meeting* meeting, u32 n, bool may_wait, Share& shared) {
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 waits = may_wait && load_acquire(&meeting->begun) == n;
        __threadfence();
        u32 there = atomicAdd(&meeting->there, 1u + (waits << 16)), at = there >> 16;
        there += 1u + (waits << 16);
        while (waits && (there & 0xFFFFu) < n) there = load_acquire(&meeting->there);
        const u32 n_waiting = there >> 16;
        const bool is_alone = (there & 0xFFFFu) == n && n_waiting == 0;
        __threadfence();
        shared = is_alone ? Share{0, 1} : waits ? Share{at, n_waiting} : Share{0, 0};
    }
    __syncthreads();
    return shared;
}

template <int D, int type>
__device__ __forceinline__ void attend(const Attend& a, const Turned& turned, const float* k, const float* v) {
    DYNAMIC_SHARED(memory);
    __shared__ Shared shared;
    __shared__ Share share;
    launch_dependents();
    typedef Groups<D, type, true> Once;
    const Once groups(a, shared, memory);
    static_assert(WARPS * sizeof(Merged) <= Once::ring, "runs are merged in the ring");
    constexpr int of_unit = UNIT / GROUP;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_blocks = gridDim.x;
    const int tiles = (a.group() + QUERIES - 1) / QUERIES, items = a.kv_heads * tiles;
    const Entry entry = a.b->entries[a.entry];
    const Seen range = seen(a, 0);
    const Heads<D, Once> heads(groups, turned, k, v);
    const int first = range.first / UNIT, last = range.last / UNIT;
    const Parts parts(a, UNIT);
    // Blocks of an item, one for each run, and items at once. Runs differ by a unit at most.
    const int n_units = last - first + 1,
              n_runs = parts.apart && 4 * items <= a.n_parts ? max(1, min(n_units, n_blocks / items)) : 1,
              at_once = min(items, n_blocks / n_runs), run = blockIdx.x / at_once;
    // Those of one block on each processor merge; the others make room for the kernel after this one.
    const int n_first = min(n_runs, n_blocks / 2 / at_once);
    const int run_first = max(range.first / GROUP, (first + run * n_units / n_runs) * of_unit),
              run_last = min(range.last / GROUP, (first + (run + 1) * n_units / n_runs) * of_unit - 1);
    for (int item = blockIdx.x % at_once; item < items && run < n_runs; item += at_once) {
        const int tile = tiles == 1 ? 0 : item / a.kv_heads, kv_head = item - tile * a.kv_heads;
        const int first_head = kv_head * a.group() + tile * QUERIES, stride = a.part_stride();
        float* const outside = a.parts + (long long)first_head * parts.n * stride;
        Meeting* const meeting = reinterpret_cast<Meeting*>(a.done) + item;
        groups.attend(
            entry, {0, 0, 0, kv_head, tile, range, range}, run_first, run_last, n_runs > 1 ? UNIT : 0, 1,
            [&](const Query&, int i, int part) { return outside + (long long)(i * parts.n + part) * stride; },
            [&](const int* table) {
                heads.prepare(entry, table, first_head, kv_head, run_first, run_last, range);
                if (n_runs > 1 && threadIdx.x == 0) atomicAdd(&meeting->begun, 1u);
            });
        if (n_runs == 1) continue;
        const Share mine = meet(meeting, n_runs, run < n_first, share);
        if (mine.n == 0) continue;
        u32 n_gone = 0;
        if (threadIdx.x == 0) n_gone = atomicAdd(&meeting->gone, 1u) + 1;  // which nobody awaits yet
        const int chunks = (a.v_dim + 7) / 8, n = min(QUERIES, a.group() - tile * QUERIES) * chunks;
        for (int i = mine.at * WARPS + warp; i < n; i += mine.n * WARPS) {
            const int head = i / chunks, c = (i - head * chunks) * 8;
            Softmax all;
            const float sum = merge_columns(outside + (long long)head * parts.n * stride, stride, first, last, c,
                                            reinterpret_cast<Merged*>(groups.copies)[warp], all);
            const float times = share_of(a, all, first_head + head);
            if (lane < 8 && c + lane < a.v_dim)
                a.out[(long long)(first_head + head) * a.v_dim + c + lane] = __fmul_rn(sum, times);
        }
        if (threadIdx.x == 0 && n_gone == mine.n) *meeting = Meeting{0, 0, 0, 0};
    }
    wait_for_previous_kernel();  // what comes after this kernel relies on the one before it, too
}

}  // namespace

#define ATTEND_LONG(name, type, D) \
    KERNEL_BOUNDS(128, 2, attend_long_##name##_##D)(HEADS_PARAMETERS) { attend<D, type>(HEADS_ARGUMENTS); }

EACH_OF_HEADS(ATTEND_LONG)
