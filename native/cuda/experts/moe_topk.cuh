// Top-k selection of experts, and sorting of entries by expert.
#pragma once

#include "experts/moe.cuh"
#include "primitives/division.cuh"

// NVRTC has no INFINITY without headers.
__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

enum Scoring { SOFTMAX, SIGMOID_SCORES, SPARSEMIXER };

__device__ inline float warp_sum(float x) {
    for (int i = 16; i; i /= 2) x += __shfl_xor_sync(ALL_LANES, x, i);
    return x;
}
// Maps a float to an integer of the same order; NaN sorts first or last by its sign.
__device__ __forceinline__ u32 key_of(float x) {
    const u32 bits = __float_as_uint(x + 0.0f);
    return bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
}
// Index of the largest key that is not taken; ties go to the lowest index.
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

// Options of the router.
struct RouterParams {
    const float* select;
    int n_experts, n_used, scoring, normalize;
    float weights_scale;
    int n_groups, groups_used, group_top;
    float cap;   // softcap of the logits, 0: none
    int shared;  // consecutive experts that share one matrix
};
#define ROUTER_PARAMS                                                                                              \
    const float *select, int n_experts, int n_used, int scoring, int normalize, float weights_scale, int n_groups, \
        int groups_used, int group_top, float cap, int n_shared
#define ROUTER_ARGS \
    {select, n_experts, n_used, scoring, normalize, weights_scale, n_groups, groups_used, group_top, cap, n_shared}

// Maximum over the warp.
__device__ __forceinline__ u32 warp_max(u32 x) {
#ifdef WOOLLY_EMULATED
    for (int i = 16; i; i /= 2) x = max(x, __shfl_xor_sync(ALL_LANES, x, i));
    return x;
#else
    return __reduce_max_sync(ALL_LANES, x);
#endif
}
// Marks the n_used largest of up to 32 N keys as taken; ties go to the lowest index.
template <int N>
__device__ __forceinline__ void take_topk(const u32* keys, int* taken, int n_experts, int n_used) {
    const int lane = threadIdx.x % 32;
    u32 mine[N], is_left = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        mine[i] = lane + 32 * i < n_experts ? keys[lane + 32 * i] : 0;
        is_left |= u32(lane + 32 * i < n_experts) << i;
    }
    for (int n = 0; n < n_used; n++) {
        u32 best = 0, before = 0;  // before: larger for a lower index, 0: none
#pragma unroll
        for (int i = 0; i < N; i++) best = max(best, is_left >> i & 1 ? mine[i] : 0);
        best = warp_max(best);
#pragma unroll
        for (int i = N - 1; i >= 0; i--)
            if (is_left >> i & 1 && mine[i] == best) before = 32 * N - (lane + 32 * i);
        const int index = 32 * N - int(warp_max(before));
        if (index % 32 == lane) is_left &= ~(1u << (index / 32));
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + 32 * i < n_experts) taken[lane + 32 * i] = !(is_left >> i & 1);
}

// Scores of all experts, and the ranks that decide the selection.
__device__ __forceinline__ void score_experts(const RouterParams& c, const float* logits, float* scores, float* ranks,
                                              int lane) {
    const int n_experts = c.n_experts;
    float max_logit = -infinity(), sum = 0.0f;
    for (int first = lane; first < n_experts; first += 128) {
        float v[4];  // independent loads
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = first + 32 * i < n_experts ? __ldcg(logits + first + 32 * i) : -infinity();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (c.cap > 0.0f) v[i] = c.cap * tanhf(v[i] / c.cap);
            if (first + 32 * i < n_experts) ranks[first + 32 * i] = v[i];
            max_logit = fmaxf(max_logit, v[i]);
        }
    }
    for (int i = 16; i; i /= 2) max_logit = fmaxf(max_logit, __shfl_xor_sync(ALL_LANES, max_logit, i));
    for (int e = lane; e < n_experts; e += 32) {
        scores[e] = c.scoring == SIGMOID_SCORES ? 1.0f / (1.0f + expf(-ranks[e])) : expf(ranks[e] - max_logit);
        sum += scores[e];
    }
    sum = warp_sum(sum);
    for (int e = lane; e < n_experts; e += 32) {
        if (c.scoring == SOFTMAX) scores[e] /= sum;
        // Without a bias, logits rank as their scores do and tie less often.
        if (c.select != nullptr) ranks[e] = scores[e] + c.select[e];
    }
    __syncwarp();
}
// Excludes all groups but the best ones. `sums`: one number per group.
__device__ __forceinline__ void drop_groups(const RouterParams& c, const float* scores, float* ranks, float* sums,
                                            int lane) {
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
// Selects one expert at a time: for more than 512 experts, or for sparsemixer, where each selection changes the
// expert's score.
__device__ __forceinline__ void take_one_by_one(const RouterParams& c, const float* logits, float* scores,
                                                const u32* keys, int* taken, int lane) {
    const int n_experts = c.n_experts;
    for (int i = 0; i < c.n_used; i++) {
        const int best = best_of(keys, taken, n_experts, lane);
        if (c.scoring == SPARSEMIXER) {
            // Softmax over the experts near it that are not yet selected; two zeros count as near.
            const float top = __ldcg(logits + best);
            float items_of_block = 0.0f;
            for (int e = lane; e < n_experts; e += 32) {
                const float other = __ldcg(logits + e);
                if (!taken[e] && !((top - other) / fmaxf(fabsf(other), top) > 0.02f))
                    items_of_block += expf(other - top);
            }
            items_of_block = warp_sum(items_of_block);
            if (lane == 0) scores[best] = 1.0f / items_of_block;
        }
        __syncwarp();
        if (lane == 0) taken[best] = 1;
        __syncwarp();
    }
}
// Stores the selected experts' matrices and weights, by ascending expert.
__device__ __forceinline__ void store_topk(const RouterParams& c, const float* scores, const int* taken, int* experts,
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

// Selects the n_wanted largest of up to 32 N keys (N per lane, 0: no key); bit i of the result means key i of this
// lane. If equal keys make the selection too large, repeats with ties broken by index.
template <int N>
__device__ __forceinline__ u32 topk_mask(const u32 (&all)[N], int n_wanted) {
    const int lane = threadIdx.x % 32;
    u32 taken = 0;
    for (bool is_first = true;; is_first = false) {
        u32 keys[N], n_taken = 0;
#pragma unroll
        for (int i = 0; i < N; i++) keys[i] = all[i];
        taken = 0;
#pragma unroll 1
        for (int n = 0; n < n_wanted; n++) {
            u32 top = keys[0], index = 0;
#pragma unroll
            for (int i = 1; i < N; i++) top = max(top, keys[i]);
            top = warp_max(top);
            if (!is_first) {
#pragma unroll
                for (int i = N - 1; i >= 0; i--) index = keys[i] == top ? 32 * N - (lane + 32 * i) : index;
                index = warp_max(index);
            }
#pragma unroll
            for (int i = 0; i < N; i++)
                if (keys[i] == top && (is_first || index == u32(32 * N - (lane + 32 * i))))
                    keys[i] = 0, taken |= 1u << i;
        }
#pragma unroll
        for (int i = 0; i < N; i++) n_taken += __popc(__ballot_sync(ALL_LANES, taken >> i & 1));
        if (!is_first || n_taken == u32(n_wanted)) return taken;
    }
}
// Top-k with all logits in registers of a warp, by ascending expert: up to 32 N experts without softcap, groups or
// shared matrices. On the critical path of the product kernels, so kept short.
template <int N>
__device__ __forceinline__ void topk_in_registers(const RouterParams& c, const float* logits, int* experts,
                                                  float* shares) {
    const int lane = threadIdx.x % 32, n_experts = c.n_experts;
    float v[N], added[N], scores[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int e = lane + 32 * i;
        v[i] = e < n_experts ? __ldcg(logits + e) : -infinity();
        added[i] = c.select != nullptr && e < n_experts ? c.select[e] : 0.0f;
    }
    float max_logit = -infinity(), sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) max_logit = fmaxf(max_logit, v[i]);
#pragma unroll
    for (int i = 16; i; i /= 2) max_logit = fmaxf(max_logit, __shfl_xor_sync(ALL_LANES, max_logit, i));
    const bool is_sigmoid = c.scoring == SIGMOID_SCORES;
#pragma unroll
    for (int i = 0; i < N; i++) {
        scores[i] = expf(is_sigmoid ? -v[i] : v[i] - max_logit);
        sum += lane + 32 * i < n_experts ? scores[i] : 0.0f;
    }
    sum = warp_sum(sum);
    // Without a bias, logits rank as their scores do and tie less often.
    u32 keys[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float by = is_sigmoid ? 1.0f + scores[i] : sum, score = divide_rn(is_sigmoid ? 1.0f : scores[i], by);
        scores[i] = by > 8e37f ? 0.0f : score;
        keys[i] = lane + 32 * i < n_experts ? max(key_of(c.select != nullptr ? scores[i] + added[i] : v[i]), 1u) : 0;
    }
    const u32 taken = topk_mask<N>(keys, c.n_used);
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) total += taken >> i & 1 ? scores[i] : 0.0f;
    total = warp_sum(total);
    int at = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const u32 all = __ballot_sync(ALL_LANES, taken >> i & 1);
        const int mine = at + __popc(all & ((1u << lane) - 1));
        const float share = divide_rn(scores[i], c.normalize ? total + 1e-20f : 1.0f);
        if (taken >> i & 1) {
            experts[mine] = lane + 32 * i;
            shares[mine] = c.weights_scale == 1.0f ? share : share * c.weights_scale;
        }
        at += __popc(all);
    }
}
// Same, for up to 256 experts.
__device__ __forceinline__ void topk_small(const RouterParams& c, const float* logits, int* experts, float* shares) {
    if (c.n_experts <= 128)
        topk_in_registers<4>(c, logits, experts, shares);
    else
        topk_in_registers<8>(c, logits, experts, shares);
}

// Top-k of a row by one warp: experts and weights, by ascending expert. `shared`: three numbers per expert.
__device__ inline void topk_experts(const RouterParams& c, const float* logits, float* shared, int* experts,
                                    float* shares) {
    if (c.scoring != SPARSEMIXER && c.n_groups == 0 && c.cap == 0.0f && c.shared == 1 && c.n_experts <= 256)
        return topk_small(c, logits, experts, shares);
    const int lane = threadIdx.x % 32, n_experts = c.n_experts;
    float *scores = shared, *ranks = scores + n_experts;
    int* taken = reinterpret_cast<int*>(ranks + n_experts);
    u32* keys = reinterpret_cast<u32*>(ranks);
    score_experts(c, logits, scores, ranks, lane);
    // `taken` is unused until the selection; there are fewer groups than experts.
    if (c.n_groups != 0) drop_groups(c, scores, ranks, reinterpret_cast<float*>(taken), lane);
    for (int e = lane; e < n_experts; e += 32) {
        keys[e] = key_of(ranks[e]);
        taken[e] = 0;
    }
    __syncwarp();
    if (c.scoring != SPARSEMIXER && n_experts <= 512) {
        if (n_experts <= 256)
            take_topk<8>(keys, taken, n_experts, c.n_used);
        else
            take_topk<16>(keys, taken, n_experts, c.n_used);
        __syncwarp();
    } else {
        take_one_by_one(c, logits, scores, keys, taken, lane);
    }
    store_topk(c, scores, taken, experts, shares, lane);
}

// Sorts entries by expert and forms items of up to max_item_rows rows. Called by all threads. The order of rows within
// an expert is arbitrary: rows are independent. `shared`: two numbers per expert. Items start at multiples of
// row_alignment. `places` receives the position of each entry, or is null.
__device__ inline void group_entries(const int* experts, int n, int n_experts, int max_item_rows, int row_alignment,
                                     int* shared, int* members, int* places, ExpertRows* items) {
    int *counts = shared, *next = counts + n_experts;
    const int lane = threadIdx.x % 32;
    for (int e = threadIdx.x; e < n_experts; e += blockDim.x) counts[e] = 0;
    __syncthreads();
    // Calls f(entry, expert) for all entries, with four independent loads at a time.
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
            const int n_items = (count + max_item_rows - 1) / max_item_rows,
                      n_places = (count + row_alignment - 1) / row_alignment * row_alignment;
            int rows = n_places, all = n_items;  // inclusive prefix sums over lanes
            for (int i = 1; i < 32; i *= 2) {
                const int more_rows = __shfl_up_sync(ALL_LANES, rows, i), more = __shfl_up_sync(ALL_LANES, all, i);
                if (lane >= i) rows += more_rows, all += more;
            }
            const int row = first_row + rows - n_places, item = first_item + all - n_items;
            if (e < n_experts) next[e] = row;
            for (int i = 0; i < n_items; i++)
                items[item + i] = {e, row + i * max_item_rows, min(max_item_rows, count - i * max_item_rows), 0};
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
