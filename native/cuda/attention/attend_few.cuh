// Attention on tensor cores for few rows per sequence, any head size: a block processes all query heads of one KV head
// (up to 16 queries) over one split or all positions, so K and V are read once. Warps share the positions for scores,
// then the columns of V.
#pragma once

#include "attention/attend_mma.cuh"

namespace few {

constexpr int WARPS = 4, EXP_STRIDE = 2 * KV_TILE + 16;

namespace {

struct Shared {
    Query queries[QUERIES];
    float row_max[WARPS][QUERIES];
    bool is_last;  // this block is the last with partials of these queries
    alignas(16) u8 exp_weights[QUERIES * EXP_STRIDE];
};

// Scores of this warp's 16 positions of a KV tile.
__device__ __forceinline__ void scores_of(const AttendParams& a, const Shared& shared, const u8* q, const u8* k,
                                          int k_columns, int first, int lane, float (&scores)[2][4]) {
    const int stride = stride_of(k_columns), g = lane / 4, t = lane % 4;
    const u8* q_row = q + (lane & 15) * stride + (lane >> 4) * 16;
    const u8* k_row = k + ((lane & 7) + (lane >> 4) * 8) * stride + (lane >> 3 & 1) * 16;
    for (int i = 0; i < 4; i++) scores[0][i] = scores[1][i] = 0.f;
#pragma unroll 4
    for (int c = 0; c < k_columns; c += 16) {
        u32 rows[4], columns[4];
        ldmatrix_x4<false>(rows, q_row + c * 2);
        ldmatrix_x4<false>(columns, k_row + c * 2);
        mma(scores[0], rows, columns[0], columns[1]);
        mma(scores[1], rows, columns[2], columns[3]);
    }
    const bool is_plain = a.is_plain();
    for (int half = 0; half < 2; half++) {
        const Query& one = shared.queries[g + 8 * half];
        for (int n = 0; n < 2; n++)
            for (int e = 0; e < 2; e++) {
                float& score = scores[n][2 * half + e];
                score = score_at(a, one, score, first + 8 * n + 2 * t + e, is_plain);
            }
    }
}

// Loads the queries of rows from `row` on into shared memory, eight threads per query.
__device__ __forceinline__ void load_queries(const AttendParams& a, Shared& shared, u8* q, int k_stride, int k_columns,
                                             int row, int rows, int last_row, int tile, int kv_head) {
    const int tid = threadIdx.x, i = tid / 8;
    Query one = query_of_tile(a, i, row, rows, last_row, tile, kv_head);
    one.score_scale = load_query(a, one, q + i * k_stride, k_columns, tid % 8);
    if (tid % 8 == 0) shared.queries[i] = one;
}

// Row maxima over this warp's positions.
__device__ __forceinline__ void store_row_max(const AttendParams& a, Shared& shared, const float (&scores)[2][4]) {
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; half++) {
        float max_score = fmaxf(fmaxf(scores[0][2 * half], scores[0][2 * half + 1]),
                                fmaxf(scores[1][2 * half], scores[1][2 * half + 1]));
        max_score = fmaxf(max_score, __shfl_xor_sync(ALL_LANES, max_score, 1));
        max_score = fmaxf(max_score, __shfl_xor_sync(ALL_LANES, max_score, 2));
        if (t == 0)
            shared.row_max[warp][g + 8 * half] =
                __fmul_rn(max_score, shared.queries[g + 8 * half].factor(a.is_plain()));
    }
}
// Exp weights of a KV tile, to shared memory.
__device__ __forceinline__ void store_exp_weights(const AttendParams& a, Shared& shared, const float (&scores)[2][4],
                                                  float (&row_max)[2]) {
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; half++) {
        const int i = g + 8 * half;
        row_max[half] =
            fmaxf(fmaxf(shared.row_max[0][i], shared.row_max[1][i]), fmaxf(shared.row_max[2][i], shared.row_max[3][i]));
        const float base = finite_max(row_max[half]), factor = shared.queries[i].factor(a.is_plain());
        for (int n = 0; n < 2; n++)
            *reinterpret_cast<u32*>(shared.exp_weights + i * EXP_STRIDE + (warp * 16 + 8 * n + 2 * t) * 2) = to_half2(
                exp_weight_at(scores[n][2 * half], factor, base), exp_weight_at(scores[n][2 * half + 1], factor, base));
    }
}

// Exp weights times V, merged into the accumulators of a split (online softmax).
template <int blocks>
__device__ __forceinline__ void sum_values(const Shared& shared, const u8* v, int stride, int v_columns,
                                           const float (&row_max)[2], Softmax (&split)[2],
                                           float (&of_split)[blocks][2][4]) {
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    u32 exp_weights[KV_TILE / 16][4];
    float exp_sums[4] = {};
    for (int i = 0; i < KV_TILE / 16; i++) {
        ldmatrix_x4<false>(exp_weights[i],
                           shared.exp_weights + (lane & 15) * EXP_STRIDE + (i * 16 + (lane >> 4) * 8) * 2);
        mma(exp_sums, exp_weights[i], ONES, ONES);
    }
    float mine[2], others[2];
    for (int half = 0; half < 2; half++) split[half].merge(row_max[half], exp_sums[2 * half], mine[half], others[half]);
#pragma unroll
    for (int j = 0; j < blocks; j++) {
        const int column = (warp + j * WARPS) * 16;
        if (column >= v_columns) continue;
        const u8* v_row = v + (lane & 15) * stride + (column + (lane >> 4) * 8) * 2;
        float sum[2][4] = {};
        for (int i = 0; i < KV_TILE / 16; i++) {
            u32 columns[4];
            ldmatrix_x4<true>(columns, v_row + i * 16 * stride);
            mma(sum[0], exp_weights[i], columns[0], columns[1]);
            mma(sum[1], exp_weights[i], columns[2], columns[3]);
        }
        for (int n = 0; n < 2; n++)
            for (int e = 0; e < 4; e++)
                of_split[j][n][e] = merged(of_split[j][n][e], mine[e / 2], sum[n][e], others[e / 2]);
    }
}

// Merges a split into the totals and resets it.
template <int blocks>
__device__ __forceinline__ void merge_split(Softmax (&all)[2], float (&sums)[blocks][2][4], Softmax (&split)[2],
                                            float (&of_split)[blocks][2][4]) {
    float mine[2], others[2];
    for (int half = 0; half < 2; half++) {
        all[half].merge(split[half].max_score, split[half].sum, mine[half], others[half]);
        split[half] = Softmax();
    }
#pragma unroll
    for (int j = 0; j < blocks; j++)
        for (int n = 0; n < 2; n++)
            for (int e = 0; e < 4; e++) {
                sums[j][n][e] = merged(sums[j][n][e], mine[e / 2], of_split[j][n][e], others[e / 2]);
                of_split[j][n][e] = 0.f;
            }
}

// Epilogue: stores the result, or a partial with split-KV.
template <int blocks>
__device__ __forceinline__ void put_results(const AttendParams& a, const Partials& partials, const Shared& shared,
                                            int partial, const Softmax (&split)[2], const Softmax (&all)[2],
                                            const float (&of_split)[blocks][2][4], const float (&sums)[blocks][2][4]) {
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const Query one = shared.queries[g + 8 * half];
        if (one.range.first > one.range.last) continue;
        float* to = a.out + ((long long)one.row * a.heads + one.head) * a.v_dim;
        float inv_sum = 0.f;
        if (partial >= 0) {
            to = partials.at(a, one.row, one.head, partial);
            if (warp == 0 && t == 0) to[0] = split[half].max_score, to[1] = split[half].sum;
            to += 4;
        } else {
            inv_sum = inv_sum_of(a, all[half], one.head);
        }
#pragma unroll
        for (int j = 0; j < blocks; j++)
            for (int n = 0; n < 2; n++)
                for (int e = 0; e < 2; e++) {
                    const int c = (warp + j * WARPS) * 16 + 8 * n + 2 * t + e, i = 2 * half + e;
                    if (c < a.v_dim) to[c] = partial >= 0 ? of_split[j][n][i] : __fmul_rn(sums[j][n][i], inv_sum);
                }
    }
}

template <int k_type, int v_type, int blocks>
__device__ void attend_item(const AttendParams& a, const Partials& partials, Shared& shared, u8* memory, int row,
                            int tile, int kv_head, int partial) {
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, gqa = a.gqa();
    const Batch& b = *a.b;
    const int s = b.sequences[row], first_row = b.offsets[s], end = b.offsets[s + 1];
    const int rows = gqa < QUERIES ? QUERIES / gqa : 1;
    if (end - first_row > a.max_few_rows || (row - first_row) % rows != 0) return;
    // Union of the rows' ranges; consecutive rows have overlapping ones.
    const int last_row = min(row + rows, end) - 1;
    KvRange range{min(visible_range(a, row).first, visible_range(a, last_row).first),
                  max(visible_range(a, row).last, visible_range(a, last_row).last)};
    const int n_partials = range.last / partials.span - range.first / partials.span + 1;
    if (partial >= 0)
        range = {max(range.first, partial * partials.span), min(range.last, (partial + 1) * partials.span - 1)};
    if (range.first > range.last) return;

    const Entry& entry = b.entries[a.entry];
    const int* pages = entry.pages + (long long)s * b.max_pages;
    const bool is_inside = entry.k == entry.v;
    const int k_columns = (a.k_dim + 15) / 16 * 16, k_stride = stride_of(k_columns);
    const int q_bytes = QUERIES * k_stride, k_bytes = KV_TILE * k_stride;
    const int v_columns = (a.v_dim + 15) / 16 * 16, v_bytes = is_inside ? 0 : KV_TILE * stride_of(v_columns);
    u8 *const q = memory, *const copies = memory + q_bytes;
    const int first = range.first / KV_TILE, last = range.last / KV_TILE;
    __syncthreads();  // wait for readers of the previous item
    auto copy = [&](int at) {
        if (at <= last) {
            u8* const to = copies + at % a.stages * (k_bytes + v_bytes);
            copy_kv_tile<k_type>(to, entry.k, pages, a.kv_heads, kv_head, a.k_room, k_columns, at, range, tid,
                                 WARPS * 32);
            if (!is_inside)
                copy_kv_tile<v_type>(to + k_bytes, entry.v, pages, a.kv_heads, kv_head, a.v_room, v_columns, at, range,
                                     tid, WARPS * 32);
        }
        cp_async_commit();
    };
    for (int i = 0; i + 1 < a.stages; i++) copy(first + i);
    load_queries(a, shared, q, k_stride, k_columns, row, rows, last_row, tile, kv_head);

    Softmax all[2], split[2];  // of queries g and g + 8
    float sums[blocks][2][4] = {}, of_split[blocks][2][4] = {};
    for (int at = first; at <= last; at++) {
        if (a.stages == 1) {  // a single stage: compute and copy alternate
            __syncthreads();
            copy(at);
        }
        if (a.stages > 2)
            cp_async_wait<1>();
        else
            cp_async_wait<0>();
        __syncthreads();
        if (a.stages > 1) copy(at + a.stages - 1);
        const u8* const k = copies + at % a.stages * (k_bytes + v_bytes);
        const u8* const v = is_inside ? k : k + k_bytes;

        float scores[2][4], row_max[2];
        scores_of(a, shared, q, k + warp * 16 * k_stride, k_columns, at * KV_TILE + warp * 16, lane, scores);
        store_row_max(a, shared, scores);
        __syncthreads();
        store_exp_weights(a, shared, scores, row_max);
        __syncthreads();

        sum_values<blocks>(shared, v, is_inside ? k_stride : stride_of(v_columns), v_columns, row_max, split, of_split);
        if (partial >= 0 || (at % (KV_SPLIT / KV_TILE) != KV_SPLIT / KV_TILE - 1 && at != last)) continue;
        merge_split<blocks>(all, sums, split, of_split);
    }

    put_results<blocks>(a, partials, shared, partial, split, all, of_split, sums);
    if (partial < 0) return;
    u32* const done = a.done + (partials.place(a, row) * a.kv_heads + kv_head) * ((gqa + QUERIES - 1) / QUERIES) + tile;
    if (is_last_of(n_partials, done, shared.is_last)) merge_partials(a, partials, shared.queries, tid, WARPS * 32);
}

// Grid-stride loop over rows, query tiles, KV heads and, with split-KV, partials.
template <int k_type, int v_type, int blocks>
__device__ void attend(const AttendParams& a) {
    DYNAMIC_SHARED(memory);
    __shared__ Shared shared;
    launch_dependents();
    wait_for_previous_kernel();
    const int tiles = (a.gqa() + QUERIES - 1) / QUERIES;
    const long long n_unsplit = (long long)a.b->n_rows * a.kv_heads * tiles;
    // Partials have one KV tile if each multiprocessor then has work: the grid has 8 blocks per multiprocessor.
    const Partials tile_partials(a, KV_TILE);
    const Partials partials(
        a, tile_partials.is_split && n_unsplit * tile_partials.n <= gridDim.x / 2 ? KV_TILE : KV_SPLIT);
    const int n = partials.is_split ? partials.n : 1;
    for (long long item = blockIdx.x; item < n_unsplit * n; item += gridDim.x) {
        const int kv_head = int(item % a.kv_heads), partial = int(item / a.kv_heads % n);
        const int row_and_tile = int(item / a.kv_heads / n);
        attend_item<k_type, v_type, blocks>(a, partials, shared, memory, row_and_tile / tiles, row_and_tile % tiles,
                                            kv_head, partials.is_split ? partial : -1);
    }
}

}  // namespace

}  // namespace few
