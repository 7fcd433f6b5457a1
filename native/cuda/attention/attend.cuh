// Shared by the attention kernels: masks, scores, and the merge of partial softmaxes.
//
// Results do not depend on the kernel or the batch: positions are processed in splits of 256 at multiples of 256
// (split-KV with fixed boundaries). A split runs the online softmax: row maximum, sum of exp weights, and the weighted
// sum of V. Splits are merged in order. Scores are in units of log2(e), so weights are powers of 2.
#pragma once

#include "primitives/half.cuh"

constexpr int PAGE = 32;
constexpr int KV_SPLIT = 256;
constexpr float LOG2_E = 1.4426950408889634f;
// Mask 0 is causal, extended by Batch.sees. BLOCK: Batch.sees alone. CAUSAL: ignores Batch.sees. CHUNKED: chunks of
// `window` positions.
constexpr int MASK_ALL = 1, MASK_CHUNKED = 2, MASK_BLOCK = 3, MASK_CAUSAL = 4;
constexpr int F16 = 0, F32 = 1, Q8_0 = 2, Q4 = 3;  // KV cache types
constexpr int FARTHEST = 128;                      // greater distances share a bucket

#define NO_SCORE __int_as_float(0xff800000)  // maximum of an empty set of scores: -inf

// Arguments of an attention step, in the order of the kernel parameters.
struct AttendParams {
    const Batch* b;
    const float* q;       // [rows][heads][k_dim]
    float* out;           // [rows][heads][v_dim]
    float* partials;      // [n_partials][partial_stride()], for split-KV
    u32* done;            // counters of finished partials, zero between kernels
    const float* sinks;   // attention sinks, [heads] or null
    const float* slopes;  // ALiBi slopes, [heads] or null
    const float* table;   // relative position bias, [buckets][heads] or null
    const int* buckets;   // [2][FARTHEST + 1]: bucket of a distance back, or ahead
    int entry, heads, kv_heads, k_dim, v_dim;
    int k_room, v_room;  // columns per head in the cache, padded
    int mask, window, temper_length, temper_offset, n_partials;
    int max_few_rows;  // longer sequences belong to the prefill kernel
    int stages;        // stages of the K/V pipeline in shared memory
    float scale, softcap, temper;
    int n_group;  // query heads per KV head

    __device__ int gqa() const { return n_group; }
    __device__ bool is_plain() const { return slopes == nullptr && table == nullptr && softcap == 0.f; }
    // Floats of a partial: maximum, sum, padding (2), and V sums padded to a multiple of 4.
    __device__ int partial_stride() const { return 4 + (v_dim + 3) / 4 * 4; }
};

#define ATTEND_PARAMETERS                                                                                             \
    const Batch *b, const float *q, float *out, float *partials, u32 *done, const float *sinks, const float *slopes,  \
        const float *table, const int *buckets, int entry, int heads, int kv_heads, int k_dim, int v_dim, int k_room, \
        int v_room, int mask, int window, int temper_length, int temper_offset, int n_partials, int max_few_rows,     \
        int stages, float scale, float softcap, float temper, int n_group
#define ATTEND_ARGUMENTS                                                                                          \
    AttendParams {                                                                                                \
        b, q, out, partials, done, sinks, slopes, table, buckets, entry, heads, kv_heads, k_dim, v_dim, k_room,   \
            v_room, mask, window, temper_length, temper_offset, n_partials, max_few_rows, stages, scale, softcap, \
            temper, n_group                                                                                       \
    }

__device__ __forceinline__ float exp2_approx(float x) {
#ifdef WOOLLY_EMULATED
    return std::exp2(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

// Visible positions of a row, inclusive.
struct KvRange {
    int first, last;
};

__device__ __forceinline__ KvRange visible_range(const AttendParams& a, int row) {
    const int at = a.b->positions[row];
    if (a.mask == MASK_ALL) {
        const int end = a.b->positions[a.b->offsets[a.b->sequences[row] + 1] - 1];
        if (a.window == 0) return {0, end};
        return {max(0, at - a.window / 2), min(end, at + a.window / 2)};
    }
    const int* const attn_ranges = a.b->attn_ranges;
    if (a.mask == MASK_BLOCK) return {attn_ranges[2 * row], attn_ranges[2 * row + 1] - 1};
    const int last = attn_ranges == nullptr || a.mask == MASK_CAUSAL ? at : attn_ranges[2 * row + 1] - 1;
    if (a.window == 0) return {0, last};
    return {a.mask == MASK_CHUNKED ? at - at % a.window : max(0, at - a.window + 1), last};
}

// Query scale by position (temperature). Not inlined: few models need it.
static __device__ NEVER_INLINE float tempered_at(float temper, int position, int length) {
    return 1.f + temper * log1pf(float(position / length));
}
__device__ __forceinline__ float tempered(const AttendParams& a, int row) {
    if (a.temper == 0.f) return 1.f;
    return tempered_at(a.temper, a.b->positions[row] + a.temper_offset, a.temper_length);
}

// Scaled q.k to score in units of log2(e): ALiBi, position bias, softcap. `distance`: position minus the row's. Not
// inlined: few models need it, and it would cost registers.
static __device__ NEVER_INLINE float changed_score(const float* slopes, const float* table, const int* buckets,
                                                   int heads, float softcap, float product, int head, int distance) {
    const int far = distance < 0 ? -distance : distance;
    if (slopes != nullptr) product = __fmaf_rn(-slopes[head], float(far), product);
    if (table != nullptr) {
        const int bucket = buckets[(distance > 0 ? FARTHEST + 1 : 0) + min(far, FARTHEST)];
        product = __fadd_rn(product, table[bucket * heads + head]);
    }
    if (softcap != 0.f) product = __fmul_rn(softcap, tanhf(__fdiv_rn(product, softcap)));
    return __fmul_rn(product, LOG2_E);
}
__device__ __forceinline__ float score_of(const AttendParams& a, float product, int head, int distance) {
    return changed_score(a.slopes, a.table, a.buckets, a.heads, a.softcap, product, head, distance);
}

// Maximum that can be subtracted even if there are no scores.
__device__ __forceinline__ float finite_max(float max_score) { return max_score == NO_SCORE ? 0.f : max_score; }

// State of an online softmax. merge() returns the factors of both V sums.
struct Softmax {
    float max_score, sum;

    __device__ Softmax() : max_score(NO_SCORE), sum(0.f) {}

    __device__ __forceinline__ void merge(float other_max, float other_sum, float& mine, float& others) {
        const float both = fmaxf(max_score, other_max), base = finite_max(both);
        mine = exp2_approx(max_score - base), others = exp2_approx(other_max - base);
        sum = __fmaf_rn(other_sum, others, __fmul_rn(sum, mine));
        max_score = both;
    }
};

__device__ __forceinline__ float merged(float mine, float mine_times, float other, float other_times) {
    return __fmaf_rn(other, other_times, __fmul_rn(mine, mine_times));
}

// Final factor of the V sums: 1 / sum of exp weights, with the attention sink in the sum.
__device__ __forceinline__ float inv_sum_of(const AttendParams& a, const Softmax& s, int head) {
    float sum = s.sum;
    if (a.sinks != nullptr)
        sum = __fadd_rn(sum, exp2_approx(__fmaf_rn(a.sinks[head], LOG2_E, -finite_max(s.max_score))));
    return __fdiv_rn(1.f, sum);
}

// Layout of split-KV partials of `span` positions; is_split: false if one block processes all positions. If most rows
// belong to sequences of the prefill kernel, memory is laid out per sequence with max_few_rows rows each, otherwise per
// row.
struct Partials {
    bool is_split, by_sequence;
    int span, n;  // n: partials of the longest sequence

    __device__ Partials(const AttendParams& a, int span) : span(span) {
        n = (a.b->max_length + span - 1) / span;
        const long long few = (long long)a.b->n_sequences * a.max_few_rows;
        by_sequence = few < a.b->n_rows;
        const long long rows = by_sequence ? few : a.b->n_rows;
        is_split = n > 1 && rows * a.heads * n <= a.n_partials;
    }
    __device__ long long place(const AttendParams& a, int row) const {
        if (!by_sequence) return row;
        const int s = a.b->sequences[row];
        return (long long)s * a.max_few_rows + row - a.b->offsets[s];
    }
    __device__ float* at(const AttendParams& a, int row, int head, int partial) const {
        return a.partials + ((place(a, row) * a.heads + head) * n + partial) * a.partial_stride();
    }
};

// False if the row belongs to the prefill kernel.
__device__ __forceinline__ bool has_few_rows(const AttendParams& a, int row) {
    const int s = a.b->sequences[row];
    return a.b->offsets[s + 1] - a.b->offsets[s] <= a.max_few_rows;
}

// Start of a head in a page of K or V.
template <int type>
__device__ __forceinline__ const u8* head_of(const u8* entry, int page, int kv_heads, int kv_head, int room) {
    // Scales per 32 numbers: f32 for q8_0, 2 bytes for q4.
    const int bytes = type == F32   ? PAGE * 4 * room
                      : type == F16 ? PAGE * 2 * room
                      : type == Q4  ? PAGE / 32 * 18 * room
                                    : PAGE / 32 * 36 * room;
    return entry + ((long long)page * kv_heads + kv_head) * bytes;
}

// One number of the cache, as f32.
template <int type>
__device__ __forceinline__ float number_of(const u8* head, int room, int position, int column) {
    const int at = position * room + column;
    if (type == F32) return reinterpret_cast<const float*>(head)[at];
    if (type == F16) return half_to_float(reinterpret_cast<const u16*>(head)[at]);
    const float scale = reinterpret_cast<const float*>(head + PAGE * room)[position * (room / 32) + column / 32];
    return __fmul_rn(float(reinterpret_cast<const signed char*>(head)[at]), scale);
}

namespace {

// Merges four columns of a partial.
__device__ __forceinline__ void add_scaled4(float4& to, float mine, const float4& x, float others) {
    to.x = merged(to.x, mine, x.x, others), to.y = merged(to.y, mine, x.y, others);
    to.z = merged(to.z, mine, x.z, others), to.w = merged(to.w, mine, x.w, others);
}

// Merges the partials of the lanes in order. Returns the factor of the sum before a lane's partial, the factor of its
// own, and its sum of exp weights. Updates the maximum of `all`.
__device__ __forceinline__ float4 factors_of(float max_score, float sum, Softmax& all) {
    const int lane = threadIdx.x % 32;
    float upto = max_score;  // running maximum
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        const float other = __shfl_sync(ALL_LANES, upto, max(lane - i, 0));
        if (lane >= i) upto = fmaxf(upto, other);
    }
    upto = fmaxf(upto, all.max_score);
    const float before = __shfl_sync(ALL_LANES, upto, max(lane - 1, 0)), base = finite_max(upto);
    const float4 out =
        make_float4(exp2_approx((lane == 0 ? all.max_score : before) - base), exp2_approx(max_score - base), sum, 0.f);
    all.max_score = __shfl_sync(ALL_LANES, upto, 31);
    return out;
}

// Merges the splits `first` to `last` of a query in order, with one warp: four columns per lane. Lanes first compute
// the factors of one split each, while the columns of the first splits load. `factors`: shared memory of the warp.
__device__ __forceinline__ float4 merge_splits(const AttendParams& a, const float* from, int first, int last, int c,
                                               float4* factors, Softmax& all) {
    constexpr int early = 4;
    const int lane = threadIdx.x % 32, stride = a.partial_stride();
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    for (; first <= last; first += 32) {
        const float* const here = from + (long long)first * stride;
        const int n = min(32, last - first + 1);
        const float* const mine = here + 4 + (c < a.v_dim ? c : 0);
        const float2 own =
            lane < n ? __ldcg(reinterpret_cast<const float2*>(here + lane * stride)) : make_float2(NO_SCORE, 0.f);
        float4 x[early];
#pragma unroll
        for (int i = 0; i < early; i++) x[i] = __ldcg(reinterpret_cast<const float4*>(mine + min(i, n - 1) * stride));
        factors[lane] = factors_of(own.x, own.y, all);
        __syncwarp();
        auto add = [&](int i, const float4& of_split) {
            const float4 by = factors[i];
            all.sum = merged(all.sum, by.x, by.z, by.y);
            add_scaled4(sum, by.x, of_split, by.y);
        };
#pragma unroll
        for (int i = 0; i < early; i++)
            if (i < n) add(i, x[i]);
#pragma unroll 4
        for (int i = early; i < n; i++) add(i, __ldcg(reinterpret_cast<const float4*>(mine + i * stride)));
        __syncwarp();
    }
    return sum;
}

// Stores up to four columns of the result.
__device__ __forceinline__ void put_result(const AttendParams& a, int row, int head, int c, const Softmax& all,
                                           const float4& sum) {
    const float inv_sum = inv_sum_of(a, all, head);
    float* const to = a.out + ((long long)row * a.heads + head) * a.v_dim;
    if (c < a.v_dim) to[c] = __fmul_rn(sum.x, inv_sum);
    if (c + 1 < a.v_dim) to[c + 1] = __fmul_rn(sum.y, inv_sum);
    if (c + 2 < a.v_dim) to[c + 2] = __fmul_rn(sum.z, inv_sum);
    if (c + 3 < a.v_dim) to[c + 3] = __fmul_rn(sum.w, inv_sum);
}

}  // namespace
