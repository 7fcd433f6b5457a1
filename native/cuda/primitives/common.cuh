// Shared by all device code: integer types, kernel declarations, and the batch layout. NVRTC compiles it without other
// headers; the emulated GPU compiles it as C++ (emulated/device.h).
#pragma once

// 1 with sm_90a features: clusters, wgmma, bulk copies.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || (defined(WOOLLY_EMULATED) && WOOLLY_EMULATED >= 90)
#define WOOLLY_HOPPER 1
#else
#define WOOLLY_HOPPER 0
#endif

#ifdef WOOLLY_EMULATED
#include "emulated/device.h"
#else
#define KERNEL(name) extern "C" __global__ void name
// Kernel of at most n_threads threads per block, one block per multiprocessor: ptxas may use all registers.
#define KERNEL_THREADS(n_threads, name) extern "C" __global__ void __launch_bounds__(n_threads, 1) name
// Kernel of at most n_threads threads per block, n_blocks blocks per multiprocessor.
#define KERNEL_BOUNDS(n_threads, n_blocks, name) extern "C" __global__ void __launch_bounds__(n_threads, n_blocks) name
// Kernel in clusters of two blocks on Hopper (distributed shared memory), single blocks elsewhere.
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

// KV cache of one attention entry of Plan.state.
struct Entry {
    u8* k;
    u8* v;
    const int* pages;  // [n_sequences][max_pages]
    int window;
    int pad;
};

// Inputs of one run, at a fixed device address. The host fills it before each run.
struct Batch {
    int n_rows, n_sequences, n_output, max_pages;
    int n_snapshots, n_adapters, is_hidden_normed, max_length;  // max_length: largest position + 1
    const int* tokens;                                          // [n_rows]
    const int* positions;                                       // [n_rows]
    const int* sequences;                                       // [n_rows]
    const int* offsets;                                         // [n_sequences + 1]
    const int* output_rows;                                     // [n_output]
    const int* slots_in;                                        // [n_sequences], -1: zeros
    const int* slots_out;                                       // [n_sequences]
    const int* snapshots;                                       // [n_snapshots][2]: row, slot
    const float* adapters;                                      // [n_sequences][n_adapters]
    const float* hidden;                                        // [n_rows][width]
    const float* cosines;                                       // [n_rope_rows][rope_width]: RoPE
    const float* sines;                                         // [n_rope_rows][rope_width]: RoPE
    float* const* slots;                                        // [entry of Plan.state]: [n_slots][numbers]
    const Entry* entries;                                       // [entry of Plan.state]
    int rope_width;
    int pad;
    const int* rope_rows;         // [n_rows]: row of cosines and sines; usually the position
    const int* attn_ranges;       // [n_rows][2]: visible positions (first, end) beyond the causal ones, or null
    const float* inputs_embeds;   // [..][embeds_width]: embeddings that replace tokens, or null
    const int* embeds_at;         // [n_rows]: index into inputs_embeds, -1 for tokens; or null
    const int* gather_rows;       // [n_rows][n_gather]: table rows added to a row, -1: none
    const float* gather_weights;  // [n_rows][n_gather]: their weights
    int embeds_width, n_gather;

    // Number of rows of a value. kind 0: all rows of the batch, 1: only rows that need logits.
    __device__ int rows(int kind) const { return kind ? n_output : n_rows; }
};

// Loads a flag that another block sets with store_release; the writes before that store are visible afterwards.
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
// For a loop that polls another block. Only blocks with a lower index may be awaited: later ones may not be scheduled
// until this block exits.
__device__ inline void spin_wait() {
#ifdef WOOLLY_EMULATED
    emulated::fail("a block waits for what no block before it stored");
#endif
}

// Waits for `n_threads` threads of the block (a multiple of 32) at named barrier `id` (1 to 15).
__device__ inline void named_barrier(int id, int n_threads) {
#ifdef WOOLLY_EMULATED
    emulated::named_barrier(id, n_threads);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
#endif
}
