// Mixtures of experts: rows made ready, the choice of experts, and entries in the order of their experts.
#pragma once

#include "experts/moe.cuh"
#include "primitives/sums.cuh"

// The largest over all threads of the block.
__device__ inline float block_largest(float x) {
    __shared__ float parts[32];
    for (int n = 16; n; n /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, n));
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < int(blockDim.x / 32); i++) x = fmaxf(x, parts[i]);
    return x;
}

// Converts a row to f16 scaled by a power of two, zero-padded; writes the inverse of the power to `back`. `largest` is
// this thread's maximum. at(k) returns a number.
template <class At>
__device__ inline void halve(At&& at, float largest, int n, int n_padded, u8* halves, float* back) {
    const Power power = power_for(block_largest(largest));
    for (int k = 2 * threadIdx.x; k < n_padded; k += 2 * blockDim.x)
        *reinterpret_cast<u32*>(halves + halved_at(k)) =
            to_halves_saturated(k < n ? at(k) * power.times : 0.0f, k + 1 < n ? at(k + 1) * power.times : 0.0f);
    if (threadIdx.x == 0) *back = power.back;
}

// Norms rows, over 256 threads. Each holds up to HELD fours of the norm's weights, which may come before the row.
struct RowNorm {
    static constexpr int THREADS = 256, HELD = 4;
    const float* norm;  // null: rows stay as they are
    float eps;
    int n;
    bool is_held;
    float4 w[HELD];

    __device__ __forceinline__ static int column(int i) { return 4 * (int(threadIdx.x) + i * THREADS); }
    __device__ __forceinline__ RowNorm(const float* norm, float eps, int n)
        : norm(norm), eps(eps), n(n), is_held((n & 3) == 0 && n <= 4 * HELD * THREADS) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            w[i] = make_float4(1, 1, 1, 1);
            if (is_held && norm != nullptr && column(i) < n) w[i] = *reinterpret_cast<const float4*>(norm + column(i));
        }
    }
    // The row x to `here`, in shared memory, which holds it after a barrier. Gives the largest of this thread.
    __device__ __forceinline__ float apply(const float* x, float* here) const {
        float largest = 0.0f;
        if (is_held) {
            float4 v[HELD];
            float s[4] = {0, 0, 0, 0};
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                v[i] = make_float4(0, 0, 0, 0);
                if (column(i) < n) v[i] = __ldcg(reinterpret_cast<const float4*>(x + column(i)));
            }
            float scale = 1.0f;
            if (norm != nullptr) {
#pragma unroll
                for (int i = 0; i < HELD; i++) {
                    s[0] = fmaf(v[i].x, v[i].x, s[0]), s[1] = fmaf(v[i].y, v[i].y, s[1]);
                    s[2] = fmaf(v[i].z, v[i].z, s[2]), s[3] = fmaf(v[i].w, v[i].w, s[3]);
                }
                scale = 1.0f / sqrtf(block_sum((s[0] + s[1]) + (s[2] + s[3])) / n + eps);
            }
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                v[i].x = v[i].x * scale * w[i].x, v[i].y = v[i].y * scale * w[i].y;
                v[i].z = v[i].z * scale * w[i].z, v[i].w = v[i].w * scale * w[i].w;
                largest =
                    fmaxf(fmaxf(largest, fmaxf(fabsf(v[i].x), fabsf(v[i].y))), fmaxf(fabsf(v[i].z), fabsf(v[i].w)));
                if (column(i) < n) *reinterpret_cast<float4*>(here + column(i)) = v[i];
            }
            return largest;
        }
        for (int k = threadIdx.x; k < n; k += THREADS) here[k] = __ldcg(x + k);
        __syncthreads();
        const float scale = norm == nullptr ? 1.0f : 1.0f / sqrtf(sum_of_squares(here, n) / n + eps);
        __syncthreads();
        for (int k = threadIdx.x; k < n; k += THREADS) {
            if (norm != nullptr) here[k] = here[k] * scale * norm[k];
            largest = fmaxf(largest, fabsf(here[k]));
        }
        return largest;
    }
};

// Columns k to k + 3 of a row of n, zeros behind it.
__device__ __forceinline__ float4 four_of(const float* row, int k, int n) {
    if ((n & 3) == 0) return *reinterpret_cast<const float4*>(row + k);
    return make_float4(row[k], k + 1 < n ? row[k + 1] : 0.0f, k + 2 < n ? row[k + 2] : 0.0f,
                       k + 3 < n ? row[k + 3] : 0.0f);
}
__device__ __forceinline__ float add_products(float4 a, float4 b, float sum) {
    sum = fmaf(a.x, b.x, sum), sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum), sum = fmaf(a.w, b.w, sum);
    return sum;
}

// Without a header there is no name for it.
__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

enum Scoring { SOFTMAX, SIGMOID_SCORES, SPARSEMIXER };

__device__ inline float warp_sum(float x) {
    for (int i = 16; i; i /= 2) x += __shfl_xor_sync(ALL_LANES, x, i);
    return x;
}
// Returns a float's key in a total order of integers; NaN sorts first or last by its sign.
__device__ __forceinline__ u32 key_of(float x) {
    const u32 bits = __float_as_uint(x + 0.0f);
    return bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
}
// The index of the highest key that is not taken; of equal ones the lowest index.
__device__ inline int best_of(const u32* keys, const int* taken, int n, int lane) {
    u32 best = 0;
    int index = -1;
    for (int e = lane; e < n; e += 32)
        if (!taken[e] && (index < 0 || keys[e] > best)) best = keys[e], index = e;
    for (int i = 16; i; i /= 2) {
        const u32 other = __shfl_xor_sync(ALL_LANES, best, i);
        const int where = __shfl_xor_sync(ALL_LANES, index, i);
        if (where >= 0 && (index < 0 || other > best || (other == best && where < index))) best = other, index = where;
    }
    return index;
}

// How experts are chosen.
struct Choice {
    const float* select;
    int n_experts, n_used, scoring, normalize;
    float weights_scale;
    int n_groups, groups_used, group_top;
    float cap;   // logits are bounded by it, 0: by nothing
    int shared;  // experts in turn that have one matrix
};
#define CHOICE                                                                                                     \
    const float *select, int n_experts, int n_used, int scoring, int normalize, float weights_scale, int n_groups, \
        int groups_used, int group_top, float cap, int n_shared
#define CHOICE_OF \
    {select, n_experts, n_used, scoring, normalize, weights_scale, n_groups, groups_used, group_top, cap, n_shared}

// Over the lanes of a warp.
__device__ __forceinline__ u32 warp_largest(u32 x) {
#ifdef WOOLLY_EMULATED
    for (int i = 16; i; i /= 2) x = max(x, __shfl_xor_sync(ALL_LANES, x, i));
    return x;
#else
    return __reduce_max_sync(ALL_LANES, x);
#endif
}
// Marks the experts of the highest keys as taken: of 32 N at most, of equal ones those of the lowest index.
template <int N>
__device__ __forceinline__ void take_best(const u32* keys, int* taken, int n_experts, int n_used) {
    const int lane = threadIdx.x % 32;
    u32 mine[N], is_left = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        mine[i] = lane + 32 * i < n_experts ? keys[lane + 32 * i] : 0;
        is_left |= u32(lane + 32 * i < n_experts) << i;
    }
    for (int n = 0; n < n_used; n++) {
        u32 best = 0, before = 0;  // before: more for a lower index, 0 for none
#pragma unroll
        for (int i = 0; i < N; i++) best = max(best, is_left >> i & 1 ? mine[i] : 0);
        best = warp_largest(best);
#pragma unroll
        for (int i = N - 1; i >= 0; i--)
            if (is_left >> i & 1 && mine[i] == best) before = 32 * N - (lane + 32 * i);
        const int index = 32 * N - int(warp_largest(before));
        if (index % 32 == lane) is_left &= ~(1u << (index / 32));
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + 32 * i < n_experts) taken[lane + 32 * i] = !(is_left >> i & 1);
}

// Scores of all experts, and the ranks that they are chosen by.
__device__ __forceinline__ void score_experts(const Choice& c, const float* logits, float* scores, float* ranks,
                                              int lane) {
    const int n_experts = c.n_experts;
    float most = -infinity(), sum = 0.0f;
    for (int first = lane; first < n_experts; first += 128) {
        float v[4];  // no load waits for another
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = first + 32 * i < n_experts ? __ldcg(logits + first + 32 * i) : -infinity();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (c.cap > 0.0f) v[i] = c.cap * tanhf(v[i] / c.cap);
            if (first + 32 * i < n_experts) ranks[first + 32 * i] = v[i];
            most = fmaxf(most, v[i]);
        }
    }
    for (int i = 16; i; i /= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, i));
    for (int e = lane; e < n_experts; e += 32) {
        scores[e] = c.scoring == SIGMOID_SCORES ? 1.0f / (1.0f + expf(-ranks[e])) : expf(ranks[e] - most);
        sum += scores[e];
    }
    sum = warp_sum(sum);
    for (int e = lane; e < n_experts; e += 32) {
        if (c.scoring == SOFTMAX) scores[e] /= sum;
        // Logits have the order of their scores, and are more rarely equal.
        if (c.select != nullptr) ranks[e] = scores[e] + c.select[e];
    }
    __syncwarp();
}
// Drops the experts of all groups but the best ones. `sums`: a number for each group.
__device__ __forceinline__ void drop_groups(const Choice& c, const float* scores, float* ranks, float* sums, int lane) {
    const int n_each = c.n_experts / c.n_groups;
    const float* parts = c.select == nullptr ? scores : ranks;
    for (int g = lane; g < c.n_groups; g += 32) {
        float first = -infinity(), second = -infinity();
        for (int e = g * n_each; e < (g + 1) * n_each; e++) {
            second = fmaxf(second, fminf(first, parts[e]));
            first = fmaxf(first, parts[e]);
        }
        sums[g] = c.group_top == 2 ? second + first : first;
    }
    __syncwarp();
    for (int g = lane; g < c.n_groups; g += 32) {
        int before = 0;
        for (int i = 0; i < c.n_groups; i++) before += sums[i] > sums[g] || (sums[i] == sums[g] && i < g);
        if (before >= c.groups_used)
            for (int e = g * n_each; e < (g + 1) * n_each; e++) ranks[e] = -infinity();
    }
    __syncwarp();
}
// Takes one expert after another: of many, or by sparsemixer, where each choice changes the score of its expert.
__device__ __forceinline__ void take_in_turn(const Choice& c, const float* logits, float* scores, const u32* keys,
                                             int* taken, int lane) {
    const int n_experts = c.n_experts;
    for (int i = 0; i < c.n_used; i++) {
        const int best = best_of(keys, taken, n_experts, lane);
        if (c.scoring == SPARSEMIXER) {
            // Against those near it that are not chosen before it; two zeros are near each other.
            const float top = __ldcg(logits + best);
            float near = 0.0f;
            for (int e = lane; e < n_experts; e += 32) {
                const float other = __ldcg(logits + e);
                if (!taken[e] && !((top - other) / fmaxf(fabsf(other), top) > 0.02f)) near += expf(other - top);
            }
            near = warp_sum(near);
            if (lane == 0) scores[best] = 1.0f / near;
        }
        __syncwarp();
        if (lane == 0) taken[best] = 1;
        __syncwarp();
    }
}
// The matrices of the taken experts and their weights, in ascending order.
__device__ __forceinline__ void put_choice(const Choice& c, const float* scores, const int* taken, int* experts,
                                           float* shares, int lane) {
    const int n_experts = c.n_experts;
    float total = 0.0f;
    for (int e = lane; e < n_experts; e += 32) total += taken[e] ? scores[e] : 0.0f;
    total = warp_sum(total);
    for (int first = 0, n = 0; first < n_experts; first += 32) {
        const int e = first + lane;
        const bool is_taken = e < n_experts && taken[e];
        const u32 all = __ballot_sync(ALL_LANES, is_taken);
        if (is_taken) {
            const int at = n + __popc(all & ((1u << lane) - 1));
            float share = scores[e];
            if (c.normalize) share /= total + 1e-20f;
            experts[at] = e / c.shared;
            shares[at] = c.weights_scale == 1.0f ? share : share * c.weights_scale;
        }
        n += __popc(all);
    }
}

// The experts of a row and their weights, in ascending order of experts, by a warp. `shared`: three numbers for each
// expert.
__device__ inline void choose_experts(const Choice& c, const float* logits, float* shared, int* experts,
                                      float* shares) {
    const int lane = threadIdx.x % 32, n_experts = c.n_experts;
    float *scores = shared, *ranks = scores + n_experts;
    int* taken = reinterpret_cast<int*>(ranks + n_experts);
    u32* keys = reinterpret_cast<u32*>(ranks);
    score_experts(c, logits, scores, ranks, lane);
    // `taken` is free until the choice; there are fewer groups than experts.
    if (c.n_groups != 0) drop_groups(c, scores, ranks, reinterpret_cast<float*>(taken), lane);
    for (int e = lane; e < n_experts; e += 32) {
        keys[e] = key_of(ranks[e]);
        taken[e] = 0;
    }
    __syncwarp();
    if (c.scoring != SPARSEMIXER && n_experts <= 512) {
        if (n_experts <= 128)
            take_best<4>(keys, taken, n_experts, c.n_used);
        else if (n_experts <= 256)
            take_best<8>(keys, taken, n_experts, c.n_used);
        else
            take_best<16>(keys, taken, n_experts, c.n_used);
        __syncwarp();
    } else {
        take_in_turn(c, logits, scores, keys, taken, lane);
    }
    put_choice(c, scores, taken, experts, shares, lane);
}

// Entries in the order of their experts, and the items that kernels of several rows take, of at most n_bundle rows. By
// a block. Which of an expert's rows comes first does not matter: no row sees another. `shared`: two numbers for each
// expert. Rows of an item begin at a multiple of n_apart. `places` has where entries are; it may be null.
__device__ inline void group_entries(const int* experts, int n, int n_experts, int n_bundle, int n_apart, int* shared,
                                     int* members, int* places, Bundle* items) {
    int *counts = shared, *next = counts + n_experts;
    const int lane = threadIdx.x % 32;
    for (int e = threadIdx.x; e < n_experts; e += blockDim.x) counts[e] = 0;
    __syncthreads();
    // Calls f(entry, expert) for all, four at a time: no load waits for another.
    auto for_all = [&](auto&& f) {
        for (int first = threadIdx.x; first < n; first += 4 * blockDim.x) {
            int mine[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int entry = first + i * int(blockDim.x);
                mine[i] = entry < n ? __ldcg(experts + entry) : -1;
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (mine[i] >= 0) f(first + i * int(blockDim.x), mine[i]);
        }
    };
    for_all([&](int, int expert) { atomicAdd(counts + expert, 1); });
    __syncthreads();
    if (threadIdx.x < 32) {
        int first_row = 0, first_item = 1;
        for (int base = 0; base < n_experts; base += 32) {
            const int e = base + lane, count = e < n_experts ? counts[e] : 0;
            const int n_items = (count + n_bundle - 1) / n_bundle, n_places = (count + n_apart - 1) / n_apart * n_apart;
            int rows = n_places, all = n_items;  // of this lane and those before it
            for (int i = 1; i < 32; i *= 2) {
                const int more_rows = __shfl_up_sync(ALL_LANES, rows, i), more = __shfl_up_sync(ALL_LANES, all, i);
                if (lane >= i) rows += more_rows, all += more;
            }
            const int row = first_row + rows - n_places, item = first_item + all - n_items;
            if (e < n_experts) next[e] = row;
            for (int i = 0; i < n_items; i++)
                items[item + i] = {e, row + i * n_bundle, min(n_bundle, count - i * n_bundle), 0};
            first_row += __shfl_sync(ALL_LANES, rows, 31);
            first_item += __shfl_sync(ALL_LANES, all, 31);
        }
        if (lane == 0) items[0] = {first_item - 1, first_row, 0, 0};
    }
    __syncthreads();
    for_all([&](int entry, int expert) {
        const int place = atomicAdd(next + expert, 1);
        members[place] = entry;
        if (places != nullptr) places[entry] = place;
    });
}
