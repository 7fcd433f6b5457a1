// Mixtures of experts without the products: rows made ready, the choice of experts, rows in the order of experts, what
// stands between the products, and the sum.
#include "linears.cuh"
#include "moe.cuh"
#include "sums.cuh"

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

// A row of f32 as halves times a power of two, zeros behind it; the inverse of the power to `back`. `largest` may be of
// this thread's numbers alone. at(k) gives a number.
template <class At>
__device__ inline void halve(At&& at, float largest, int n, int n_padded, u8* halves, float* back) {
    const Power power = power_for(block_largest(largest));
    for (int k = 2 * threadIdx.x; k < n_padded; k += 2 * blockDim.x)
        *reinterpret_cast<u32*>(halves + halved_at(k)) =
            to_halves_saturated(k < n ? at(k) * power.times : 0.0f, k + 1 < n ? at(k + 1) * power.times : 0.0f);
    if (threadIdx.x == 0) *back = power.back;
}

// Rows normed, as f32 and halved; a block for each. Without a norm they are halved alone, and `normed` is null.
KERNEL(moe_rows)
(const Batch* b, int kind, const float* x, const float* norm, float eps, int n, int n_padded, float* normed, u8* halves,
 float* backs) {
    wait_for_kernel_before();
    let_next_kernel_begin();
    const int row = blockIdx.x;
    if (row >= b->rows(kind)) return;
    x += u64(row) * n;
    float scale = 1.0f, largest = 0.0f;
    if (norm != nullptr) {
        scale = 1.0f / sqrtf(sum_of_squares(x, n) / n + eps);
        normed += u64(row) * n;
    }
    auto at = [&](int k) { return norm == nullptr ? x[k] : x[k] * scale * norm[k]; };
    for (int k = 2 * threadIdx.x; k < n; k += 2 * blockDim.x)
        for (int i = k; i < min(k + 2, n); i++) {
            largest = fmaxf(largest, fabsf(at(i)));
            if (norm != nullptr) normed[i] = at(i);
        }
    halve(at, largest, n, n_padded, halves + u64(row) * n_padded * 2, backs + row);
}

// Columns k to k + 3 of a row of n, zeros behind it.
__device__ __forceinline__ float4 four_of(const float* row, int k, int n) {
    if ((n & 3) == 0) return *reinterpret_cast<const float4*>(row + k);
    return make_float4(row[k], k + 1 < n ? row[k + 1] : 0.0f, k + 2 < n ? row[k + 2] : 0.0f,
                       k + 3 < n ? row[k + 3] : 0.0f);
}

// Logits, or any product with f32 weights: a warp for each output takes eight rows. grid: outputs by 8, rows by 8.
KERNEL(moe_logits)
(const Batch* b, int kind, const float* x, int n, const float* w, const float* bias, float* y, int n_out) {
    wait_for_kernel_before();
    let_next_kernel_begin();
    const int lane = threadIdx.x % 32, out = blockIdx.x * 8 + threadIdx.x / 32, first = blockIdx.y * 8;
    const int n_rows = min(8, b->rows(kind) - first);
    if (out >= n_out || n_rows <= 0) return;
    float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    w += u64(out) * n, x += u64(first) * n;
#pragma unroll 4
    for (int k = 4 * lane; k < n; k += 128) {
        const float4 weights = four_of(w, k, n);
#pragma unroll
        for (int r = 0; r < 8; r++) {
            if (r >= n_rows) continue;
            const float4 v = four_of(x + u64(r) * n, k, n);
            sums[r] = fmaf(weights.x, v.x, sums[r]), sums[r] = fmaf(weights.y, v.y, sums[r]);
            sums[r] = fmaf(weights.z, v.z, sums[r]), sums[r] = fmaf(weights.w, v.w, sums[r]);
        }
    }
    for (int r = 0; r < 8; r++) {
        if (r >= n_rows) break;
        for (int i = 16; i; i /= 2) sums[r] += __shfl_xor_sync(ALL_LANES, sums[r], i);
        if (lane == 0) y[u64(first + r) * n_out + out] = bias == nullptr ? sums[r] : sums[r] + bias[out];
    }
}

// Without a header there is no name for it.
__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

enum Scoring { SOFTMAX, SIGMOID_SCORES, SPARSEMIXER };

__device__ inline float warp_sum(float x) {
    for (int i = 16; i; i /= 2) x += __shfl_xor_sync(ALL_LANES, x, i);
    return x;
}
// The index of the highest rank that is not taken; of equal ranks the lowest index.
__device__ inline int best_of(const float* ranks, const int* taken, int n, int lane) {
    float best = 0.0f;
    int index = -1;
    for (int e = lane; e < n; e += 32)
        if (!taken[e] && (index < 0 || ranks[e] > best)) best = ranks[e], index = e;
    for (int i = 16; i; i /= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, best, i);
        const int where = __shfl_xor_sync(ALL_LANES, index, i);
        if (where >= 0 && (index < 0 || other > best || (!(best > other) && where < index)))
            best = other, index = where;
    }
    // Lanes that hold what is not a number may disagree.
    return __shfl_sync(ALL_LANES, index, 0);
}

// The experts of a row and their weights, in ascending order of experts: a warp for each row, four in a block. Shared:
// three numbers for each expert and warp.
KERNEL(moe_choose)
(const Batch* b, int kind, const float* logits, const float* select, int n_experts, int n_used, int scoring,
 int normalize, float weights_scale, int n_groups, int groups_used, int group_top, int* experts, float* shares) {
    wait_for_kernel_before();
    let_next_kernel_begin();
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x % 32, row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= b->rows(kind)) return;
    float* scores = reinterpret_cast<float*>(shared) + threadIdx.x / 32 * 3 * n_experts;
    float* ranks = scores + n_experts;
    int* taken = reinterpret_cast<int*>(ranks + n_experts);
    logits += u64(row) * n_experts;
    float most = -infinity(), sum = 0.0f;
    for (int e = lane; e < n_experts; e += 32) most = fmaxf(most, logits[e]);
    for (int i = 16; i; i /= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, i));
    for (int e = lane; e < n_experts; e += 32) {
        scores[e] = scoring == SIGMOID_SCORES ? 1.0f / (1.0f + expf(-logits[e])) : expf(logits[e] - most);
        sum += scores[e];
    }
    sum = warp_sum(sum);
    for (int e = lane; e < n_experts; e += 32) {
        if (scoring == SOFTMAX) scores[e] /= sum;
        // Logits have the order of their scores, and are more rarely equal.
        ranks[e] = select == nullptr ? logits[e] : scores[e] + select[e];
        taken[e] = 0;
    }
    __syncwarp();
    if (n_groups != 0) {
        const int n_each = n_experts / n_groups;
        const float* parts = select == nullptr ? scores : ranks;
        float* sums = reinterpret_cast<float*>(taken);  // free until the choice; there are fewer groups than experts
        for (int g = lane; g < n_groups; g += 32) {
            float first = -infinity(), second = -infinity();
            for (int e = g * n_each; e < (g + 1) * n_each; e++) {
                second = fmaxf(second, fminf(first, parts[e]));
                first = fmaxf(first, parts[e]);
            }
            sums[g] = group_top == 2 ? second + first : first;
        }
        __syncwarp();
        for (int g = lane; g < n_groups; g += 32) {
            int before = 0;
            for (int i = 0; i < n_groups; i++) before += sums[i] > sums[g] || (sums[i] == sums[g] && i < g);
            if (before >= groups_used)
                for (int e = g * n_each; e < (g + 1) * n_each; e++) ranks[e] = -infinity();
        }
        __syncwarp();
        for (int e = lane; e < n_experts; e += 32) taken[e] = 0;
        __syncwarp();
    }
    float total = 0.0f;
    for (int i = 0; i < n_used; i++) {
        const int best = best_of(ranks, taken, n_experts, lane);
        if (scoring == SPARSEMIXER) {
            // Against those near it that are not chosen before it; two zeros are near each other.
            const float top = logits[best];
            float near = 0.0f;
            for (int e = lane; e < n_experts; e += 32)
                if (!taken[e] && !((top - logits[e]) / fmaxf(fabsf(logits[e]), top) > 0.02f))
                    near += expf(logits[e] - top);
            near = warp_sum(near);
            if (lane == 0) scores[best] = 1.0f / near;
        }
        __syncwarp();
        if (lane == 0) taken[best] = 1;
        __syncwarp();
    }
    for (int e = lane; e < n_experts; e += 32) total += taken[e] ? scores[e] : 0.0f;
    total = warp_sum(total);
    for (int first = 0, n = 0; first < n_experts; first += 32) {
        const int e = first + lane;
        const bool is_taken = e < n_experts && taken[e];
        const u32 all = __ballot_sync(ALL_LANES, is_taken);
        if (is_taken) {
            const int at = row * n_used + n + __popc(all & ((1u << lane) - 1));
            float share = scores[e];
            if (normalize) share /= total + 1e-20f;
            experts[at] = e;
            shares[at] = weights_scale == 1.0f ? share : share * weights_scale;
        }
        n += __popc(all);
    }
}

// Entries in the order of their experts, and the items that kernels of many rows take. One block. Which of an expert's
// rows comes first does not matter: no row sees another. Shared: two numbers for each expert.
KERNEL(moe_group)(const Batch* b, int kind, const int* experts, int n_experts, int n_used, int* members,
                  Bundle* items) {
    wait_for_kernel_before();
    let_next_kernel_begin();
    DYNAMIC_SHARED(shared);
    int *counts = reinterpret_cast<int*>(shared), *next = counts + n_experts;
    const int n = b->rows(kind) * n_used, lane = threadIdx.x % 32;
    for (int e = threadIdx.x; e < n_experts; e += blockDim.x) counts[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(counts + experts[i], 1);
    __syncthreads();
    if (threadIdx.x < 32) {
        int first_row = 0, first_item = 1;
        for (int base = 0; base < n_experts; base += 32) {
            const int e = base + lane, count = e < n_experts ? counts[e] : 0;
            const int n_items = (count + BUNDLE_ROWS - 1) / BUNDLE_ROWS;
            int rows = count, all = n_items;  // of this lane and those before it
            for (int i = 1; i < 32; i *= 2) {
                const int more_rows = __shfl_up_sync(ALL_LANES, rows, i), more = __shfl_up_sync(ALL_LANES, all, i);
                if (lane >= i) rows += more_rows, all += more;
            }
            const int row = first_row + rows - count, item = first_item + all - n_items;
            if (e < n_experts) next[e] = row;
            for (int i = 0; i < n_items; i++)
                items[item + i] = {e, row + i * BUNDLE_ROWS, min(BUNDLE_ROWS, count - i * BUNDLE_ROWS), 0};
            first_row += __shfl_sync(ALL_LANES, rows, 31);
            first_item += __shfl_sync(ALL_LANES, all, 31);
        }
        if (lane == 0) items[0] = {first_item - 1, 0, 0, 0};
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) members[atomicAdd(next + experts[i], 1)] = i;
}

// What an expert's matrix gave, times its scale, plus its bias.
struct Given {
    const float *y, *bias, *scale;
    __device__ float at(u64 place, int expert, int n, int column, float share) const {
        float v = y[place] * share;
        if (scale != nullptr) v *= scale[expert];
        return bias == nullptr ? v : v + bias[u64(expert) * n + column];
    }
};

// act(gate) * up or act(up) of each entry, as f32 and halved: a block for each. In pairs, rows of `up` have those of
// the gate eight before them, and both are in `gate`. With `weigh_input` both are times the entry's weight.
KERNEL(moe_hidden)
(const Batch* b, int kind, int n_used, const int* experts, const float* shares, int weigh_input, const float* gate,
 const float* gate_bias, const float* gate_scale, const float* up, const float* up_bias, const float* up_scale,
 int is_paired, int stride, int act, float limit, int n, int n_padded, float* hidden, u8* halves, float* backs) {
    wait_for_kernel_before();
    let_next_kernel_begin();
    const int entry = blockIdx.x;
    if (entry >= b->rows(kind) * n_used) return;
    const int expert = experts[entry];
    const float share = weigh_input ? shares[entry] : 1.0f;
    const Given first = {gate, gate_bias, gate_scale}, second = {is_paired ? gate : up, up_bias, up_scale};
    hidden += u64(entry) * n;
    float largest = 0.0f;
    for (int k = 2 * threadIdx.x; k < n; k += 2 * blockDim.x)
        for (int i = k; i < min(k + 2, n); i++) {
            const u64 at = u64(entry) * stride + (is_paired ? i / 8 * 16 + i % 8 : i);
            const float u = second.at(is_paired ? at + 8 : at, expert, n, i, share);
            const float v =
                gate == nullptr ? activation(act, u) : gated(act, first.at(at, expert, n, i, share), u, limit);
            hidden[i] = v;
            largest = fmaxf(largest, fabsf(v));
        }
    halve([&](int k) { return hidden[k]; }, largest, n, n_padded, halves + u64(entry) * n_padded * 2, backs + entry);
}

// The entries of a row, summed by ascending expert. grid: rows, columns by 256.
KERNEL(moe_sum)
(const Batch* b, int kind, int n_used, const int* experts, const float* shares, int weigh_input, const float* down,
 const float* bias, const float* scale, int stride, int n, float factor, const float* residual, float* y) {
    wait_for_kernel_before();
    let_next_kernel_begin();
    const int row = blockIdx.x, column = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= b->rows(kind) || column >= n) return;
    const Given given = {down, bias, scale};
    float sum = 0.0f;
    for (int entry = row * n_used; entry < (row + 1) * n_used; entry++) {
        const float v = given.at(u64(entry) * stride + column, experts[entry], n, column, 1.0f);
        sum += weigh_input ? v : shares[entry] * v;
    }
    const u64 at = u64(row) * n + column;
    if (factor != 1.0f) sum *= factor;
    y[at] = residual == nullptr ? sum : residual[at] + sum;
}

// Matrices of f32: a warp for each output of an entry, whose row is entry / per. grid: entries, outputs by 8.
KERNEL(moe_f32)
(const Batch* b, int kind, int n_used, const int* experts, const float* x, int per, int n, const float* w, float* y,
 int n_out, int stride) {
    wait_for_kernel_before();
    let_next_kernel_begin();
    const int lane = threadIdx.x % 32, out = blockIdx.y * 8 + threadIdx.x / 32, entry = blockIdx.x;
    if (entry >= b->rows(kind) * n_used || out >= n_out) return;
    w += (u64(experts[entry]) * n_out + out) * n;
    x += u64(entry / per) * n;
    float sum = 0.0f;
    for (int k = lane; k < n; k += 32) sum = fmaf(w[k], x[k], sum);
    sum = warp_sum(sum);
    if (lane == 0) y[u64(entry) * stride + out] = sum;
}
