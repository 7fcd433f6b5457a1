// Tensor core mma, asynchronous copies to shared memory (cp.async, bulk copies) and mbarriers.
#pragma once

#include "primitives/half.cuh"

// 1 with bulk copies, mbarriers and programmatic dependent launch (sm_90 and later).
#if WOOLLY_HOPPER || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
#define WOOLLY_BULK 1
#else
#define WOOLLY_BULK 0
#endif

// mma.m16n8k16: c += a b with f16 inputs and f32 accumulators; g = lane / 4, t = lane % 4.
// - a [16][16]: rows g and g + 8 (the order of Tile::unpack)
// - b [16][8]: column g, rows 2t, 2t + 1, 2t + 8, 2t + 9
// - c [16][8]: c[0], c[1] at row g, columns 2t, 2t + 1; c[2], c[3] at row g + 8
#ifdef WOOLLY_EMULATED
struct EmulatedMma {
    float* c;
    const u32* a;
    u32 b[2];
};
inline void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    EmulatedMma mine{c, a, {b0, b1}};
    emulated::together(ALL_LANES, &mine, [](void* const brought[32]) {
        double a[16][16], b[16][8];
        for (int lane = 0; lane < 32; lane++) {
            const EmulatedMma& one = *static_cast<EmulatedMma*>(brought[lane]);
            const int g = lane >> 2, t = lane & 3;
            for (int i = 0; i < 4; i++)
                for (int e = 0; e < 2; e++)
                    a[g + (i & 1) * 8][2 * t + (i >> 1) * 8 + e] = half_to_float(u16(one.a[i] >> (16 * e)));
            for (int i = 0; i < 2; i++)
                for (int e = 0; e < 2; e++) b[2 * t + i * 8 + e][g] = half_to_float(u16(one.b[i] >> (16 * e)));
        }
        for (int lane = 0; lane < 32; lane++) {
            const EmulatedMma& one = *static_cast<EmulatedMma*>(brought[lane]);
            for (int i = 0; i < 4; i++) {
                double sum = one.c[i];
                const int row = (lane >> 2) + (i >> 1) * 8, column = 2 * (lane & 3) + (i & 1);
                for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
                one.c[i] = float(sum);
            }
        }
    });
}
#else
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

#ifdef WOOLLY_EMULATED

// Copies 16 bytes from global to shared memory; complete after a cp_async_wait by this thread.
inline void cp_async16(void* to, const void* from) { std::memcpy(to, from, 16); }
template <bool evict_first>
inline void cp_async16_hint(void* to, const void* from) {
    cp_async16(to, from);
}
inline void cp_async_commit() {}
template <int n>
inline void cp_async_wait() {}
inline void cp_async_wait_stage(int) {}
inline void wait_for_previous_kernel() {}
inline void launch_dependents() {}
#if WOOLLY_HOPPER
#include "emulated/hopper.h"
#endif

#else

__device__ __forceinline__ u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void cp_async16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// Same, with L2 policy evict_first for data read once.
template <bool evict_first>
__device__ __forceinline__ void cp_async16_hint(void* to, const void* from) {
    if (!evict_first) return cp_async16(to, from);
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the last n committed groups of this thread are pending.
template <int n>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}
// Waits for the oldest of n stages, with one committed group per stage.
__device__ __forceinline__ void cp_async_wait_stage(int n) {
    switch (n) {
        case 1:
            cp_async_wait<0>();
            break;
        case 2:
            cp_async_wait<1>();
            break;
        case 3:
            cp_async_wait<2>();
            break;
        case 4:
            cp_async_wait<3>();
            break;
        case 5:
            cp_async_wait<4>();
            break;
        case 6:
            cp_async_wait<5>();
            break;
        case 7:
            cp_async_wait<6>();
            break;
        default:
            cp_async_wait<7>();
            break;
    }
}
// Waits until the previous kernel has completed and its writes are visible (griddepcontrol.wait). Returns at once if
// the kernel was not launched as a dependent.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if WOOLLY_BULK
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void launch_dependents() {
#if WOOLLY_BULK
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif

#if WOOLLY_BULK && !defined(WOOLLY_EMULATED)

// mbarrier in shared memory: a phase completes after `n` arrivals and all expected bytes.
__device__ __forceinline__ void mbarrier_init(u32 barrier, int n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n));
}
// Makes initialized barriers visible to other threads and to bulk copies.
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Orders writes of other blocks, already visible to this thread, before later bulk copies.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void mbarrier_expect_tx(u32 barrier, u32 n_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(n_bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra D;\nbra W;\nD:\n}" ::"r"(
            barrier),
        "r"(parity)
        : "memory");
}
// Bulk copy by one thread; the mbarrier counts its bytes. `policy` is the L2 eviction policy.
__device__ __forceinline__ void bulk_copy(u32 to, const void* from, u32 n_bytes, u32 barrier, u64 policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(to),
        "l"(from), "r"(n_bytes), "r"(barrier), "l"(policy)
        : "memory");
}
// Prefetches into L2; n_bytes is a multiple of 16.
__device__ __forceinline__ void bulk_prefetch(const void* from, u32 n_bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(n_bytes) : "memory");
}
__device__ __forceinline__ u64 evict_first_policy() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ u64 evict_last_policy() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

#endif
