// Mixtures of experts without the products of tiles: rows made ready, the choice of experts, rows in the order of
// experts, what stands between the products, and the sum. For few rows moe_route.cu does all that comes first.
#include "moe_choose.cuh"

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
            sums[r] = add_products(weights, v, sums[r]);
        }
    }
    for (int r = 0; r < 8; r++) {
        if (r >= n_rows) break;
        for (int i = 16; i; i /= 2) sums[r] += __shfl_xor_sync(ALL_LANES, sums[r], i);
        if (lane == 0) y[u64(first + r) * n_out + out] = bias == nullptr ? sums[r] : sums[r] + bias[out];
    }
}

// The experts of a row and their weights: a warp for each row, four in a block. Shared: three numbers for each expert
// and warp.
KERNEL(moe_choose)(const Batch* b, int kind, const float* logits, CHOICE, int* experts, float* shares) {
    wait_for_kernel_before();
    let_next_kernel_begin();
    DYNAMIC_SHARED(shared);
    const int warp = threadIdx.x / 32, row = blockIdx.x * 4 + warp;
    if (row >= b->rows(kind)) return;
    choose_experts(CHOICE_OF, logits + u64(row) * n_experts, reinterpret_cast<float*>(shared) + warp * 3 * n_experts,
                   experts + row * n_used, shares + row * n_used);
}

// Entries in the order of their experts. One block. Shared: two numbers for each expert.
KERNEL(moe_group)
(const Batch* b, int kind, const int* experts, int n_experts, int n_used, int n_bundle, int n_apart, int* members,
 Bundle* items) {
    wait_for_kernel_before();
    let_next_kernel_begin();
    DYNAMIC_SHARED(shared);
    group_entries(experts, b->rows(kind) * n_used, n_experts, n_bundle, n_apart, reinterpret_cast<int*>(shared),
                  members, items);
}

// act(gate) * up or act(up) of each entry, as f32 and halved, and its largest magnitude: a block for each. In pairs, rows
// of `up` have those of the gate eight before them, and both are in `gate`.
KERNEL(moe_hidden)
(const Batch* b, int kind, int n_used, const int* experts, const float* gate, const float* up, BETWEEN, int is_paired,
 int stride, int n, int n_padded, float* hidden, u32* largests, u8* halves, float* backs) {
    wait_for_kernel_before();
    let_next_kernel_begin();
    const int entry = blockIdx.x;
    if (entry >= b->rows(kind) * n_used) return;
    const Between between = BETWEEN_OF;
    const int expert = experts[entry];
    const float share = shares == nullptr ? 1.0f : shares[entry];
    const float* second = is_paired ? gate : up;
    hidden += u64(entry) * n;
    float largest = 0.0f;
    for (int k = 2 * threadIdx.x; k < n; k += 2 * blockDim.x)
        for (int i = k; i < min(k + 2, n); i++) {
            const u64 at = u64(entry) * stride + (is_paired ? i / 8 * 16 + i % 8 : i);
            const float u = second[is_paired ? at + 8 : at];
            const float v = gate == nullptr
                                ? activation(act, given(u, share, expert, up_scale, up_bias, u64(expert) * n + i))
                                : between.of(gate[at], u, entry, expert, n, i);
            hidden[i] = v;
            largest = fmaxf(largest, fabsf(v));
        }
    largest = block_largest(largest);
    if (threadIdx.x == 0) largests[entry] = __float_as_uint(largest);
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
    float sum = 0.0f;
    for (int entry = row * n_used; entry < (row + 1) * n_used; entry++) {
        const int expert = experts[entry];
        const float v = given(down[u64(entry) * stride + column], 1.0f, expert, scale, bias, u64(expert) * n + column);
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
