// attend on tensor cores for many rows of a sequence: a block takes 128 queries, the heads of one KV head of
// rows that follow one another, and walks all their positions. A warp keeps 16 queries in registers. Bits are those of
// few rows.
#pragma once

#include "attention/attend_mma.cuh"

namespace many {

constexpr int WARPS = 8, MANY = QUERIES * WARPS, STAGES = 3;

namespace {

template <int k_type, int v_type, int K, int V>  // columns of a head of K and of V, in whole 16
struct Many {
    // The order in which kernels that stream bytes multiply; those of few rows of two types have that of the columns.
    static constexpr bool is_slotted = k_type != F16 && v_type == k_type;
    static constexpr int k_stride = 2 * K + 16, v_stride = 2 * V + 16;
    static constexpr int q_bytes = MANY * k_stride, k_bytes = GROUP * k_stride, v_bytes = GROUP * v_stride;

    // 16 queries of each warp, of rows from `row` to `end`, to shared memory: eight threads load one.
    static __device__ __forceinline__ void load_queries(const Attend& a, u8* q, float* all_times, int row, int end,
                                                        int kv_head) {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, group = a.group();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = warp * 16 + 4 * i + lane / 8;
            const Query one = query_of(a, row + at / group, kv_head * group + at % group, row + at / group < end);
            const float times = load_query<is_slotted ? Q8_0 : F16>(a, one, q + at * k_stride, K, lane % 8);
            if (lane % 8 == 0) all_times[at] = times;
        }
    }
    static __device__ __forceinline__ void find_seen(const Query (&mine)[2], Seen& inner, Seen& outer) {
        for (int half = 0; half < 2; half++) {
            const Seen one = mine[half].range;
            if (one.first > one.last) continue;
            inner = {max(inner.first, one.first), min(inner.last, one.last)};
            outer = {min(outer.first, one.first), max(outer.last, one.last)};
        }
        for (int i = 4; i < 32; i *= 2) {
            inner.first = max(inner.first, __shfl_xor_sync(ALL_LANES, inner.first, i));
            inner.last = min(inner.last, __shfl_xor_sync(ALL_LANES, inner.last, i));
            outer.first = min(outer.first, __shfl_xor_sync(ALL_LANES, outer.first, i));
            outer.last = max(outer.last, __shfl_xor_sync(ALL_LANES, outer.last, i));
        }
    }
    // Products of the queries with a group of keys.
    static __device__ __forceinline__ void score(float (&scores)[GROUP / 8][4], const u32 (&queries)[K / 16][4],
                                                 const u8* k) {
        const int tid = threadIdx.x, lane = tid % 32;
        const u8* k_row = k + ((lane & 7) + (lane >> 4) * 8) * k_stride + (lane >> 3 & 1) * 16;
#pragma unroll
        for (int c = 0; c < K / 16; c++)
#pragma unroll
            for (int n = 0; n < GROUP / 16; n++) {
                u32 columns[4];
                ldmatrix_x4<false>(columns, k_row + n * 16 * k_stride + c * 32);
                mma(scores[2 * n], queries[c], columns[0], columns[1]);
                mma(scores[2 * n + 1], queries[c], columns[2], columns[3]);
            }
    }
    // Numerators of the softmax of a group, with their maxima and totals.
    static __device__ __forceinline__ void find_powers(u32 (&powers)[GROUP / 16][4], float (&tops)[2],
                                                       float (&totals)[4], const float (&scores)[GROUP / 8][4],
                                                       const Query (&mine)[2], bool is_plain) {
        const float factors[2] = {mine[0].factor(is_plain), mine[1].factor(is_plain)};
        float bases[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = NOTHING;
#pragma unroll
            for (int n = 0; n < GROUP / 8; n++) top = fmaxf(top, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
            tops[half] = __fmul_rn(fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2)), factors[half]);
            bases[half] = finite_top(tops[half]);
        }
#pragma unroll
        for (int i = 0; i < GROUP / 16; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float* two = scores[2 * i + e / 2] + e % 2 * 2;
                powers[i][e] = to_half2(power_at(two[0], factors[e % 2], bases[e % 2]),
                                        power_at(two[1], factors[e % 2], bases[e % 2]));
            }
            mma(totals, powers[i], ONES, ONES);
        }
    }
    // Numerators times V, merged into the sums of a unit (online softmax).
    static __device__ __forceinline__ void sum_values(float (&of_unit)[V / 8][4], const u32 (&powers)[GROUP / 16][4],
                                                      const u8* v, const float (&old)[2], const float (&now)[2]) {
        const int tid = threadIdx.x, lane = tid % 32;
        const u8* v_row = v + (lane & 15) * v_stride + (lane >> 4) * 16;
#pragma unroll
        for (int j = 0; j < V / 16; j++) {
            float part[2][4] = {};
#pragma unroll
            for (int i = 0; i < GROUP / 16; i++) {
                u32 columns[4];
                ldmatrix_x4<true>(columns, v_row + i * 16 * v_stride + j * 32);
                mma(part[0], powers[i], columns[0], columns[1]);
                mma(part[1], powers[i], columns[2], columns[3]);
            }
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    of_unit[2 * j + n][e] = merged(of_unit[2 * j + n][e], old[e / 2], part[n][e], now[e / 2]);
        }
    }
    // Merges a unit into the sums of all, which wait in shared memory, and clears it.
    static __device__ __forceinline__ void add_unit(Softmax (&all)[2], Softmax (&unit)[2], float4* sums,
                                                    float (&of_unit)[V / 8][4]) {
        float old[2], now[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            all[half].merge(unit[half].top, unit[half].sum, old[half], now[half]);
            unit[half] = Softmax();
        }
#pragma unroll
        for (int j = 0; j < V / 8; j++) {
            float4 sum = sums[j * 32];
            sum.x = merged(sum.x, old[0], of_unit[j][0], now[0]);
            sum.y = merged(sum.y, old[0], of_unit[j][1], now[0]);
            sum.z = merged(sum.z, old[1], of_unit[j][2], now[1]);
            sum.w = merged(sum.w, old[1], of_unit[j][3], now[1]);
            sums[j * 32] = sum;
#pragma unroll
            for (int e = 0; e < 4; e++) of_unit[j][e] = 0.f;
        }
    }

    // Rows from `row` to `end` of sequence `s`.
    static __device__ __forceinline__ void attend(const Attend& a, u8* memory, int s, int row, int end, int kv_head) {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4, group = a.group();
        const Entry& entry = a.b->entries[a.entry];
        const int* pages = entry.pages + (long long)s * a.b->max_pages;
        const Seen early = seen(a, row), late = seen(a, end - 1);
        const Seen range{min(early.first, late.first), max(early.last, late.last)};
        const int first = range.first / GROUP, last = range.last / GROUP;
        u8 *const q = memory, *const copies = memory + q_bytes;
        const int k_room = k_type == F16 ? K : a.k_room, v_room = v_type == F16 ? V : a.v_room;
        auto copy = [&](int at) {
            if (at <= last) {
                u8* const to = copies + at % STAGES * (k_bytes + v_bytes);
                copy_group<k_type, is_slotted>(to, entry.k, pages, a.kv_heads, kv_head, k_room, K, at, range, tid,
                                               WARPS * 32);
                copy_group<v_type>(to + k_bytes, entry.v, pages, a.kv_heads, kv_head, v_room, V, at, range, tid,
                                   WARPS * 32);
            }
            cp_async_commit();
        };
        __shared__ float all_times[MANY];
        __syncthreads();  // wait for readers of the previous rows
        for (int i = 0; i + 1 < STAGES; i++) copy(first + i);

        load_queries(a, q, all_times, row, end, kv_head);
        __syncwarp();
        Query mine[2];  // g and g + 8 of the warp
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = warp * 16 + g + 8 * half;
            mine[half] = query_of(a, row + at / group, kv_head * group + at % group, row + at / group < end);
            mine[half].times = all_times[at];
        }
        // What all queries of the warp see, and what some do.
        Seen inner{0, 1 << 30}, outer{1 << 30, -1};
        find_seen(mine, inner, outer);
        u32 queries[K / 16][4];
#pragma unroll
        for (int c = 0; c < K / 16; c++)
            ldmatrix_x4<false>(queries[c], q + (warp * 16 + (lane & 15)) * k_stride + (c * 16 + (lane >> 4) * 8) * 2);

        const bool is_plain = a.is_plain();
        Softmax all[2], unit[2];
        float of_unit[V / 8][4] = {};
        // Sums over units wait in shared memory, each lane's own.
        float4* const sums =
            reinterpret_cast<float4*>(copies + STAGES * (k_bytes + v_bytes)) + warp * (V / 8) * 32 + lane;
#pragma unroll
        for (int j = 0; j < V / 8; j++) sums[j * 32] = make_float4(0.f, 0.f, 0.f, 0.f);
        for (int at = first; at <= last; at++) {
            cp_async_wait<STAGES - 2>();
            __syncthreads();
            copy(at + STAGES - 1);
            const u8* const k = copies + at % STAGES * (k_bytes + v_bytes);
            const int from = at * GROUP;
            if (from <= outer.last && from + GROUP > outer.first) {
                float scores[GROUP / 8][4] = {};
                score(scores, queries, k);
                if (!is_plain || from < inner.first || from + GROUP - 1 > inner.last) {
#pragma unroll
                    for (int n = 0; n < GROUP / 8; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            scores[n][e] =
                                score_at(a, mine[e / 2], scores[n][e], from + 8 * n + 2 * t + e % 2, is_plain);
                }
                float tops[2], totals[4] = {};
                u32 powers[GROUP / 16][4];
                find_powers(powers, tops, totals, scores, mine, is_plain);
                float old[2], now[2];
#pragma unroll
                for (int half = 0; half < 2; half++)
                    unit[half].merge(tops[half], totals[2 * half], old[half], now[half]);
                sum_values(of_unit, powers, k + k_bytes, old, now);
            }
            if (at % (UNIT / GROUP) != UNIT / GROUP - 1 && at != last) continue;
            add_unit(all, unit, sums, of_unit);
        }
        store_sums<V>(a, mine, all, sums, t);
    }
};

// A block takes `rows` rows of the batch, of one sequence after another. Late rows see the most: they come first.
template <int k_type, int v_type, int K, int V>
__device__ __forceinline__ void attend(const Attend& a) {
    DYNAMIC_SHARED(memory);
    launch_dependents();
    wait_for_previous_kernel();
    const int rows = MANY / a.group();
    int row = (gridDim.x - 1 - blockIdx.x) * rows;
    const int end = min(row + rows, a.b->n_rows);
    while (row < end) {
        const int s = a.b->sequences[row], after = min(end, a.b->offsets[s + 1]);
        if (!is_of_few(a, row)) Many<k_type, v_type, K, V>::attend(a, memory, s, row, after, blockIdx.y);
        row = after;
    }
}

}  // namespace

}  // namespace many
