// Emulated GPU: device code compiled by the host C++ compiler, so tests run the real kernels on any machine. Blocks run
// one after another, or as clusters that share memory; threads are fibers of one thread. It checks results and
// barriers, not memory ordering or speed.
//
// WOOLLY_EMULATED is 1 for the common feature set, 90 with Hopper features.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "emulated/math.h"
#include "emulated/warp.h"

// The test build searches the preprocessed text for this marker and registers each kernel.
#define KERNEL(name)          \
    struct emulated_kernel__; \
    extern "C" void kernel_##name
#define KERNEL_THREADS(n_threads, name) KERNEL(name)
#define KERNEL_CLUSTER2(n_threads, name) KERNEL(name)
#define KERNEL_BOUNDS(n_threads, n_blocks, name) KERNEL(name)
#define DYNAMIC_SHARED(name) unsigned char* const name = ::emulated::dynamic_shared()

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define NEVER_INLINE __attribute__((noinline))
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__

namespace emulated {

struct Dim {
    unsigned x = 1, y = 1, z = 1;
};

using Call = void (*)(void**);

// Calls a kernel with an array of argument pointers, as cuLaunchKernel does.
template <auto function>
struct Caller;
template <typename... Args, void (*function)(Args...)>
struct Caller<function> {
    static void call(void** args) { spread(args, std::index_sequence_for<Args...>{}); }

    template <size_t... i>
    static void spread(void** args, std::index_sequence<i...>) {
        function(*static_cast<std::remove_cv_t<Args>*>(args[i])...);
    }

    // Parameter letters: p pointer, i int, f float, l 64 bits, ? unsupported.
    template <typename T>
    static constexpr char letter() {
        if (std::is_pointer_v<T>) return 'p';
        if (std::is_integral_v<T>) return sizeof(T) == 4 ? 'i' : sizeof(T) == 8 ? 'l' : '?';
        return std::is_same_v<std::remove_cv_t<T>, float> ? 'f' : '?';
    }
    static inline const char signature[] = {letter<Args>()..., '\0'};
};

void enter(const char* name, const char* signature, Call call);

struct Entered {
    Entered(const char* name, const char* signature, Call call) { enter(name, signature, call); }
};

unsigned char* dynamic_shared();
// Shared memory of a block of the cluster.
unsigned char* dynamic_shared(int rank);

}  // namespace emulated

extern emulated::Dim threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;
