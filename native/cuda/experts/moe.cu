// MoE kernels around the expert products: preparation of rows, router logits, top-k, sort by expert, activation and
// weighted sum. For small batches moe_route.cu fuses the steps before the products.
#include "experts/moe_rows.cuh"
#include "experts/moe_topk.cuh"

// RMSNorm to f32 and f16, 256 threads per row. Without a norm only f16 is written and `normed` is null. Shared memory:
// a row.
KERNEL(moe_prepare)
(const Batch* b, int kind, const float* x, const float* norm, float eps, int n, int n_padded, float* normed, u8* x_f16,
 float* inv_scales) {
    DYNAMIC_SHARED(shared);
    float* here = reinterpret_cast<float*>(shared);
    const RowNormalizer normer(norm, eps, n);
    wait_for_previous_kernel();
    launch_dependents();
    const int row = blockIdx.x;
    if (row >= b->rows(kind)) return;
    const float row_max = normer.apply(x + u64(row) * n, here);
    __syncthreads();
    if (normed != nullptr)
        for (int k = threadIdx.x; k < n; k += blockDim.x) normed[u64(row) * n + k] = here[k];
    to_f16([&](int k) { return here[k]; }, row_max, n, n_padded, x_f16 + u64(row) * n_padded * 2, inv_scales + row);
}

// Router logits: a warp computes four outputs of eight rows. grid: (outputs / 32, rows / 8).
KERNEL_BOUNDS(256, 2, moe_logits)
(const Batch* b, int kind, const float* x, int n, const float* w, const float* bias, float* y, int n_out) {
    wait_for_previous_kernel();
    launch_dependents();
    const int lane = threadIdx.x % 32, out = (blockIdx.x * 8 + threadIdx.x / 32) * 4, first = blockIdx.y * 8;
    const int n_rows = min(8, b->rows(kind) - first);
    if (out >= n_out || n_rows <= 0) return;
    float sums[8][4] = {};
    x += u64(first) * n;
    for (int k = 4 * lane; k < n; k += 128) {
        float4 weights[4];
#pragma unroll
        for (int i = 0; i < 4; i++) weights[i] = load_four(w + u64(min(out + i, n_out - 1)) * n, k, n);
#pragma unroll
        for (int r = 0; r < 8; r++) {
            const float4 v = load_four(x + u64(min(r, n_rows - 1)) * n, k, n);  // rows past the end repeat the last one
#pragma unroll
            for (int i = 0; i < 4; i++) sums[r][i] = dot4(weights[i], v, sums[r][i]);
        }
    }
#pragma unroll
    for (int r = 0; r < 8; r++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float sum = sums[r][i];
            for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, o);
            if (lane == 0 && r < n_rows && out + i < n_out)
                y[u64(first + r) * n_out + out + i] = bias == nullptr ? sum : sum + bias[out + i];
        }
}

// Experts of a row and their weights: one warp per row, four per block. Shared memory: three numbers per expert and
// warp.
KERNEL(moe_topk)(const Batch* b, int kind, const float* logits, ROUTER_PARAMS, int* experts, float* shares) {
    wait_for_previous_kernel();
    launch_dependents();
    DYNAMIC_SHARED(shared);
    const int warp = threadIdx.x / 32, row = blockIdx.x * 4 + warp;
    if (row >= b->rows(kind)) return;
    topk_experts(ROUTER_ARGS, logits + u64(row) * n_experts, reinterpret_cast<float*>(shared) + warp * 3 * n_experts,
                 experts + row * n_used, shares + row * n_used);
}

// Sorts entries by expert, in one block. Shared memory: two numbers per expert.
KERNEL(moe_sort)
(const Batch* b, int kind, const int* experts, int n_experts, int n_used, int max_item_rows, int row_alignment,
 int* members, int* places, ExpertRows* items) {
    wait_for_previous_kernel();
    launch_dependents();
    DYNAMIC_SHARED(shared);
    group_entries(experts, b->rows(kind) * n_used, n_experts, max_item_rows, row_alignment,
                  reinterpret_cast<int*>(shared), members, places, items);
}

// Eight places of a row of n columns, times a power of two, as f16: two columns for each lane t of mma.
__device__ __forceinline__ Words4 to_half8(const float* row, int place, int n, float times) {
    const int first = column_at(place);
    float2 v[4];
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const int k = first + 64 * t;
        if ((n & 1) == 0)
            v[t] = k < n ? __ldcg(reinterpret_cast<const float2*>(row + k)) : make_float2(0, 0);
        else
            v[t] = make_float2(k < n ? __ldcg(row + k) : 0.0f, k + 1 < n ? __ldcg(row + k + 1) : 0.0f);
    }
    auto two = [&](int t) { return to_half2_saturated(v[t].x * times, v[t].y * times); };
    return {two(0), two(1), two(2), two(3)};
}

// Permutes prepared rows into the order of experts (prepared_at), one block per row. `x` is normed; `inv_scales` are
// the inverse scales of its rows.
KERNEL(moe_permute)
(const Batch* b, int kind, int n_used, const int* places, const float* x, const float* inv_scales, int n, int n_padded,
 int n_stride, u16* prepared, float* place_inv_scales) {
    wait_for_previous_kernel();
    launch_dependents();
    const int row = blockIdx.x;
    if (row >= b->rows(kind)) return;
    const float inv_scale = __ldcg(inv_scales + row);
    places += row * n_used;
    for (int at = 8 * threadIdx.x; at < n_padded; at += 8 * blockDim.x) {
        const Words4 v = to_half8(x + u64(row) * n, at, n, 1.0f / inv_scale);
        for (int i = 0; i < n_used; i++)
            *reinterpret_cast<Words4*>(prepared + prepared_at(__ldcg(places + i), at, n_stride)) = v;
    }
    for (int i = threadIdx.x; i < n_used; i += blockDim.x) place_inv_scales[__ldcg(places + i)] = inv_scale;
}

// Same for the hidden rows between the products: one warp per entry, eight per block.
KERNEL(moe_permute_hidden)
(const Batch* b, int kind, int n_used, const int* places, const float* hidden, int n, int n_padded, int n_stride,
 u16* prepared, float* place_inv_scales) {
    wait_for_previous_kernel();
    launch_dependents();
    const int lane = threadIdx.x % 32, entry = blockIdx.x * 8 + threadIdx.x / 32;
    if (entry >= b->rows(kind) * n_used) return;
    const float* row = hidden + u64(entry) * n;
    const int place = __ldcg(places + entry);
    float row_max = 0.0f;
    if ((n & 3) == 0) {
        for (int k = 4 * lane; k < n; k += 128) {
            const float4 v = __ldcg(reinterpret_cast<const float4*>(row + k));
            row_max = fmaxf(fmaxf(row_max, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
        }
    } else {
        for (int k = lane; k < n; k += 32) row_max = fmaxf(row_max, fabsf(__ldcg(row + k)));
    }
    for (int i = 16; i; i /= 2) row_max = fmaxf(row_max, __shfl_xor_sync(ALL_LANES, row_max, i));
    const RowScale row_scale = row_scale_for(row_max);
    for (int at = 8 * lane; at < n_padded; at += 256)
        *reinterpret_cast<Words4*>(prepared + prepared_at(place, at, n_stride)) = to_half8(row, at, n, row_scale.value);
    if (lane == 0) place_inv_scales[place] = row_scale.inverse;
}

// act(gate) * up, or act(up), of each entry as f32 and f16, and its largest magnitude; one block per entry. If
// is_paired, `gate` holds both, interleaved in groups of eight rows, gate first.
KERNEL(moe_activation)
(const Batch* b, int kind, int n_used, const int* experts, const float* gate, const float* up, GLU_PARAMS,
 int is_paired, int stride, int n, int n_padded, float* hidden, u32* max_abs, u8* x_f16, float* inv_scales) {
    wait_for_previous_kernel();
    launch_dependents();
    const int entry = blockIdx.x;
    if (entry >= b->rows(kind) * n_used) return;
    const GluParams glu = GLU_ARGS;
    const int expert = experts[entry];
    const float share = shares == nullptr ? 1.0f : shares[entry];
    const float* second = is_paired ? gate : up;
    hidden += u64(entry) * n;
    float row_max = 0.0f;
    for (int k = 2 * threadIdx.x; k < n; k += 2 * blockDim.x)
        for (int i = k; i < min(k + 2, n); i++) {
            const u64 at = u64(entry) * stride + (is_paired ? i / 8 * 16 + i % 8 : i);
            const float u = second[is_paired ? at + 8 : at];
            const float v =
                gate == nullptr
                    ? activation(act, scaled_and_biased(u, share, expert, up_scale, up_bias, u64(expert) * n + i))
                    : glu.of(gate[at], u, entry, expert, n, i);
            hidden[i] = v;
            row_max = fmaxf(row_max, fabsf(v));
        }
    row_max = block_max(row_max);
    if (threadIdx.x == 0) max_abs[entry] = __float_as_uint(row_max);
    to_f16([&](int k) { return hidden[k]; }, row_max, n, n_padded, x_f16 + u64(entry) * n_padded * 2,
           inv_scales + entry);
}

// Weighted sum of a row's experts, by ascending expert. grid: (rows, columns / 256).
KERNEL(moe_sum)
(const Batch* b, int kind, int n_used, const int* experts, const float* shares, int weigh_input, const float* down,
 const float* bias, const float* scale, int stride, int n, float factor, const float* residual, float* y) {
    wait_for_previous_kernel();
    launch_dependents();
    const int row = blockIdx.x, column = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= b->rows(kind) || column >= n) return;
    float sum = 0.0f;
    for (int entry = row * n_used; entry < (row + 1) * n_used; entry++) {
        const int expert = experts[entry];
        const float v =
            scaled_and_biased(down[u64(entry) * stride + column], 1.0f, expert, scale, bias, u64(expert) * n + column);
        sum += weigh_input ? v : shares[entry] * v;
    }
    const u64 at = u64(row) * n + column;
    if (factor != 1.0f) sum *= factor;
    y[at] = residual == nullptr ? sum : residual[at] + sum;
}

// f32 expert matrices: a warp per output of an entry, whose row is entry / per. grid: (entries, outputs / 8).
KERNEL(moe_f32)
(const Batch* b, int kind, int n_used, const int* experts, const float* x, int per, int n, const float* w, float* y,
 int n_out, int stride) {
    wait_for_previous_kernel();
    launch_dependents();
    const int lane = threadIdx.x % 32, out = blockIdx.y * 8 + threadIdx.x / 32, entry = blockIdx.x;
    if (entry >= b->rows(kind) * n_used || out >= n_out) return;
    w += (u64(experts[entry]) * n_out + out) * n;
    x += u64(entry / per) * n;
    float sum = 0.0f;
    for (int k = lane; k < n; k += 32) sum = fmaf(w[k], x[k], sum);
    sum = warp_sum(sum);
    if (lane == 0) y[u64(entry) * stride + out] = sum;
}
