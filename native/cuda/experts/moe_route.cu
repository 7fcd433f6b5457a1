// Fused routing of small batches: norm, f16 conversion, router logits, top-k and sort by expert in one kernel.
//
// A block has some rows and some experts; the first block of each row group also converts its rows to f16. The last
// block to finish the logits of its rows selects their experts, and the last of those sorts all entries. With `ready`,
// the blocks of the product kernel select experts instead (routes_in_products of moe_products.py), and an extra block
// converts the rows, because all others would wait for the slowest one.
#include "experts/moe_rows.cuh"
#include "experts/moe_topk.cuh"

namespace {

// WEIGHTS_IN_REGISTERS: float4s of router weights per lane, loaded before the rows
constexpr int WARPS = 8, WEIGHTS_IN_REGISTERS = 16;

// True in the last of n blocks to arrive; it sees the writes of the others (via L2).
__device__ inline bool is_last(u32* arrivals, u32 n) {
    __shared__ int last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(arrivals, 1u) + 1 == n;
        if (last) *arrivals = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

}  // namespace

// grid: (experts / 8, plus one with `ready`; rows / n_each). Shared memory: a row, and three numbers per expert and row
// of the block.
KERNEL_BOUNDS(256, 2, moe_route)
(const Batch* b, int kind, int n_each, const float* x, const float* norm, float eps, int n, int n_padded, float* normed,
 u8* x_f16, float* inv_scales, const float* routed, int n_routed, const float* w, const float* bias, float* logits,
 ROUTER_PARAMS, int* experts, float* shares, u32* max_abs, int max_item_rows, int* members, ExpertRows* items,
 u32* arrivals, u32* ready) {
    DYNAMIC_SHARED(shared);
    float* here = reinterpret_cast<float*>(shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, expert = blockIdx.x * WARPS + warp;
    const int width = routed == nullptr ? n : n_routed, first = blockIdx.y * n_each;
    const bool has_own = ready != nullptr, is_converter = blockIdx.x == (has_own ? gridDim.x - 1 : 0);
    const float* mine = w + u64(min(expert, n_experts - 1)) * width;
    float4 weights[WEIGHTS_IN_REGISTERS];
#pragma unroll
    for (int i = 0; i < WEIGHTS_IN_REGISTERS; i++)
        if (4 * lane + 128 * i < width) weights[i] = load_four(mine, 4 * lane + 128 * i, width);
    const RowNormalizer normer(norm, eps, n);
    launch_dependents();
    wait_for_previous_kernel();
    const int end = min(first + n_each, b->rows(kind));
    for (int row = first; row < end; row++) {
        if (routed == nullptr || is_converter) {
            const float row_max = normer.apply(x + u64(row) * n, here);
            __syncthreads();
            if (is_converter) {
                to_f16([&](int k) { return here[k]; }, row_max, n, n_padded, x_f16 + u64(row) * n_padded * 2,
                       inv_scales + row);
                if (normed != nullptr)
                    for (int k = threadIdx.x; k < n; k += blockDim.x) normed[u64(row) * n + k] = here[k];
                if (has_own) {
                    __syncthreads();
                    continue;
                }
            }
        }
        if (routed != nullptr) __syncthreads();
        if (routed != nullptr) {
            for (int k = threadIdx.x; k < width; k += blockDim.x) here[k] = __ldcg(routed + u64(row) * width + k);
            __syncthreads();
        }
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < WEIGHTS_IN_REGISTERS; i++)
            if (const int k = 4 * lane + 128 * i; k < width) sum = dot4(weights[i], load_four(here, k, width), sum);
        for (int k = 4 * lane + 128 * WEIGHTS_IN_REGISTERS; k < width; k += 128)
            sum = dot4(load_four(mine, k, width), load_four(here, k, width), sum);
        sum = warp_sum(sum);
        if (lane == 0 && expert < n_experts)
            logits[u64(row) * n_experts + expert] = bias == nullptr ? sum : sum + bias[expert];
        __syncthreads();
    }
    if (has_own) {  // blocks of the product kernel select experts
        if (is_converter && blockIdx.y == 0 && threadIdx.x == 0) *ready = 0;
        for (int i = first * n_used + int(threadIdx.x); is_converter && i < end * n_used; i += int(blockDim.x))
            max_abs[i] = 0;
        return;
    }
    if (!is_last(arrivals + 1 + blockIdx.y, gridDim.x)) return;
    const int pitch = (max(n, width) + 3) / 4 * 4;
    for (int row = first + warp; row < end; row += WARPS) {
        topk_experts(ROUTER_ARGS, logits + u64(row) * n_experts, here + pitch + warp * 3 * n_experts,
                     experts + row * n_used, shares + row * n_used);
        for (int i = lane; i < n_used; i += 32) max_abs[row * n_used + i] = 0;
    }
    const int n_rows = b->rows(kind);
    if (n_rows == 1) {
        __syncwarp();
        if (warp != 0) return;
        for (int i = lane; i < n_used; i += 32) {
            members[i] = i;
            items[1 + i] = {__ldcg(experts + i), i, 1, 0};
        }
        if (lane == 0) items[0] = {n_used, n_used, 0, 0};
    } else if (is_last(arrivals, gridDim.y)) {
        group_entries(experts, n_rows * n_used, n_experts, max_item_rows, 1, reinterpret_cast<int*>(here + pitch),
                      members, nullptr, items);
    }
}
