// Which experts few rows have, as kernels of their products learn it. Of up to 8 rows each block of the first product
// chooses them from the logits by itself: that takes it as long as it would take one block for all, for which they all
// would wait. The first block leaves what it chose to later kernels. Of more rows moe_route has chosen.
#pragma once

#include "experts/moe_choose.cuh"

constexpr int ITEM_ROWS = 8;  // most entries of an item, and most rows that blocks choose for

// Where a kernel finds the experts of its rows.
struct Source {
    Bundle* items;        // in the order of experts, and
    int* members;         // their entries
    const float* logits;  // null, or what blocks choose from: then they leave all other things here
    u32* ready;           // null, or where the first block says that it has
    Choice choice;
    int* experts;  // of entries, and their shares
    float* shares;
    int n_rows;

    // Waits for what the first block of a kernel leaves: all blocks of that one have begun.
    __device__ __forceinline__ void await() const {
        if (logits != nullptr || ready == nullptr) return;
        if (threadIdx.x % 32 == 0)
            while (load_acquire(ready) == 0) spin_wait();
        __syncwarp();
    }
};
#define SOURCE                                                                                                       \
    Bundle *items, int *members, int kind, const float *logits, u32 *ready, int *entry_experts, float *entry_shares, \
        CHOICE
#define SOURCE_OF(n_rows) {items, members, logits, ready, CHOICE_OF, entry_experts, entry_shares, n_rows}

// An item in shared memory.
struct Near {
    int expert, n_rows, pad[2];
    int entries[ITEM_ROWS], rows[ITEM_ROWS];  // of the batch
    float backs[ITEM_ROWS];                   // inverses of the powers of the rows of entries
};
// The strips of a block, counted over all items, and the first item that they belong to.
struct Own {
    int n_all, begin, end, first;  // n_all: items
    __device__ __forceinline__ Own(int n_items, int n_panels) : n_all(n_items) {
        const int total = n_items * n_panels, block = blockIdx.x, each = total / int(gridDim.x);
        const int more = total - each * int(gridDim.x);
        begin = each * block + min(block, more), end = begin + each + (block < more);
        first = begin / n_panels;
    }
    __device__ __forceinline__ int n_items(int n_panels) const {
        return begin < end ? (end - 1) / n_panels - first + 1 : 0;
    }
};

// Chosen experts and their shares, in shared memory: entry after entry.
struct Chosen {
    int* experts;
    float* shares;
    u32* marks;  // of each expert: the rows that chose it, and above them the number of its item; at last, how many
    __device__ __forceinline__ Chosen(u8* memory, int n_rows, int n_used) {
        experts = reinterpret_cast<int*>(memory);
        shares = reinterpret_cast<float*>(experts + n_rows * n_used);
        marks = reinterpret_cast<u32*>(shares + n_rows * n_used);
    }
};
// Puts the entries of each expert together, and returns how many items there are. By the block.
__device__ __forceinline__ int number_items(const Chosen& chosen, int n_entries, int n_experts, int n_used) {
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

// Items of the block's strips from memory to shared memory. By the block, of which all see them then.
template <class Rows>
__device__ __forceinline__ void copy_items(const Source& from, const Own& own, int n, Near* near,
                                           const Rows& of_batch) {
#pragma unroll 1
    for (int i = threadIdx.x; i < n * ITEM_ROWS; i += int(blockDim.x)) {
        const int4 item = __ldcg(reinterpret_cast<const int4*>(from.items + 1 + own.first + i / ITEM_ROWS));
        const int row = i % ITEM_ROWS;
        Near& to = near[i / ITEM_ROWS];
        if (row == 0) to.expert = item.x, to.n_rows = item.z;
        if (row >= item.z) continue;
        to.entries[row] = __ldcg(from.members + item.y + row), to.rows[row] = to.entries[row] / from.choice.n_used;
        to.backs[row] = of_batch.back(to.rows[row]);
    }
    __syncthreads();
}

// Chooses experts, and puts the items of the block's strips to shared memory; gives these strips. `space`:
// room_to_choose of mixtures.py. By the block, of which all see them then. IS_ONE: there is one row, and its entries
// are the items.
template <bool IS_ONE, class Rows>
__device__ __forceinline__ Own choose_items(const Source& from, int n_panels, Near* near, u8* space,
                                            const Rows& of_batch) {
    const int tid = threadIdx.x, n_threads = blockDim.x, n_used = from.choice.n_used, n_entries = from.n_rows * n_used;
    const Chosen chosen(space, from.n_rows, n_used);
#pragma unroll 1
    for (int row = __shfl_sync(ALL_LANES, tid / 32, 0); row < from.n_rows; row += n_threads / 32)
        choose_soon(from.choice, from.logits + u64(row) * from.choice.n_experts, chosen.experts + row * n_used,
                    chosen.shares + row * n_used);
    for (int e = tid; !IS_ONE && e < from.choice.n_experts; e += n_threads) chosen.marks[e] = 0;
    __syncthreads();
    const Own own(IS_ONE ? n_used : number_items(chosen, n_entries, from.choice.n_experts, n_used), n_panels);
    const int n = own.n_items(n_panels);
    const bool is_first = blockIdx.x == 0;
#pragma unroll 1
    for (int i = tid; i < n_entries; i += n_threads) {
        const int expert = chosen.experts[i], row = i / n_used;
        const u32 mark = IS_ONE ? u32(i) << 8 | 1 : chosen.marks[expert], rows = mark & 255, item = mark >> 8;
        const int before = __popc(rows & ((1u << row) - 1)), at = int(item) - own.first;
        if (at >= 0 && at < n) {
            near[at].entries[before] = i, near[at].rows[before] = row;
            near[at].backs[before] = of_batch.back(row);
            if (before == 0) near[at].expert = expert, near[at].n_rows = __popc(rows);
        }
        if (!is_first) continue;
        from.experts[i] = expert, from.shares[i] = chosen.shares[i];
        from.members[item * ITEM_ROWS + before] = i;
        if (before == 0) from.items[1 + item] = {expert, int(item) * ITEM_ROWS, __popc(rows), 0};
        if (i == n_entries - 1) from.items[0] = {own.n_all, 0, 0, 0};
    }
    __syncthreads();
    if (is_first && tid == 0) store_release(from.ready, 1);
    return own;
}

// Brings the items of the block's strips to shared memory, and gives these strips. Rows say what `backs` are.
template <bool IS_ONE, bool MAY_CHOOSE, class Rows>
__device__ __forceinline__ Own bring_items(const Source& from, int n_panels, Near* near, u8* space,
                                           const Rows& of_batch) {
    if (MAY_CHOOSE && from.logits != nullptr) return choose_items<IS_ONE>(from, n_panels, near, space, of_batch);
    from.await();
    const Own own(IS_ONE ? from.choice.n_used : __ldcg(&from.items[0].expert), n_panels);
    copy_items(from, own, own.n_items(n_panels), near, of_batch);
    return own;
}
