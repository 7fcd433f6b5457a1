// Barriers, warp exchanges and atomics of the emulated GPU.
#pragma once

#include <cstdint>
#include <cstring>

namespace emulated {

// Warp exchange: each lane of `mask` contributes a pointer; the last one calls `complete` with all of them (null
// outside the mask), then all continue.
using Complete = void (*)(void* const brought[32]);
void together(uint32_t mask, void* mine, Complete complete);

void block_barrier();
// Votes over the block: true if any thread votes true.
bool block_any(bool vote);
// Barrier of all blocks of the cluster.
void group_barrier();
// Waits until *phase differs from `old`.
void await_phase(const uint8_t* phase, uint8_t old);
void named_barrier(int id, int n_threads);
int lane();

// Ends the launch with an error.
[[noreturn]] void fail(const char* sentence);

template <typename T>
struct Shuffled {
    T value, result;
    int from;  // source lane
};

template <typename T>
T shuffle(uint32_t mask, T value, int from) {
    Shuffled<T> mine{value, value, from};
    together(mask, &mine, [](void* const brought[32]) {
        for (int i = 0; i < 32; i++) {
            if (brought[i] == nullptr) continue;
            auto* one = static_cast<Shuffled<T>*>(brought[i]);
            if (brought[one->from] == nullptr) fail("a shuffle reads a lane outside its mask");
            one->result = static_cast<Shuffled<T>*>(brought[one->from])->value;
        }
    });
    return mine.result;
}

struct Voted {
    bool value;
    uint32_t result;
};

inline uint32_t ballot(uint32_t mask, bool value) {
    Voted mine{value, 0};
    together(mask, &mine, [](void* const brought[32]) {
        uint32_t bits = 0;
        for (int i = 0; i < 32; i++)
            if (brought[i] != nullptr && static_cast<Voted*>(brought[i])->value) bits |= 1u << i;
        for (int i = 0; i < 32; i++)
            if (brought[i] != nullptr) static_cast<Voted*>(brought[i])->result = bits;
    });
    return mine.result;
}

// First lane of the `width`-lane segment of `lane`.
inline int run_of(int lane, int width) { return lane / width * width; }

}  // namespace emulated

inline void __syncthreads() { emulated::block_barrier(); }
inline int __syncthreads_or(int any) { return emulated::block_any(any != 0); }
inline void __syncwarp(uint32_t mask = 0xFFFFFFFFu) {
    emulated::together(mask, nullptr, [](void* const*) {});
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

template <typename T>
T __shfl_sync(uint32_t mask, T value, int from, int width = 32) {
    return emulated::shuffle(mask, value, emulated::run_of(emulated::lane(), width) + from % width);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32) {
    const int lane = emulated::lane(), from = lane ^ bits;
    return emulated::shuffle(mask, value, from < emulated::run_of(lane, width) + width ? from : lane);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, int n, int width = 32) {
    const int lane = emulated::lane(), from = lane + n;
    return emulated::shuffle(mask, value, from < emulated::run_of(lane, width) + width ? from : lane);
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, int n, int width = 32) {
    const int lane = emulated::lane(), from = lane - n;
    return emulated::shuffle(mask, value, from >= emulated::run_of(lane, width) ? from : lane);
}
inline uint32_t __ballot_sync(uint32_t mask, bool value) { return emulated::ballot(mask, value); }
inline int __any_sync(uint32_t mask, bool value) { return emulated::ballot(mask, value) != 0; }
inline int __all_sync(uint32_t mask, bool value) { return emulated::ballot(mask, value) == mask; }
inline uint32_t __activemask() { return 0xFFFFFFFFu; }

// Atomic without locks: one fiber runs at a time.
template <typename T, typename U>
T atomicAdd(T* at, U value) {
    const T old = *at;
    *at = static_cast<T>(old + static_cast<T>(value));
    return old;
}
template <typename T, typename U>
T atomicSub(T* at, U value) {
    const T old = *at;
    *at = static_cast<T>(old - static_cast<T>(value));
    return old;
}
template <typename T, typename U>
T atomicMax(T* at, U value) {
    const T old = *at;
    if (static_cast<T>(value) > old) *at = static_cast<T>(value);
    return old;
}
template <typename T, typename U>
T atomicMin(T* at, U value) {
    const T old = *at;
    if (static_cast<T>(value) < old) *at = static_cast<T>(value);
    return old;
}
template <typename T, typename U>
T atomicOr(T* at, U value) {
    const T old = *at;
    *at = old | static_cast<T>(value);
    return old;
}
template <typename T, typename U>
T atomicAnd(T* at, U value) {
    const T old = *at;
    *at = old & static_cast<T>(value);
    return old;
}
template <typename T, typename U>
T atomicExch(T* at, U value) {
    const T old = *at;
    *at = static_cast<T>(value);
    return old;
}
template <typename T, typename U, typename V>
T atomicCAS(T* at, U compared, V value) {
    const T old = *at;
    if (old == static_cast<T>(compared)) *at = static_cast<T>(value);
    return old;
}
