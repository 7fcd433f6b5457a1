// Routing inside the product kernels of small batches. For up to 8 rows, each block of the gate/up product selects
// experts from the logits itself: it takes as long as one block would, for which all others would wait. The first block
// publishes the routing for later kernels. For more rows moe_route has done it.
#pragma once

#include "experts/moe_topk.cuh"

constexpr int ITEM_ROWS = 8;  // maximum of entries per item, and of rows that blocks route themselves

// Routing of a kernel's rows, or the logits to compute it from.
struct Routing {
    ExpertRows* items;    // sorted by expert
    int* members;         // entries of the items
    const float* logits;  // if not null, blocks route from these and the first block fills in the rest
    u32* ready;           // if not null, flag set by the first block after that
    RouterParams router;
    int* experts;  // [entries]
    float* shares;
    int n_rows;

    // Waits for the first block of the routing kernel; all its blocks have started.
    __device__ __forceinline__ void await() const {
        if (logits != nullptr || ready == nullptr) return;
        if (threadIdx.x % 32 == 0)
            while (load_acquire(ready) == 0) spin_wait();
        __syncwarp();
    }
};
#define ROUTING_PARAMS                                                                              \
    ExpertRows *items, int *members, int kind, const float *logits, u32 *ready, int *entry_experts, \
        float *entry_shares, ROUTER_PARAMS
#define ROUTING_ARGS(n_rows) {items, members, logits, ready, ROUTER_ARGS, entry_experts, entry_shares, n_rows}

// Work item in shared memory.
struct SharedItem {
    int expert, n_rows, pad[2];
    int entries[ITEM_ROWS], rows[ITEM_ROWS];  // rows: of the batch
    float inv_scales[ITEM_ROWS];              // inverse scales of the entries' rows
};
// Panels of this block, counted over all items, and the first item that they belong to.
struct PanelRange {
    int n_all, begin, end, first;  // n_all: number of items
    __device__ __forceinline__ PanelRange(int n_items, int n_panels) : n_all(n_items) {
        const int total = n_items * n_panels, block = blockIdx.x, each = total / int(gridDim.x);
        const int more = total - each * int(gridDim.x);
        begin = each * block + min(block, more), end = begin + each + (block < more);
        first = begin / n_panels;
    }
    __device__ __forceinline__ int n_items(int n_panels) const {
        return begin < end ? (end - 1) / n_panels - first + 1 : 0;
    }
};

// Top-k result of all rows in shared memory, entry after entry.
struct BlockTopk {
    int* experts;
    float* shares;
    u32* marks;  // [n_experts + 1] per expert: bit mask of its rows, item number << 8; last: number of items
    __device__ __forceinline__ BlockTopk(u8* memory, int n_rows, int n_used) {
        experts = reinterpret_cast<int*>(memory);
        shares = reinterpret_cast<float*>(experts + n_rows * n_used);
        marks = reinterpret_cast<u32*>(shares + n_rows * n_used);
    }
};
// Groups entries by expert and returns the number of items. Called by all threads.
__device__ __forceinline__ int count_items(const BlockTopk& chosen, int n_entries, int n_experts, int n_used) {
    const int tid = threadIdx.x, n_threads = blockDim.x, lane = tid % 32;
    for (int i = tid; i < n_entries; i += n_threads) atomicOr(chosen.marks + chosen.experts[i], 1u << (i / n_used));
    __syncthreads();
    if (tid < 32) {
        int before = 0;
        for (int base = 0; base < n_experts; base += 32) {
            const u32 rows = base + lane < n_experts ? chosen.marks[base + lane] : 0;
            const u32 used = __ballot_sync(ALL_LANES, rows != 0);
            if (rows != 0) chosen.marks[base + lane] = rows | u32(before + __popc(used & ((1u << lane) - 1))) << 8;
            before += __popc(used);
        }
        if (lane == 0) chosen.marks[n_experts] = u32(before);
    }
    __syncthreads();
    return int(chosen.marks[n_experts]);
}

// Copies the items of this block's panels to shared memory. Called by all threads; visible to all afterwards.
template <class Rows>
__device__ __forceinline__ void load_routed_items(const Routing& from, const PanelRange& range, int n,
                                                  SharedItem* items_of_block, const Rows& rows_of_batch) {
#pragma unroll 1
    for (int i = threadIdx.x; i < n * ITEM_ROWS; i += int(blockDim.x)) {
        const int4 item = __ldcg(reinterpret_cast<const int4*>(from.items + 1 + range.first + i / ITEM_ROWS));
        const int row = i % ITEM_ROWS;
        SharedItem& to = items_of_block[i / ITEM_ROWS];
        if (row == 0) to.expert = item.x, to.n_rows = item.z;
        if (row >= item.z) continue;
        to.entries[row] = __ldcg(from.members + item.y + row), to.rows[row] = to.entries[row] / from.router.n_used;
        to.inv_scales[row] = rows_of_batch.inv_scale(to.rows[row]);
    }
    __syncthreads();
}

// Selects experts, stores the items of this block's panels in shared memory and returns the panels. `space`:
// routing_bytes of moe_products.py. Called by all threads; visible to all afterwards. IS_ONE: a single row, whose
// entries are the items.
template <bool IS_ONE, class Rows>
__device__ __forceinline__ PanelRange route_items(const Routing& from, int n_panels, SharedItem* items_of_block,
                                                  u8* space, const Rows& rows_of_batch) {
    const int tid = threadIdx.x, n_threads = blockDim.x, n_used = from.router.n_used, n_entries = from.n_rows * n_used;
    const BlockTopk chosen(space, from.n_rows, n_used);
#pragma unroll 1
    for (int row = __shfl_sync(ALL_LANES, tid / 32, 0); row < from.n_rows; row += n_threads / 32)
        topk_small(from.router, from.logits + u64(row) * from.router.n_experts, chosen.experts + row * n_used,
                   chosen.shares + row * n_used);
    for (int e = tid; !IS_ONE && e < from.router.n_experts; e += n_threads) chosen.marks[e] = 0;
    __syncthreads();
    const PanelRange range(IS_ONE ? n_used : count_items(chosen, n_entries, from.router.n_experts, n_used), n_panels);
    const int n = range.n_items(n_panels);
    const bool is_first = blockIdx.x == 0;
#pragma unroll 1
    for (int i = tid; i < n_entries; i += n_threads) {
        const int expert = chosen.experts[i], row = i / n_used;
        const u32 mark = IS_ONE ? u32(i) << 8 | 1 : chosen.marks[expert], rows = mark & 255, item = mark >> 8;
        const int before = __popc(rows & ((1u << row) - 1)), at = int(item) - range.first;
        if (at >= 0 && at < n) {
            items_of_block[at].entries[before] = i, items_of_block[at].rows[before] = row;
            items_of_block[at].inv_scales[before] = rows_of_batch.inv_scale(row);
            if (before == 0) items_of_block[at].expert = expert, items_of_block[at].n_rows = __popc(rows);
        }
        if (!is_first) continue;
        from.experts[i] = expert, from.shares[i] = chosen.shares[i];
        from.members[item * ITEM_ROWS + before] = i;
        if (before == 0) from.items[1 + item] = {expert, int(item) * ITEM_ROWS, __popc(rows), 0};
        if (i == n_entries - 1) from.items[0] = {range.n_all, 0, 0, 0};
    }
    __syncthreads();
    if (is_first && tid == 0) store_release(from.ready, 1);
    return range;
}

// Loads or computes the items of this block's panels and returns the panels. `rows_of_batch` provides inverse scales.
template <bool IS_ONE, bool MAY_CHOOSE, class Rows>
__device__ __forceinline__ PanelRange load_items(const Routing& from, int n_panels, SharedItem* items_of_block,
                                                 u8* space, const Rows& rows_of_batch) {
    if (MAY_CHOOSE && from.logits != nullptr)
        return route_items<IS_ONE>(from, n_panels, items_of_block, space, rows_of_batch);
    from.await();
    const PanelRange range(IS_ONE ? from.router.n_used : __ldcg(&from.items[0].expert), n_panels);
    load_routed_items(from, range, range.n_items(n_panels), items_of_block, rows_of_batch);
    return range;
}
