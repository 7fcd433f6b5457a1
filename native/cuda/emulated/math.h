// Vector types and math functions that CUDA declares without headers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

// Vector type and its make_ function.
#define EMULATED_VECTORS(type, number)                                                                \
    struct alignas(2 * sizeof(number)) type##2 { number x, y; };                                      \
    struct alignas(4 * sizeof(number) > 16 ? 16 : 4 * sizeof(number)) type##4 { number x, y, z, w; }; \
    inline type##2 make_##type##2(number x, number y) { return {x, y}; }                              \
    inline type##4 make_##type##4(number x, number y, number z, number w) { return {x, y, z, w}; }

EMULATED_VECTORS(float, float)
EMULATED_VECTORS(int, int)
EMULATED_VECTORS(uint, unsigned)
EMULATED_VECTORS(char, signed char)
EMULATED_VECTORS(uchar, unsigned char)
EMULATED_VECTORS(short, short)
EMULATED_VECTORS(ushort, unsigned short)
EMULATED_VECTORS(double, double)
EMULATED_VECTORS(longlong, long long)
EMULATED_VECTORS(ulonglong, unsigned long long)
#undef EMULATED_VECTORS

using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;
inline unsigned min(unsigned a, int b) { return std::min(a, static_cast<unsigned>(b)); }
inline unsigned min(int a, unsigned b) { return std::min(static_cast<unsigned>(a), b); }
inline unsigned max(unsigned a, int b) { return std::max(a, static_cast<unsigned>(b)); }
inline unsigned max(int a, unsigned b) { return std::max(static_cast<unsigned>(a), b); }

template <typename T>
T __ldg(const T* at) {
    return *at;
}
template <typename T>
T __ldcg(const T* at) {
    return *at;
}
template <typename T>
T __ldcs(const T* at) {
    return *at;
}
template <typename T>
T __ldca(const T* at) {
    return *at;
}
template <typename T>
void __stcs(T* at, T value) {
    *at = value;
}
template <typename T>
void __stcg(T* at, T value) {
    *at = value;
}

template <typename To, typename From>
To emulated_bits(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To out;
    std::memcpy(&out, &value, sizeof(out));
    return out;
}
inline float __int_as_float(int x) { return emulated_bits<float>(x); }
inline int __float_as_int(float x) { return emulated_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
inline double __longlong_as_double(long long x) { return emulated_bits<double>(x); }
inline long long __double_as_longlong(double x) { return emulated_bits<long long>(x); }

// The build does not contract expressions, so plain operators round as the _rn functions.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline float __expf(float x) { return std::exp(x); }
inline float __exp2f(float x) { return std::exp2(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline float rsqrtf(float x) { return __frsqrt_rn(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __saturatef(float x) { return x > 0.0f ? std::min(x, 1.0f) : 0.0f; }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(std::floor(x)); }
inline unsigned __float2uint_rn(float x) { return static_cast<unsigned>(std::nearbyint(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
    unsigned out = 0;
    for (int i = 0; i < 32; i++) out |= (x >> i & 1u) << (31 - i);
    return out;
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
    return static_cast<unsigned>(((static_cast<uint64_t>(high) << 32 | low) << (n & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (n & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned s = selector >> (4 * i) & 15u;
        unsigned byte = static_cast<unsigned>(bytes >> (8 * (s & 7u))) & 255u;
        if (s & 8u) byte = byte & 128u ? 255u : 0u;
        out |= byte << (8 * i);
    }
    return out;
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
    return c;
}

inline long long clock64() { return 0; }
inline void __nanosleep(unsigned) {}
#define __trap() ::emulated::fail("a trap")
