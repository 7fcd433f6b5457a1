// Prefill attention on tensor cores: a block processes 128 queries (the heads of one KV head over consecutive rows)
// over all their positions; a warp keeps 16 queries in registers. Same bits as the kernels for few rows.
#pragma once

#include "attention/attend_mma.cuh"

namespace prefill {

constexpr int WARPS = 8, BLOCK_QUERIES = QUERIES * WARPS, STAGES = 3;

namespace {

template <int k_type, int v_type, int K, int V>  // head sizes of K and V, multiples of 16
struct Prefill {
    // Column order of the streaming kernels; kernels for few rows with two cache types use the plain order.
    static constexpr bool is_permuted = k_type != F16 && v_type == k_type;
    static constexpr int k_stride = 2 * K + 16, v_stride = 2 * V + 16;
    static constexpr int q_bytes = BLOCK_QUERIES * k_stride, k_bytes = KV_TILE * k_stride, v_bytes = KV_TILE * v_stride;

    // Loads 16 queries per warp of rows [row, end) into shared memory, eight threads per query.
    static __device__ __forceinline__ void load_queries(const AttendParams& a, u8* q, float* score_scales, int row,
                                                        int end, int kv_head) {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, gqa = a.gqa();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = warp * 16 + 4 * i + lane / 8;
            const Query one = query_of(a, row + at / gqa, kv_head * gqa + at % gqa, row + at / gqa < end);
            const float score_scale = load_query<is_permuted ? Q8_0 : F16>(a, one, q + at * k_stride, K, lane % 8);
            if (lane % 8 == 0) score_scales[at] = score_scale;
        }
    }
    static __device__ __forceinline__ void find_ranges(const Query (&mine)[2], KvRange& inner, KvRange& outer) {
        for (int half = 0; half < 2; half++) {
            const KvRange one = mine[half].range;
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
    // Products of the queries with a KV tile of K.
    static __device__ __forceinline__ void score(float (&scores)[KV_TILE / 8][4], const u32 (&queries)[K / 16][4],
                                                 const u8* k) {
        const int tid = threadIdx.x, lane = tid % 32;
        const u8* k_row = k + ((lane & 7) + (lane >> 4) * 8) * k_stride + (lane >> 3 & 1) * 16;
#pragma unroll
        for (int c = 0; c < K / 16; c++)
#pragma unroll
            for (int n = 0; n < KV_TILE / 16; n++) {
                u32 columns[4];
                ldmatrix_x4<false>(columns, k_row + n * 16 * k_stride + c * 32);
                mma(scores[2 * n], queries[c], columns[0], columns[1]);
                mma(scores[2 * n + 1], queries[c], columns[2], columns[3]);
            }
    }
    // Exp weights of a KV tile, row maxima and sums.
    static __device__ __forceinline__ void compute_exp_weights(u32 (&exp_weights)[KV_TILE / 16][4], float (&row_max)[2],
                                                               float (&exp_sums)[4],
                                                               const float (&scores)[KV_TILE / 8][4],
                                                               const Query (&mine)[2], bool is_plain) {
        const float factors[2] = {mine[0].factor(is_plain), mine[1].factor(is_plain)};
        float bases[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float max_score = NO_SCORE;
#pragma unroll
            for (int n = 0; n < KV_TILE / 8; n++)
                max_score = fmaxf(max_score, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
            max_score = fmaxf(max_score, __shfl_xor_sync(ALL_LANES, max_score, 1));
            row_max[half] = __fmul_rn(fmaxf(max_score, __shfl_xor_sync(ALL_LANES, max_score, 2)), factors[half]);
            bases[half] = finite_max(row_max[half]);
        }
#pragma unroll
        for (int i = 0; i < KV_TILE / 16; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float* two = scores[2 * i + e / 2] + e % 2 * 2;
                exp_weights[i][e] = to_half2(exp_weight_at(two[0], factors[e % 2], bases[e % 2]),
                                             exp_weight_at(two[1], factors[e % 2], bases[e % 2]));
            }
            mma(exp_sums, exp_weights[i], ONES, ONES);
        }
    }
    // Exp weights times V, merged into the accumulators of a split (online softmax).
    static __device__ __forceinline__ void sum_values(float (&of_split)[V / 8][4],
                                                      const u32 (&exp_weights)[KV_TILE / 16][4], const u8* v,
                                                      const float (&old_scale)[2], const float (&new_scale)[2]) {
        const int tid = threadIdx.x, lane = tid % 32;
        const u8* v_row = v + (lane & 15) * v_stride + (lane >> 4) * 16;
#pragma unroll
        for (int j = 0; j < V / 16; j++) {
            float partial[2][4] = {};
#pragma unroll
            for (int i = 0; i < KV_TILE / 16; i++) {
                u32 columns[4];
                ldmatrix_x4<true>(columns, v_row + i * 16 * v_stride + j * 32);
                mma(partial[0], exp_weights[i], columns[0], columns[1]);
                mma(partial[1], exp_weights[i], columns[2], columns[3]);
            }
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    of_split[2 * j + n][e] =
                        merged(of_split[2 * j + n][e], old_scale[e / 2], partial[n][e], new_scale[e / 2]);
        }
    }
    // Merges a split into the totals in shared memory and resets it.
    static __device__ __forceinline__ void merge_split(Softmax (&all)[2], Softmax (&split)[2], float4* sums,
                                                       float (&of_split)[V / 8][4]) {
        float old_scale[2], new_scale[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            all[half].merge(split[half].max_score, split[half].sum, old_scale[half], new_scale[half]);
            split[half] = Softmax();
        }
#pragma unroll
        for (int j = 0; j < V / 8; j++) {
            float4 sum = sums[j * 32];
            sum.x = merged(sum.x, old_scale[0], of_split[j][0], new_scale[0]);
            sum.y = merged(sum.y, old_scale[0], of_split[j][1], new_scale[0]);
            sum.z = merged(sum.z, old_scale[1], of_split[j][2], new_scale[1]);
            sum.w = merged(sum.w, old_scale[1], of_split[j][3], new_scale[1]);
            sums[j * 32] = sum;
#pragma unroll
            for (int e = 0; e < 4; e++) of_split[j][e] = 0.f;
        }
    }

    // Rows [row, end) of sequence s.
    static __device__ __forceinline__ void attend(const AttendParams& a, u8* memory, int s, int row, int end,
                                                  int kv_head) {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4, gqa = a.gqa();
        const Entry& entry = a.b->entries[a.entry];
        const int* pages = entry.pages + (long long)s * a.b->max_pages;
        const KvRange early = visible_range(a, row), late = visible_range(a, end - 1);
        const KvRange range{min(early.first, late.first), max(early.last, late.last)};
        const int first = range.first / KV_TILE, last = range.last / KV_TILE;
        u8 *const q = memory, *const copies = memory + q_bytes;
        const int k_room = k_type == F16 ? K : a.k_room, v_room = v_type == F16 ? V : a.v_room;
        auto copy = [&](int at) {
            if (at <= last) {
                u8* const to = copies + at % STAGES * (k_bytes + v_bytes);
                copy_kv_tile<k_type, is_permuted>(to, entry.k, pages, a.kv_heads, kv_head, k_room, K, at, range, tid,
                                                  WARPS * 32);
                copy_kv_tile<v_type>(to + k_bytes, entry.v, pages, a.kv_heads, kv_head, v_room, V, at, range, tid,
                                     WARPS * 32);
            }
            cp_async_commit();
        };
        __shared__ float score_scales[BLOCK_QUERIES];
        __syncthreads();  // wait for readers of the previous rows
        for (int i = 0; i + 1 < STAGES; i++) copy(first + i);

        load_queries(a, q, score_scales, row, end, kv_head);
        __syncwarp();
        Query mine[2];  // queries g and g + 8 of the warp
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = warp * 16 + g + 8 * half;
            mine[half] = query_of(a, row + at / gqa, kv_head * gqa + at % gqa, row + at / gqa < end);
            mine[half].score_scale = score_scales[at];
        }
        // Positions visible to all queries of the warp, and to any.
        KvRange inner{0, 1 << 30}, outer{1 << 30, -1};
        find_ranges(mine, inner, outer);
        u32 queries[K / 16][4];
#pragma unroll
        for (int c = 0; c < K / 16; c++)
            ldmatrix_x4<false>(queries[c], q + (warp * 16 + (lane & 15)) * k_stride + (c * 16 + (lane >> 4) * 8) * 2);

        const bool is_plain = a.is_plain();
        Softmax all[2], split[2];
        float of_split[V / 8][4] = {};
        // Totals over splits, in shared memory, per lane.
        float4* const sums =
            reinterpret_cast<float4*>(copies + STAGES * (k_bytes + v_bytes)) + warp * (V / 8) * 32 + lane;
#pragma unroll
        for (int j = 0; j < V / 8; j++) sums[j * 32] = make_float4(0.f, 0.f, 0.f, 0.f);
        for (int at = first; at <= last; at++) {
            cp_async_wait<STAGES - 2>();
            __syncthreads();
            copy(at + STAGES - 1);
            const u8* const k = copies + at % STAGES * (k_bytes + v_bytes);
            const int from = at * KV_TILE;
            if (from <= outer.last && from + KV_TILE > outer.first) {
                float scores[KV_TILE / 8][4] = {};
                score(scores, queries, k);
                if (!is_plain || from < inner.first || from + KV_TILE - 1 > inner.last) {
#pragma unroll
                    for (int n = 0; n < KV_TILE / 8; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            scores[n][e] =
                                score_at(a, mine[e / 2], scores[n][e], from + 8 * n + 2 * t + e % 2, is_plain);
                }
                float row_max[2], exp_sums[4] = {};
                u32 exp_weights[KV_TILE / 16][4];
                compute_exp_weights(exp_weights, row_max, exp_sums, scores, mine, is_plain);
                float old_scale[2], new_scale[2];
#pragma unroll
                for (int half = 0; half < 2; half++)
                    split[half].merge(row_max[half], exp_sums[2 * half], old_scale[half], new_scale[half]);
                sum_values(of_split, exp_weights, k + k_bytes, old_scale, new_scale);
            }
            if (at % (KV_SPLIT / KV_TILE) != KV_SPLIT / KV_TILE - 1 && at != last) continue;
            merge_split(all, split, sums, of_split);
        }
        store_sums<V>(a, mine, all, sums, t);
    }
};

// A block takes `rows` rows of the batch, sequence by sequence. Late rows see the most positions, so they go first.
template <int k_type, int v_type, int K, int V>
__device__ __forceinline__ void attend(const AttendParams& a) {
    DYNAMIC_SHARED(memory);
    launch_dependents();
    wait_for_previous_kernel();
    const int rows = BLOCK_QUERIES / a.gqa();
    int row = (gridDim.x - 1 - blockIdx.x) * rows;
    const int end = min(row + rows, a.b->n_rows);
    while (row < end) {
        const int s = a.b->sequences[row], after = min(end, a.b->offsets[s + 1]);
        if (!has_few_rows(a, row)) Prefill<k_type, v_type, K, V>::attend(a, memory, s, row, after, blockIdx.y);
        row = after;
    }
}

}  // namespace

}  // namespace prefill
