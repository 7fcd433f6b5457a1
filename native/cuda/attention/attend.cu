// Attention over f32 caches in f32, for any head size; one block per head of one row.
#include "attention/attend.cuh"

constexpr int THREADS = 128;
constexpr int MAX_COLUMNS = 576;
constexpr int COLUMNS = (MAX_COLUMNS + THREADS - 1) / THREADS;  // V columns per thread

namespace {

// Block reduction in fixed order; every thread gets the result.
template <bool is_max>
__device__ float block_reduce(float x, float* warps) {
    for (int n = 16; n > 0; n >>= 1) {
        const float other = __shfl_xor_sync(ALL_LANES, x, n);
        x = is_max ? fmaxf(x, other) : __fadd_rn(x, other);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    if (is_max) return fmaxf(fmaxf(warps[0], warps[1]), fmaxf(warps[2], warps[3]));
    return __fadd_rn(__fadd_rn(warps[0], warps[1]), __fadd_rn(warps[2], warps[3]));
}

// q.k at one position: four partial sums over every fourth column.
template <int type>
__device__ float product_of(const float* q, const u8* head, int k_dim, int k_room, int position) {
    float sums[4] = {};
    int c = 0;
    for (; c + 4 <= k_dim; c += 4)
        for (int i = 0; i < 4; i++)
            sums[i] = __fmaf_rn(q[c + i], number_of<type>(head, k_room, position, c + i), sums[i]);
    for (int i = 0; c + i < k_dim; i++)
        sums[i] = __fmaf_rn(q[c + i], number_of<type>(head, k_room, position, c + i), sums[i]);
    return __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
}

template <int type>
__device__ void attend_item(const AttendParams& a, const Partials& partials, int row, int head, int only_split) {
    __shared__ float q[MAX_COLUMNS], exp_weights[KV_SPLIT], warps[4];
    const int tid = threadIdx.x, at = a.b->positions[row], kv_head = head / a.gqa();
    const Entry& entry = a.b->entries[a.entry];
    const int* pages = entry.pages + (long long)a.b->sequences[row] * a.b->max_pages;
    const KvRange range = visible_range(a, row);
    const int first = only_split < 0 ? range.first / KV_SPLIT : only_split,
              last = only_split < 0 ? range.last / KV_SPLIT : only_split;
    if (first < range.first / KV_SPLIT || last > range.last / KV_SPLIT) return;
    const float temper = tempered(a, row);
    __syncthreads();  // wait for readers of the previous item
    for (int c = tid; c < a.k_dim; c += THREADS)
        q[c] = __fmul_rn(a.q[((long long)row * a.heads + head) * a.k_dim + c], temper);
    __syncthreads();
    Softmax all;
    float sums[COLUMNS] = {};
    for (int split = first; split <= last; split++) {
        const int from = max(range.first, split * KV_SPLIT), to = min(range.last, split * KV_SPLIT + KV_SPLIT - 1);
        float scores[KV_SPLIT / THREADS], max_score = NO_SCORE;
        for (int i = 0; i < KV_SPLIT / THREADS; i++) {
            const int p = split * KV_SPLIT + i * THREADS + tid;
            scores[i] = NO_SCORE;
            if (p < from || p > to) continue;
            const u8* k = head_of<type>(entry.k, pages[p / PAGE], a.kv_heads, kv_head, a.k_room);
            const float product = product_of<type>(q, k, a.k_dim, a.k_room, p % PAGE);
            scores[i] = score_of(a, __fmul_rn(product, a.scale), head, p - at);
            max_score = fmaxf(max_score, scores[i]);
        }
        max_score = block_reduce<true>(max_score, warps);
        float sum = 0.f;
        for (int i = 0; i < KV_SPLIT / THREADS; i++) {
            const float exp_weight = scores[i] == NO_SCORE ? 0.f : exp2_approx(scores[i] - finite_max(max_score));
            exp_weights[i * THREADS + tid] = exp_weight;
            sum = __fadd_rn(sum, exp_weight);
        }
        sum = block_reduce<false>(sum, warps);  // its barriers also separate writes and reads of exp_weights
        float mine, others;
        all.merge(max_score, sum, mine, others);
        for (int i = 0; i < COLUMNS; i++) {
            const int c = tid + i * THREADS;
            if (c >= a.v_dim) break;
            float partial = 0.f;
            for (int p = from; p <= to; p++) {
                const u8* v = head_of<type>(entry.v, pages[p / PAGE], a.kv_heads, kv_head, a.v_room);
                partial = __fmaf_rn(exp_weights[p % KV_SPLIT], number_of<type>(v, a.v_room, p % PAGE, c), partial);
            }
            sums[i] = merged(sums[i], mine, partial, others);
        }
        __syncthreads();
    }
    if (only_split >= 0) {
        float* partial = partials.at(a, row, head, only_split);
        if (tid == 0) partial[0] = all.max_score, partial[1] = all.sum;
        for (int i = 0, c = tid; c < a.v_dim; i++, c += THREADS) partial[4 + c] = sums[i];
        return;
    }
    const float inv_sum = inv_sum_of(a, all, head);
    for (int i = 0, c = tid; c < a.v_dim; i++, c += THREADS)
        a.out[((long long)row * a.heads + head) * a.v_dim + c] = __fmul_rn(sums[i], inv_sum);
}

// Grid-stride loop over (row, head), or (row, head, split) with split-KV.
template <int type>
__device__ void attend(const AttendParams& a) {
    const Partials partials(a, KV_SPLIT);
    const int splits = partials.is_split ? partials.n : 1;
    const long long n = (long long)a.b->n_rows * a.heads * splits;
    for (long long item = blockIdx.x; item < n; item += gridDim.x) {
        const int split = int(item % splits), head = int(item / splits % a.heads), row = int(item / splits / a.heads);
        attend_item<type>(a, partials, row, head, partials.is_split ? split : -1);
    }
}

// Merges the splits in order; one block per head of one row.
__device__ void merge(const AttendParams& a) {
    const Partials partials(a, KV_SPLIT);
    if (!partials.is_split) return;
    const long long n = (long long)a.b->n_rows * a.heads;
    for (long long item = blockIdx.x; item < n; item += gridDim.x) {
        const int head = int(item % a.heads), row = int(item / a.heads);
        if (!has_few_rows(a, row)) continue;
        const KvRange range = visible_range(a, row);
        const int first = range.first / KV_SPLIT, last = range.last / KV_SPLIT;
        for (int c = threadIdx.x; c < a.v_dim; c += blockDim.x) {
            const float* partial = partials.at(a, row, head, first);
            Softmax all;
            float sum = 0.f, mine, others;
#pragma unroll 8
            for (int split = first; split <= last; split++, partial += a.partial_stride()) {
                const float other = partial[4 + c];
                all.merge(partial[0], partial[1], mine, others);
                sum = merged(sum, mine, other, others);
            }
            a.out[item * a.v_dim + c] = __fmul_rn(sum, inv_sum_of(a, all, head));
        }
    }
}

}  // namespace

KERNEL(attend_f32)(ATTEND_PARAMETERS) { attend<F32>(ATTEND_ARGUMENTS); }
KERNEL(attend_merge)(ATTEND_PARAMETERS) { merge(ATTEND_ARGUMENTS); }
