// Subset of Metal's standard library with which the host's C++ compiler builds the kernels that Slang generates for
// Metal, so that tests run the exact source on any machine. native/cuda/emulated runs threads as fibers and checks
// barriers and memory accesses. Address spaces are dropped; threadgroup memory is static, because groups run one after
// another (tests/runtime/metal/text.py).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulated/device.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned uint;
typedef unsigned long ulong;

namespace metal {

inline void check(bool is_inside) {
    if (!is_inside) __builtin_trap();
}

template <class T, int n>
struct vec;
template <class T>
struct vec<T, 2> {
    T x, y;
    vec() = default;
    vec(T a, T b) : x(a), y(b) {}
    explicit vec(T a) : x(a), y(a) {}
    T& operator[](int i) { return check(i >= 0 && i < 2), (&x)[i]; }
    vec operator+(vec o) const { return {T(x + o.x), T(y + o.y)}; }
};
template <class T>
struct vec<T, 3> {
    T x, y, z;
};
template <class T>
struct vec<T, 4> {
    T x, y, z, w;
    vec() = default;
    vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
    explicit vec(T a) : x(a), y(a), z(a), w(a) {}
    template <class From>
    explicit vec(vec<From, 4> o) : x(T(o.x)), y(T(o.y)), z(T(o.z)), w(T(o.w)) {}
    T& operator[](int i) { return check(i >= 0 && i < 4), (&x)[i]; }
    const T& operator[](int i) const { return check(i >= 0 && i < 4), (&x)[i]; }
    vec operator+(vec o) const { return {T(x + o.x), T(y + o.y), T(z + o.z), T(w + o.w)}; }
};
template <class T, int n>
struct array {
    T values[n];
    T& operator[](int i) { return check(i >= 0 && i < n), values[i]; }
    const T& operator[](int i) const { return check(i >= 0 && i < n), values[i]; }
};

typedef vec<int, 2> int2;
typedef vec<int, 4> int4;
typedef vec<uint, 2> uint2;
typedef vec<uint, 3> uint3;
typedef vec<uint, 4> uint4;
typedef vec<float, 2> float2;
typedef vec<float, 4> float4;
typedef int2 packed_int2;
typedef uint2 packed_uint2;
typedef uint4 packed_uint4;
typedef int4 packed_int4;
typedef float4 packed_float4;

template <class To, class From>
To as_type(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    std::memcpy(&y, &x, sizeof(y));
    return y;
}

enum class mem_flags { mem_none, mem_device, mem_threadgroup, mem_texture, mem_threadgroup_imageblock };
inline mem_flags operator|(mem_flags a, mem_flags) { return a; }
inline void threadgroup_barrier(mem_flags) { ::emulated::block_barrier(); }

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float rint(float x) { return __builtin_rintf(x); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float abs(float x) { return __builtin_fabsf(x); }
inline int abs(int x) { return x < 0 ? -x : x; }
inline uint popcount(uint x) { return uint(__builtin_popcount(x)); }
inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline int clamp(int x, int low, int high) { return min(max(x, low), high); }
inline uint min(uint a, uint b) { return b < a ? b : a; }
inline uint max(uint a, uint b) { return a < b ? b : a; }
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }

// Fibers switch only at barriers, so plain operations are atomic.
enum memory_order { memory_order_relaxed };
struct atomic_uint {
    uint value;
};
struct atomic_int {
    int value;
};
template <class Atomic>
auto atomic_fetch_max_explicit(Atomic* a, decltype(Atomic::value) b, memory_order) {
    const auto old = a->value;
    a->value = max(old, b);
    return old;
}
template <class Atomic>
auto atomic_fetch_min_explicit(Atomic* a, decltype(Atomic::value) b, memory_order) {
    const auto old = a->value;
    a->value = min(old, b);
    return old;
}
template <class Atomic>
auto atomic_fetch_add_explicit(Atomic* a, decltype(Atomic::value) b, memory_order) {
    const auto old = a->value;
    a->value = old + b;
    return old;
}

// Thread and group indices.
inline uint3 in_group() { return {::threadIdx.x, ::threadIdx.y, ::threadIdx.z}; }
inline uint3 group() { return {::blockIdx.x, ::blockIdx.y, ::blockIdx.z}; }
inline uint3 in_grid() {
    const uint3 g = group(), t = in_group();
    return {g.x * ::blockDim.x + t.x, g.y * ::blockDim.y + t.y, g.z * ::blockDim.z + t.z};
}

}  // namespace metal

#define device
#define thread
#define threadgroup
#define constant const
