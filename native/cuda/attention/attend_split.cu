// Attention over f16 caches for few rows per sequence with equal head sizes of K and V: a block processes all query
// heads of one KV head (up to 16 queries) over a run of splits. All loads of a split are in flight before the first
// wait. A warp computes the scores of 32 positions, then 16 columns of V. Same bits as the other tensor core kernels.
#include "attention/attend_mma.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS, TILES_PER_SPLIT = KV_SPLIT / KV_TILE, EXP_STRIDE = 2 * KV_SPLIT + 16;

namespace {

struct Shared {
    Query queries[QUERIES];
    float row_max[WARPS][QUERIES], tile_max[TILES_PER_SPLIT][QUERIES];
    bool is_last;  // this block is the last with partials of these queries
    alignas(16) u8 exp_weights[QUERIES * EXP_STRIDE];
};

template <int D>  // head size, a multiple of 16
struct SplitAttention {
    static constexpr int stride = 2 * D + 16;
    // Threads per copied row, some idle, so that the page of a thread's rows is a compile-time index.
    static constexpr int lanes = D <= 64 ? 8 : 16, rows = THREADS / lanes, copies = KV_SPLIT / rows;

    const AttendParams& a;
    Shared& shared;
    u8 *const q, *const k, *const v;  // shared memory

    __device__ __forceinline__ SplitAttention(const AttendParams& a, Shared& shared, u8* memory)
        : a(a), shared(shared), q(memory), k(memory + QUERIES * stride), v(k + KV_SPLIT * stride) {}

    // Pages of a split; -1 where masked.
    __device__ __forceinline__ void find(int (&pages)[KV_SPLIT / PAGE], const int* table, int split,
                                         KvRange range) const {
#pragma unroll
        for (int i = 0; i < KV_SPLIT / PAGE; i++) {
            const int p = split * KV_SPLIT + i * PAGE;
            pages[i] = p + PAGE > range.first && p <= range.last ? table[p / PAGE] : -1;
        }
    }

    // Starts the copy of the positions `now` of a split; the last copy zero-fills masked positions.
    __device__ __forceinline__ void copy(u8* to, const u8* entry, const int (&pages)[KV_SPLIT / PAGE], int kv_head,
                                         int split, KvRange range, KvRange now, bool is_last) const {
        const int c = threadIdx.x % lanes, first = threadIdx.x / lanes;
#pragma unroll
        for (int i = 0; i < copies; i++) {
            const int row = first + i * rows, page = pages[i * rows / PAGE], p = split * KV_SPLIT + row;
            const bool is_copied = page >= 0 && p >= now.first && p <= now.last;
            if (c >= D / 8 || !(is_copied || (is_last && (p < range.first || p > range.last)))) continue;
            u8* const into = to + row * stride + c * 16;
            if (is_copied)
                cp_async16(into, head_of<F16>(entry, page, a.kv_heads, kv_head, D) + (row % PAGE * D + c * 8) * 2);
            else
                *reinterpret_cast<Words4*>(into) = Words4{0, 0, 0, 0};
        }
        cp_async_commit();
    }

    // Producer: starts the copies of the first split. The previous kernel writes the positions of this batch; older
    // ones load before it ends, unless the batch has several sequences, which could share pages written in this step.
    __device__ __forceinline__ void copy_first(const Entry& entry, const int (&pages)[KV_SPLIT / PAGE], int kv_head,
                                               int split, KvRange range, int first_row, bool& has_waited) const {
        KvRange later = range;
        if (!has_waited) {
            const Batch& b = *a.b;
            const int fresh = b.n_sequences == 1 ? b.positions[first_row] : 0;
            const KvRange older{range.first, min(range.last, fresh - 1)};
            later.first = max(range.first, fresh);
            if (older.last >= split * KV_SPLIT) {
                copy(k, entry.k, pages, kv_head, split, range, older, false);
                copy(v, entry.v, pages, kv_head, split, range, older, false);
            }
            wait_for_previous_kernel();
            has_waited = true;
        }
        copy(k, entry.k, pages, kv_head, split, range, later, true);
        copy(v, entry.v, pages, kv_head, split, range, later, true);
    }

    // Loads the queries of rows from `row` on into shared memory, eight threads per query.
    __device__ __forceinline__ void load_queries(int row, int rows, int last_row, int tile, int kv_head) const {
        const int tid = threadIdx.x, i = tid / 8;
        Query one = query_of_tile(a, i, row, rows, last_row, tile, kv_head);
        one.score_scale = load_query(a, one, q + i * stride, D, tid % 8);
        if (tid % 8 == 0) shared.queries[i] = one;
    }

    // Consumer: products of the queries with this warp's 32 keys.
    __device__ __forceinline__ void score(float (&scores)[4][4], const u32 (&queries)[D / 16][4]) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
        const u8* k_row = k + (warp * 32 + (lane & 7) + (lane >> 4) * 8) * stride + (lane >> 3 & 1) * 16;
#pragma unroll
        for (int c = 0; c < D / 16; c++)
#pragma unroll
            for (int n = 0; n < 2; n++) {
                u32 columns[4];
                ldmatrix_x4<false>(columns, k_row + n * 16 * stride + c * 32);
                mma(scores[2 * n], queries[c], columns[0], columns[1]);
                mma(scores[2 * n + 1], queries[c], columns[2], columns[3]);
            }
    }
    // Masks the scores and stores the row maxima over this warp's positions.
    __device__ __forceinline__ void compute_row_max(float (&scores)[4][4], const Query (&mine)[2], int from,
                                                    bool is_plain) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float max_score = NO_SCORE;
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    scores[n][e] = score_at(a, mine[half], scores[n][e], from + 8 * n + 2 * t + e % 2, is_plain);
                    max_score = fmaxf(max_score, scores[n][e]);
                }
            max_score = fmaxf(max_score, __shfl_xor_sync(ALL_LANES, max_score, 1));
            max_score = fmaxf(max_score, __shfl_xor_sync(ALL_LANES, max_score, 2));
            if (t == 0) shared.row_max[warp][g + 8 * half] = __fmul_rn(max_score, mine[half].factor(is_plain));
        }
    }
    // Exp weights of a KV tile (two warps' positions), to shared memory.
    __device__ __forceinline__ void store_exp_weights(const float (&scores)[4][4], const Query (&mine)[2],
                                                      bool is_plain) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = g + 8 * half;
            const float max_score = fmaxf(shared.row_max[warp][i], shared.row_max[warp ^ 1][i]),
                        base = finite_max(max_score);
            const float factor = mine[half].factor(is_plain);
            if (t == 0 && warp % 2 == 0) shared.tile_max[warp / 2][i] = max_score;
#pragma unroll
            for (int n = 0; n < 4; n++)
                *reinterpret_cast<u32*>(shared.exp_weights + i * EXP_STRIDE + (warp * 32 + 8 * n + 2 * t) * 2) =
                    to_half2(exp_weight_at(scores[n][2 * half], factor, base),
                             exp_weight_at(scores[n][2 * half + 1], factor, base));
        }
    }
    // Exp weights times 16 columns of V, tile by tile (online softmax).
    __device__ __forceinline__ void sum_values(Softmax (&of_split)[2], float (&split_sums)[2][4]) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4;
        const u8* p_row = shared.exp_weights + (lane & 15) * EXP_STRIDE + (lane >> 4) * 16;
        const u8* v_row = v + (lane & 15) * stride + warp * 32 + (lane >> 4) * 16;
        float tile_acc[TILES_PER_SPLIT][2][4] = {}, exp_sums[TILES_PER_SPLIT][4] = {};
#pragma unroll
        for (int j = 0; j < KV_TILE / 16; j++)
#pragma unroll
            for (int i = 0; i < TILES_PER_SPLIT; i++) {
                const int at = i * (KV_TILE / 16) + j;
                u32 columns[4], exp_weights[4];
                ldmatrix_x4<false>(exp_weights, p_row + at * 32);
                ldmatrix_x4<true>(columns, v_row + at * 16 * stride);
                mma(exp_sums[i], exp_weights, ONES, ONES);
                mma(tile_acc[i][0], exp_weights, columns[0], columns[1]);
                mma(tile_acc[i][1], exp_weights, columns[2], columns[3]);
            }
#pragma unroll
        for (int i = 0; i < TILES_PER_SPLIT; i++) {
            float old[2], now[2];
#pragma unroll
            for (int half = 0; half < 2; half++)
                of_split[half].merge(shared.tile_max[i][g + 8 * half], exp_sums[i][2 * half], old[half], now[half]);
            add(split_sums, old, tile_acc[i], now);
        }
    }
    __device__ __forceinline__ static void add(float (&sums)[2][4], const float (&old)[2], const float (&more)[2][4],
                                               const float (&now)[2]) {
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[n][e] = merged(sums[n][e], old[e / 2], more[n][e], now[e / 2]);
    }

    // Epilogue with split-KV: stores the split as a partial.
    __device__ __forceinline__ void store_partial(const Partials& partials, const Query (&mine)[2], int split,
                                                  const Softmax (&of_split)[2], const float (&split_sums)[2][4]) const {
        const int tid = threadIdx.x, warp = tid / 32, t = tid % 32 % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (mine[half].range.first > mine[half].range.last) continue;
            float* partial = partials.at(a, mine[half].row, mine[half].head, split);
            if (warp == 0 && t == 0) partial[0] = of_split[half].max_score, partial[1] = of_split[half].sum;
            // Partials are padded to multiples of four columns, so both floats fit.
#pragma unroll
            for (int n = 0; n < 2; n++)
                if (const int c = warp * 16 + 8 * n + 2 * t; c < a.v_dim)
                    *reinterpret_cast<float2*>(partial + 4 + c) =
                        make_float2(split_sums[n][2 * half], split_sums[n][2 * half + 1]);
        }
    }
    // Epilogue without split-KV.
    __device__ __forceinline__ void put_results(const Query (&mine)[2], const Softmax (&all)[2],
                                                const float (&sums)[2][4]) const {
        const int tid = threadIdx.x, warp = tid / 32, t = tid % 32 % 4;
        if (warp >= D / 16) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (mine[half].range.first > mine[half].range.last) continue;
            const float inv_sum = inv_sum_of(a, all[half], mine[half].head);
            float* const to = a.out + ((long long)mine[half].row * a.heads + mine[half].head) * a.v_dim;
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (const int c = warp * 16 + 8 * n + 2 * t + e; c < a.v_dim)
                        to[c] = __fmul_rn(sums[n][2 * half + e], inv_sum);
        }
    }

    // Processes one run of splits of a query tile; run -1: all splits.
    __device__ __forceinline__ void attend(const Partials& partials, int row, int tile, int kv_head, int run,
                                           int per_run, bool& has_waited) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, gqa = a.gqa();
        const Batch& b = *a.b;
        const int s = b.sequences[row], first_row = b.offsets[s], end = b.offsets[s + 1];
        const int rows = gqa < QUERIES ? QUERIES / gqa : 1;
        if (end - first_row > a.max_few_rows || (row - first_row) % rows != 0) return;
        // Union of the rows' ranges; consecutive rows have overlapping ones.
        const int last_row = min(row + rows, end) - 1;
        const KvRange early = visible_range(a, row), late = visible_range(a, last_row);
        const KvRange range{min(early.first, late.first), max(early.last, late.last)};
        int first = range.first / KV_SPLIT, last = range.last / KV_SPLIT;
        const int n_runs = run < 0 ? 1 : last / per_run - first / per_run + 1;
        if (run >= 0) first = max(first, run * per_run), last = min(last, run * per_run + per_run - 1);
        if (first > last) return;

        const Entry entry = b.entries[a.entry];
        const int* table = entry.pages + (long long)s * b.max_pages;
        int pages[KV_SPLIT / PAGE];
        __syncthreads();  // wait for readers of the previous item
        find(pages, table, first, range);
        copy_first(entry, pages, kv_head, first, range, first_row, has_waited);
        if (warp < QUERIES / 4) load_queries(row, rows, last_row, tile, kv_head);
        __syncthreads();
        const Query mine[2] = {shared.queries[g], shared.queries[g + 8]};
        u32 queries[D / 16][4];
#pragma unroll
        for (int c = 0; c < D / 16; c++)
            ldmatrix_x4<false>(queries[c], q + (lane & 15) * stride + (c * 16 + (lane >> 4) * 8) * 2);

        const bool is_plain = a.is_plain();
        Softmax all[2];
        float sums[2][4] = {};
        for (int split = first; split <= last; split++) {
            if (split < last) find(pages, table, split + 1, range);
            cp_async_wait<1>();
            __syncthreads();
            float scores[4][4] = {};
            score(scores, queries);
            compute_row_max(scores, mine, split * KV_SPLIT + warp * 32, is_plain);
            __syncthreads();
            if (split < last)
                copy(k, entry.k, pages, kv_head, split + 1, range, range, true);
            else
                cp_async_commit();
            store_exp_weights(scores, mine, is_plain);
            cp_async_wait<1>();
            __syncthreads();

            Softmax of_split[2];
            float split_sums[2][4] = {};
            if (warp < D / 16) {
                sum_values(of_split, split_sums);
                if (n_runs > 1) {
                    store_partial(partials, mine, split, of_split, split_sums);
                } else {
                    float old[2], now[2];
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        all[half].merge(of_split[half].max_score, of_split[half].sum, old[half], now[half]);
                    add(sums, old, split_sums, now);
                }
            }
            if (split == last) break;
            __syncthreads();
            copy(v, entry.v, pages, kv_head, split + 1, range, range, true);
        }
        if (n_runs > 1) {
            const int tiles = (gqa + QUERIES - 1) / QUERIES;
            u32* const done = a.done + (partials.place(a, row) * a.kv_heads + kv_head) * tiles + tile;
            if (is_last_of(n_runs, done, shared.is_last)) merge_partials(a, partials, shared.queries, tid, WARPS * 32);
            return;
        }
        put_results(mine, all, sums);
    }
};

// Grid-stride loop over rows, query tiles, KV heads and runs of splits, about one run per block.
template <int D>
__device__ __forceinline__ void attend(const AttendParams& a) {
    DYNAMIC_SHARED(memory);
    __shared__ Shared shared;
    launch_dependents();
    bool has_waited = false;
    const Partials partials(a, KV_SPLIT);
    const int tiles = (a.gqa() + QUERIES - 1) / QUERIES;
    const long long n_unsplit = (long long)a.b->n_rows * a.kv_heads * tiles;
    const int per_run = int((n_unsplit * partials.n + gridDim.x - 1) / gridDim.x);
    const bool is_unsplit = !partials.is_split || per_run >= partials.n;
    const int runs = is_unsplit ? 1 : (partials.n + per_run - 1) / per_run;
    const SplitAttention<D> splits(a, shared, memory);
    for (long long item = blockIdx.x; item < n_unsplit * runs; item += gridDim.x) {
        const int kv_head = int(item % a.kv_heads), run = int(item / a.kv_heads % runs);
        const int at = int(item / a.kv_heads / runs);
        splits.attend(partials, at / tiles, at % tiles, kv_head, is_unsplit ? -1 : run, per_run, has_waited);
    }
    if (!has_waited) wait_for_previous_kernel();  // the next kernel relies on the previous one as well
}

}  // namespace

KERNEL_THREADS(256, attend_split_f16_64)(ATTEND_PARAMETERS) { attend<64>(ATTEND_ARGUMENTS); }
KERNEL_THREADS(256, attend_split_f16_80)(ATTEND_PARAMETERS) { attend<80>(ATTEND_ARGUMENTS); }
KERNEL_THREADS(256, attend_split_f16_96)(ATTEND_PARAMETERS) { attend<96>(ATTEND_ARGUMENTS); }
KERNEL_THREADS(256, attend_split_f16_128)(ATTEND_PARAMETERS) { attend<128>(ATTEND_ARGUMENTS); }
