// attend over f32 caches, in f32, for heads of every length: a block takes one head of one row.
#include "attention/attend.cuh"

constexpr int THREADS = 128;
constexpr int MAX_COLUMNS = 576;
constexpr int COLUMNS = (MAX_COLUMNS + THREADS - 1) / THREADS;  // of V, of a thread

namespace {

// Reduces over all threads of the block, each of which gets the result; sums in a fixed order.
template <bool is_max>
__device__ float of_block(float x, float* warps) {
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

// The product of q with a position of K: four sums over every fourth column.
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
__device__ void attend_item(const Attend& a, const Parts& parts, int row, int head, int only_unit) {
    __shared__ float q[MAX_COLUMNS], powers[UNIT], warps[4];
    const int tid = threadIdx.x, at = a.b->positions[row], kv_head = head / a.group();
    const Entry& entry = a.b->entries[a.entry];
    const int* pages = entry.pages + (long long)a.b->sequences[row] * a.b->max_pages;
    const Seen range = seen(a, row);
    const int first = only_unit < 0 ? range.first / UNIT : only_unit,
              last = only_unit < 0 ? range.last / UNIT : only_unit;
    if (first < range.first / UNIT || last > range.last / UNIT) return;
    const float temper = tempered(a, row);
    __syncthreads();  // wait for readers of the previous item
    for (int c = tid; c < a.k_dim; c += THREADS)
        q[c] = __fmul_rn(a.q[((long long)row * a.heads + head) * a.k_dim + c], temper);
    __syncthreads();
    Softmax all;
    float sums[COLUMNS] = {};
    for (int unit = first; unit <= last; unit++) {
        const int from = max(range.first, unit * UNIT), to = min(range.last, unit * UNIT + UNIT - 1);
        float scores[UNIT / THREADS], top = NOTHING;
        for (int i = 0; i < UNIT / THREADS; i++) {
            const int p = unit * UNIT + i * THREADS + tid;
            scores[i] = NOTHING;
            if (p < from || p > to) continue;
            const u8* k = head_of<type>(entry.k, pages[p / PAGE], a.kv_heads, kv_head, a.k_room);
            const float product = product_of<type>(q, k, a.k_dim, a.k_room, p % PAGE);
            scores[i] = score_of(a, __fmul_rn(product, a.scale), head, p - at);
            top = fmaxf(top, scores[i]);
        }
        top = of_block<true>(top, warps);
        float sum = 0.f;
        for (int i = 0; i < UNIT / THREADS; i++) {
            const float power = scores[i] == NOTHING ? 0.f : power_of_2(scores[i] - finite_top(top));
            powers[i * THREADS + tid] = power;
            sum = __fadd_rn(sum, power);
        }
        sum = of_block<false>(sum, warps);  // its barriers also part writing and reading of the powers
        float mine, others;
        all.merge(top, sum, mine, others);
        for (int i = 0; i < COLUMNS; i++) {
            const int c = tid + i * THREADS;
            if (c >= a.v_dim) break;
            float part = 0.f;
            for (int p = from; p <= to; p++) {
                const u8* v = head_of<type>(entry.v, pages[p / PAGE], a.kv_heads, kv_head, a.v_room);
                part = __fmaf_rn(powers[p % UNIT], number_of<type>(v, a.v_room, p % PAGE, c), part);
            }
            sums[i] = merged(sums[i], mine, part, others);
        }
        __syncthreads();
    }
    if (only_unit >= 0) {
        float* part = parts.at(a, row, head, only_unit);
        if (tid == 0) part[0] = all.top, part[1] = all.sum;
        for (int i = 0, c = tid; c < a.v_dim; i++, c += THREADS) part[4 + c] = sums[i];
        return;
    }
    const float share = share_of(a, all, head);
    for (int i = 0, c = tid; c < a.v_dim; i++, c += THREADS)
        a.out[((long long)row * a.heads + head) * a.v_dim + c] = __fmul_rn(sums[i], share);
}

// Items are dealt to the blocks of any grid: heads of rows, and units of them where they are computed apart.
template <int type>
__device__ void attend(const Attend& a) {
    const Parts parts(a, UNIT);
    const int units = parts.apart ? parts.n : 1;
    const long long n = (long long)a.b->n_rows * a.heads * units;
    for (long long item = blockIdx.x; item < n; item += gridDim.x) {
        const int unit = int(item % units), head = int(item / units % a.heads), row = int(item / units / a.heads);
        attend_item<type>(a, parts, row, head, parts.apart ? unit : -1);
    }
}

// Units that were computed apart, merged in order: a block takes one head of one row.
__device__ void merge(const Attend& a) {
    const Parts parts(a, UNIT);
    if (!parts.apart) return;
    const long long n = (long long)a.b->n_rows * a.heads;
    for (long long item = blockIdx.x; item < n; item += gridDim.x) {
        const int head = int(item % a.heads), row = int(item / a.heads);
        if (!is_of_few(a, row)) continue;
        const Seen range = seen(a, row);
        const int first = range.first / UNIT, last = range.last / UNIT;
        for (int c = threadIdx.x; c < a.v_dim; c += blockDim.x) {
            const float* part = parts.at(a, row, head, first);
            Softmax all;
            float sum = 0.f, mine, others;
#pragma unroll 8
            for (int unit = first; unit <= last; unit++, part += a.part_stride()) {
                const float other = part[4 + c];
                all.merge(part[0], part[1], mine, others);
                sum = merged(sum, mine, other, others);
            }
            a.out[item * a.v_dim + c] = __fmul_rn(sum, share_of(a, all, head));
        }
    }
}

}  // namespace

KERNEL(attend_f32)(ATTEND_PARAMETERS) { attend<F32>(ATTEND_ARGUMENTS); }
KERNEL(attend_merge)(ATTEND_PARAMETERS) { merge(ATTEND_ARGUMENTS); }
