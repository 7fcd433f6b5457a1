// Helpers that compare primitives: both instruction sets, random values, and groups that count differences.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>

#define WOOLLY_TARGET scalar
#include "cpu/kernels/primitives/scalar.h"
#undef WOOLLY_TARGET
#define WOOLLY_TARGET tested
#if defined(TEST_NEON)
#include "cpu/kernels/primitives/neon.h"
#elif defined(TEST_AVX2)
#include "cpu/kernels/primitives/avx2.h"
#elif defined(TEST_AVX512)
#include "cpu/kernels/primitives/avx512.h"
#elif defined(TEST_SCALAR)
#include "cpu/kernels/primitives/scalar.h"
#else
#error "name the instruction set: -DTEST_SCALAR, -DTEST_NEON, -DTEST_AVX2 or -DTEST_AVX512"
#endif
#undef WOOLLY_TARGET

#if !defined(__FMA__) && !defined(__aarch64__)
#error "without -mfma the scalar fma rounds twice and the comparison means nothing"
#endif

namespace s = woolly::scalar;
namespace t = woolly::tested;

namespace {

// Lanes are in order in the structs of every instruction set, so that a plain copy converts between them.
static_assert(sizeof(t::F32) == 64 && sizeof(t::I32) == 64 && sizeof(t::U8) == 64);

template <class To, class From>
To as(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}

struct Bits {
    uint32_t v[16];
};
struct Bytes {
    uint8_t v[64];
};

uint64_t state = 0x9e3779b97f4a7c15;
uint32_t random_bits() {  // xorshift64*
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return uint32_t((state * 0x2545f4914f6cdd1d) >> 32);
}
int random_between(int low, int high) { return low + int(random_bits() % uint32_t(high - low + 1)); }

bool any_difference = false;

struct Group {
    const char* name;
    long checked = 0, different = 0;

    ~Group() {
        std::printf("%-9s %s: %ld values", different == 0 ? "same" : "DIFFERENT", name, checked);
        if (different != 0) std::printf(", %ld of them differ", different);
        std::printf("\n");
        any_difference = any_difference || different != 0;
    }
    void check(const char* what, uint32_t expected, uint32_t actual, uint32_t input) {
        ++checked;
        if (expected == actual) return;
        if (++different <= 5) std::printf("  %s of %08x: expected %08x, got %08x\n", what, input, expected, actual);
    }
    void bits(const char* what, const Bits& expected, const Bits& actual, const Bits& input) {
        for (int i = 0; i < 16; ++i) check(what, expected.v[i], actual.v[i], input.v[i]);
    }
    void bytes(const char* what, const Bytes& expected, const Bytes& actual, const Bytes& input) {
        for (int i = 0; i < 64; ++i) check(what, expected.v[i], actual.v[i], input.v[i]);
    }
};

bool is_nan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }
uint32_t one_nan(uint32_t bits) { return is_nan(bits) ? 0x7fc00000 : bits; }
uint32_t quiet(uint32_t bits) { return is_nan(bits) ? bits | 0x00400000 : bits; }
template <class F>
Bits each(Bits a, F f) {
    for (uint32_t& lane : a.v) lane = f(lane);
    return a;
}

// Zero, subnormals, the smallest normals, half of the smallest half, rounding ties, the largest exact integer and the
// largest that fits, the largest float, infinity, NaN (the first one signalling).
constexpr uint32_t edges[] = {
    0x00000000, 0x00000001, 0x00000002, 0x00400000, 0x007fffff, 0x00800000, 0x00800001, 0x33000000,
    0x34000000, 0x3effffff, 0x3f000000, 0x3f7fffff, 0x3f800000, 0x3f800001, 0x3fc00000, 0x40200000,
    0x42fe0000, 0x43000000, 0x4b000000, 0x4b000001, 0x4b7fffff, 0x4effffff, 0x5f000000, 0x7f000000,
    0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000, 0x7fd55555,
};
uint32_t edge() {
    const uint32_t bits = random_bits();
    return edges[(bits >> 1) % (sizeof(edges) / sizeof(edges[0]))] | (bits << 31);
}

}  // namespace
