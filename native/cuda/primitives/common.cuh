// What all device code shares: names of numbers, how a kernel is declared, and the batch as kernels see it.
// A compiler of CUDA reads it without any header beside these; the emulated GPU reads it as C++ (emulated/device.h).
#pragma once

// Whether there is all that only Hopper has: pairs of blocks, wgmma, bulk copies.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || (defined(WOOLLY_EMULATED) && WOOLLY_EMULATED >= 90)
#define WOOLLY_HOPPER 1
#else
#define WOOLLY_HOPPER 0
#endif

#ifdef WOOLLY_EMULATED
#include "emulated/device.h"
#else
#define KERNEL(name) extern "C" __global__ void name
// For blocks of at most that many threads: the compiler may use as many registers as they leave each.
#define KERNEL_THREADS(n_threads, name) extern "C" __global__ void __launch_bounds__(n_threads, 1) name
// ... of which that many are to run on a multiprocessor.
#define KERNEL_BOUNDS(n_threads, n_blocks, name) extern "C" __global__ void __launch_bounds__(n_threads, n_blocks) name
// ... in pairs where the generation has them: neighbours that reach each other's shared memory.
#if WOOLLY_HOPPER
#define KERNEL_CLUSTER2(n_threads, name) \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(n_threads, 1) name
#else
#define KERNEL_CLUSTER2(n_threads, name) KERNEL_THREADS(n_threads, name)
#endif
#define NEVER_INLINE __noinline__
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;

constexpr u32 ALL_LANES = 0xFFFFFFFFu;

// K and V of one entry of the plan's state.
struct Entry {
    u8* k;
    u8* v;
    const int* pages;  // [n_sequences][max_pages]
    int window;
    int pad;
};

// The inputs of one run. One lies on the device at a fixed address; the host fills it before each run.
struct Batch {
    int n_rows, n_sequences, n_output, max_pages;
    int n_keeps, n_adapters, is_hidden_normed, max_length;  // max_length: the largest position + 1
    const int* tokens;                                      // [n_rows]
    const int* positions;                                   // [n_rows]
    const int* sequences;                                   // [n_rows]
    const int* offsets;                                     // [n_sequences + 1]
    const int* output_rows;                                 // [n_output]
    const int* slots_in;                                    // [n_sequences], -1: zeros
    const int* slots_out;                                   // [n_sequences]
    const int* keeps;                                       // [n_keeps][2]: row, slot
    const float* adapters;                                  // [n_sequences][n_adapters]
    const float* hidden;                                    // [n_rows][width]
    const float* cosines;                                   // [turn_rows][n_turns]
    const float* sines;                                     // [turn_rows][n_turns]
    float* const* slots;                                    // by index in Plan.state: [n_slots][numbers]
    const Entry* entries;                                   // by index in Plan.state
    int n_turns;
    int pad;
    const int* turn_rows;   // [n_rows]: the row of cosines and sines that each turns by; mostly its position
    const int* sees;        // [n_rows][2]: positions (first, end) that a row sees beside those before it, or null
    const float* brought;   // [..][brought_width]: rows in place of tokens, or null
    const int* brought_at;  // [n_rows]: which of them stands there, -1 for tokens; or null
    const int* places;      // [n_rows][n_places]: rows of tables that are added to a row, -1: none
    const float* shares;    // [n_rows][n_places]: how much of each
    int brought_width, n_places;

    // Rows of a value: kind 1 has the rows whose logits are wanted, kind 0 all of the batch.
    __device__ int rows(int kind) const { return kind ? n_output : n_rows; }
};

// A number that another block stores by store_for_blocks: what that block wrote before is there then.
__device__ inline u32 load_acquire(const u32* from) {
#ifdef WOOLLY_EMULATED
    return *from;
#else
    u32 x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
#endif
}
__device__ inline void store_release(u32* to, u32 x) {
#ifdef WOOLLY_EMULATED
    *to = x;
#else
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
#endif
}
// In a loop that ends when another block stores something. Only a block before this one may be waited for: those behind
// it may have no multiprocessor until this one leaves.
__device__ inline void spin_wait() {
#ifdef WOOLLY_EMULATED
    emulated::fail("a block waits for what no block before it stored");
#endif
}

// Waits for `n_threads` threads of the block, a multiple of 32, that name the same barrier (1 to 15).
__device__ inline void named_barrier(int id, int n_threads) {
#ifdef WOOLLY_EMULATED
    emulated::named_barrier(id, n_threads);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
#endif
}
