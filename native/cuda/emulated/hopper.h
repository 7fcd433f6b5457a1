// Hopper features of the emulated GPU: shared addresses as integers, mbarriers that count bytes, synchronous bulk
// copies, and clusters with distributed shared memory.
#pragma once

#include <cstdint>
#include <cstring>

namespace emulated {

// mbarrier. A phase completes after all arrivals and all expected bytes.
struct Barrier {
    uint8_t phase, n_expected, n_missing, pad;
    int32_t n_bytes;

    void end() {
        if (n_missing != 0 || n_bytes != 0) return;
        phase ^= 1;
        n_missing = n_expected;
    }
    void arrive() {
        if (n_missing == 0) fail("more arrive at a barrier than it was started for");
        n_missing--;
        end();
    }
};
static_assert(sizeof(Barrier) == 8);

inline Barrier& barrier_at(uint32_t address, int rank) {
    if (address % 8 != 0) fail("a barrier is not aligned");
    return *reinterpret_cast<Barrier*>(dynamic_shared(rank) + address);
}
inline Barrier& barrier_at(uint32_t address) { return *reinterpret_cast<Barrier*>(dynamic_shared() + address); }

inline void copy_bytes(unsigned char* shared, uint32_t to, const void* from, uint32_t n_bytes, Barrier& barrier) {
    if (to % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0 || n_bytes % 16 != 0)
        fail("a bulk copy is not of aligned sixteens");
    std::memcpy(shared + to, from, n_bytes);
    barrier.n_bytes -= static_cast<int32_t>(n_bytes);
    barrier.end();
}

}  // namespace emulated

inline uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(static_cast<const unsigned char*>(p) - emulated::dynamic_shared());
}
inline void mbarrier_init(uint32_t barrier, int n) {
    emulated::barrier_at(barrier) = {0, static_cast<uint8_t>(n), static_cast<uint8_t>(n), 0, 0};
}
inline void mbarrier_init_fence() {}
inline void fence_async_proxy() {}
inline void mbarrier_expect_tx(uint32_t barrier, uint32_t n_bytes) {
    emulated::barrier_at(barrier).n_bytes += static_cast<int32_t>(n_bytes);
    emulated::barrier_at(barrier).arrive();
}
inline void mbarrier_arrive(uint32_t barrier) { emulated::barrier_at(barrier).arrive(); }
inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    emulated::await_phase(&emulated::barrier_at(barrier).phase, static_cast<uint8_t>(parity));
}
inline void bulk_copy(uint32_t to, const void* from, uint32_t n_bytes, uint32_t barrier, unsigned long long) {
    emulated::copy_bytes(emulated::dynamic_shared(), to, from, n_bytes, emulated::barrier_at(barrier));
}
inline void bulk_prefetch(const void*, uint32_t) {}
inline unsigned long long evict_first_policy() { return 0; }
inline unsigned long long evict_last_policy() { return 0; }

// Clusters of two.
inline void cluster_sync() { emulated::group_barrier(); }
inline void mbarrier_arrive_remote(uint32_t barrier, uint32_t rank) {
    emulated::barrier_at(barrier, static_cast<int>(rank)).arrive();
}
inline void bulk_copy_multicast(uint32_t to, const void* from, uint32_t n_bytes, uint32_t barrier, unsigned long long) {
    for (int rank = 0; rank < 2; rank++)
        emulated::copy_bytes(emulated::dynamic_shared(rank), to, from, n_bytes, emulated::barrier_at(barrier, rank));
}
inline void st_async_float4(uint32_t to, float4 v, uint32_t barrier, uint32_t rank) {
    const int there = static_cast<int>(rank);
    emulated::copy_bytes(emulated::dynamic_shared(there), to, &v, 16, emulated::barrier_at(barrier, there));
}
