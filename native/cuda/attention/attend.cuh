// What the attention kernels share: which positions a row sees, scores, and how partial softmaxes are merged.
//
// One row, one result: every kernel takes positions in units of 256 that begin at multiples of 256 (split-K with fixed
// splits). A unit keeps the online softmax: the maximum of its scores, the sum of their powers, and the sum of V
// weighted by these. Units are merged in order. Scores are kept times log2(e), so that powers are of 2.
#pragma once

#include "primitives/half.cuh"

constexpr int PAGE = 32;
constexpr int KV_SPLIT = 256;
constexpr float LOG2_E = 1.4426950408889634f;
// Else a row sees itself, those before it, and up to where the batch says. BLOCK: only what the batch says. CAUSAL:
// nothing after itself, whatever the batch says.
constexpr int MASK_ALL = 1, MASK_CHUNKED = 2, MASK_BLOCK = 3, MASK_CAUSAL = 4;
constexpr int F16 = 0, F32 = 1, Q8_0 = 2, Q4 = 3;  // types of the cache
constexpr int FARTHEST = 128;                      // from this distance on positions share a bucket

#define NO_SCORE __int_as_float(0xff800000)  // the maximum of no scores: minus infinity

// What a step of attention is given, in the order of its kernels' parameters.
struct AttendParams {
    const Batch* b;
    const float* q;       // [rows][heads][k_dim]
    float* out;           // [rows][heads][v_dim]
    float* partials;      // room for parts that are computed apart: `n_parts` of them
    u32* done;            // zeros: how many parts of some queries are done, as many numbers as parts
    const float* sinks;   // [heads]: a score that has no value, or null
    const float* slopes;  // [heads]: how much a score falls with each position of distance, or null
    const float* table;   // [buckets][heads]: what is added to scores by their distance, or null
    const int* buckets;   // [2][FARTHEST + 1]: of distances back and ahead
    int entry, heads, kv_heads, k_dim, v_dim;
    int k_room, v_room;  // columns of a head in the cache
    int mask, window, temper_length, temper_offset, n_partials;
    int max_few_rows;  // rows of a sequence that the kernel for few rows takes
    int stages;        // copies of K and V in shared memory: one that is computed with, the others on their way
    float scale, softcap, temper;
    int n_group;  // heads of a KV head

    __device__ int heads_per_kv() const { return n_group; }
    __device__ bool is_plain() const { return slopes == nullptr && table == nullptr && softcap == 0.f; }
    // Numbers of a part: its maximum, its sum, two that fill up, and the sums of V.
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

// Positions from `first` to `last` that a row sees.
struct PositionRange {
    int first, last;
};

__device__ __forceinline__ PositionRange visible_range(const AttendParams& a, int row) {
    const int at = a.b->positions[row];
    if (a.mask == MASK_ALL) {
        const int end = a.b->positions[a.b->offsets[a.b->sequences[row] + 1] - 1];
        if (a.window == 0) return {0, end};
        return {max(0, at - a.window / 2), min(end, at + a.window / 2)};
    }
    const int* const sees = a.b->sees;
    if (a.mask == MASK_BLOCK) return {sees[2 * row], sees[2 * row + 1] - 1};
    const int last = sees == nullptr || a.mask == MASK_CAUSAL ? at : sees[2 * row + 1] - 1;
    if (a.window == 0) return {0, last};
    return {a.mask == MASK_CHUNKED ? at - at % a.window : max(0, at - a.window + 1), last};
}

// What a row's q is multiplied by. Few models need more than 1: a call leaves the others' code short.
static __device__ NEVER_INLINE float tempered_at(float temper, int position, int length) {
    return 1.f + temper * log1pf(float(position / length));
}
__device__ __forceinline__ float tempered(const AttendParams& a, int row) {
    if (a.temper == 0.f) return 1.f;
    return tempered_at(a.temper, a.b->positions[row] + a.temper_offset, a.temper_length);
}

// A product of q and k, already scaled, as a score times log2(e). `distance`: how far the position is after the row.
// Few models need it: it is a call, which takes no registers of the others.
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

// A maximum that can be subtracted even if there is none.
__device__ __forceinline__ float finite_max(float max_score) { return max_score == NO_SCORE ? 0.f : max_score; }

// The maximum and the sum of a softmax that grows part by part; `merge` says what the sums of V are multiplied by.
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

// What sums of V are multiplied by at the end. A sink takes its share and gives nothing.
__device__ __forceinline__ float inv_sum_of(const AttendParams& a, const Softmax& s, int head) {
    float sum = s.sum;
    if (a.sinks != nullptr)
        sum = __fadd_rn(sum, exp2_approx(__fmaf_rn(a.sinks[head], LOG2_E, -finite_max(s.max_score))));
    return __fdiv_rn(1.f, sum);
}

// Whether parts of `span` positions are computed apart, and where. Rows of the batch have room one after another, or,
// where most rows are of sequences that other kernels compute, each sequence for as many rows as this one takes.
struct Partials {
    bool is_split, by_sequence;
    int span, n;  // n: parts of the longest sequence

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

// Whether the kernels for few rows compute this one.
__device__ __forceinline__ bool has_few_rows(const AttendParams& a, int row) {
    const int s = a.b->sequences[row];
    return a.b->offsets[s + 1] - a.b->offsets[s] <= a.max_few_rows;
}

// Where a head of a page of K, or of V, begins.
template <int type>
__device__ __forceinline__ const u8* head_of(const u8* entry, int page, int kv_heads, int kv_head, int room) {
    // A scale of 32 numbers has 4 bytes, or 2.
    const int bytes = type == F32   ? PAGE * 4 * room
                      : type == F16 ? PAGE * 2 * room
                      : type == Q4  ? PAGE / 32 * 18 * room
                                    : PAGE / 32 * 36 * room;
    return entry + ((long long)page * kv_heads + kv_head) * bytes;
}

// A number of the cache.
template <int type>
__device__ __forceinline__ float number_of(const u8* head, int room, int position, int column) {
    const int at = position * room + column;
    if (type == F32) return reinterpret_cast<const float*>(head)[at];
    if (type == F16) return half_to_float(reinterpret_cast<const u16*>(head)[at]);
    const float scale = reinterpret_cast<const float*>(head + PAGE * room)[position * (room / 32) + column / 32];
    return __fmul_rn(float(reinterpret_cast<const signed char*>(head)[at]), scale);
}

namespace {

// Adds four columns of a part.
__device__ __forceinline__ void add_scaled4(float4& to, float mine, const float4& x, float others) {
    to.x = merged(to.x, mine, x.x, others), to.y = merged(to.y, mine, x.y, others);
    to.z = merged(to.z, mine, x.z, others), to.w = merged(to.w, mine, x.w, others);
}

// Lanes are parts of a softmax that are merged in order, with the maximum and the sum of each. Returns what the sums
// before the lane's part are multiplied by, what its own are, and its sum. The maximum of `all` becomes that of all.
__device__ __forceinline__ float4 factors_of(float max_score, float sum, Softmax& all) {
    const int lane = threadIdx.x % 32;
    float upto = max_score;  // the running maximum
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

// Units from `first` to `last` of a query, which lie apart in memory from `from` on, merged in order by a warp: four
// columns of each lane that has some. First lanes are units and find what sums are multiplied by, then columns, of
// which the first units' are on their way by then. `factors`: shared memory of the warp.
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

// Four columns of the result, or as many as there are.
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
