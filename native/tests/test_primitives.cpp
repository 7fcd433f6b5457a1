// Checks that every primitive of one instruction set returns the same bits as the scalar one.
// Build with TEST_SCALAR, TEST_NEON, TEST_AVX2 or TEST_AVX512, the flags of that set and -ffp-contract=off, so that a
// mul and an add round twice. The payload of a NaN result may differ, since C++ does not define the order of
// commutative operands. Bits that are only moved or selected must be equal.
#include <initializer_list>

#include "cpu/kernels/table.h"
#include "cpu/ops/functions.h"
#include "tests/primitives.h"

// clang-format off: each header needs the previous ones
#define WOOLLY_TARGET tested
#include "cpu/kernels/generic/loops.h"
#include "cpu/kernels/generic/vectors.h"
#undef WOOLLY_TARGET
// clang-format on

namespace {

// Random bits, edge cases, and numbers of similar magnitude, whose sums round and cancel.
uint32_t random_float() {
    const uint32_t bits = random_bits(), kind = random_bits() % 4;
    if (kind < 2) return kind == 0 ? bits : edge();
    return (bits & 0x807fffff) | uint32_t(random_between(117, 137)) << 23;
}
Bits random_words() {
    return each(Bits{}, [](uint32_t) { return random_bits(); });
}
Bits random_floats() {
    return each(Bits{}, [](uint32_t) { return random_float(); });
}
Bits random_ints(int low, int high) {
    return each(Bits{}, [=](uint32_t) { return uint32_t(random_between(low, high)); });
}
template <class F>
void each_round(F f) {
    for (int round = 0; round < 20000; ++round) f();
}

void test_moves() {
    Group group{"zero, set1, load, store, abs, max, at_least, larger, as_ints"};
    const Bits none{};
    group.bits("zero", none, as<Bits>(t::zero()), none);
    group.bits("izero", none, as<Bits>(t::izero()), none);
    each_round([&] {
        const Bits a = random_floats(), b = random_floats();
        const auto sa = as<s::F32>(a), sb = as<s::F32>(b);
        const auto ta = as<t::F32>(a), tb = as<t::F32>(b);
        group.bits("abs", as<Bits>(s::abs(sa)), as<Bits>(t::abs(ta)), a);
        group.bits("max", as<Bits>(s::max(sa, sb)), as<Bits>(t::max(ta, tb)), a);
        group.bits("at_least", each(as<Bits>(s::at_least(sa, -87.0f)), one_nan),
                   each(as<Bits>(t::at_least(ta, -87.0f)), one_nan), a);
        group.bits("as_ints", a, as<Bits>(t::as_ints(ta)), a);
        const Bits number = each(b, [](uint32_t lane) { return is_nan(lane) || lane << 1 == 0 ? 0xff800000 : lane; });
        // The second operand has no zeros, because the result of comparing two zeros is unspecified.
        group.bits("larger", each(as<Bits>(s::larger(sa, as<s::F32>(number))), one_nan),
                   each(as<Bits>(t::larger(as<t::F32>(each(a, quiet)), as<t::F32>(number))), one_nan), a);
        const float x = as<float>(a.v[0]);
        float unaligned[17], out[18] = {};
        group.bits("set1", as<Bits>(s::set1(x)), as<Bits>(t::set1(x)), a);
        std::memcpy(unaligned + 1, &a, sizeof(a));
        group.bits("load", a, as<Bits>(t::load(unaligned + 1)), a);
        t::store(out + 1, ta);
        Bits stored;
        std::memcpy(&stored, out + 1, sizeof(stored));
        group.bits("store", a, stored, a);
        group.check("store, before and after", 0, out[0] != 0 || out[17] != 0, 0);
    });
}

void test_arithmetic() {
    Group group{"add, sub, mul, div, fma, fma_to"};
    const auto same = [&](const char* what, s::F32 expected, t::F32 actual, const Bits& input) {
        group.bits(what, each(as<Bits>(expected), one_nan), each(as<Bits>(actual), one_nan), input);
    };
    const auto check = [&](const Bits& a, const Bits& b, const Bits& c) {
        const auto sa = as<s::F32>(a), sb = as<s::F32>(b), sc = as<s::F32>(c);
        const auto ta = as<t::F32>(a), tb = as<t::F32>(b), tc = as<t::F32>(c);
        same("add", s::add(sa, sb), t::add(ta, tb), a);
        same("sub", s::sub(sa, sb), t::sub(ta, tb), a);
        same("mul", s::mul(sa, sb), t::mul(ta, tb), a);
        same("div", s::div(sa, sb), t::div(ta, tb), a);
        same("fma", s::fma(sa, sb, sc), t::fma(ta, tb, tc), a);
        const Bits once = each(Bits{}, [&](uint32_t) { return c.v[0]; });
        const float* sixteen = reinterpret_cast<const float*>(once.v);
        same("fma_to", s::fma_to(sa, sb, sixteen), t::fma_to(ta, tb, sixteen), a);
    };
    each_round([&] { check(random_floats(), random_floats(), random_floats()); });
    each_round([&] {  // the volatile product cannot be fused
        const Bits a = random_floats(), b = random_floats(), c = random_floats();
        s::F32 sum = as<s::F32>(c);
        for (int i = 0; i < 16; ++i) {
            const volatile float product = as<float>(a.v[i]) * as<float>(b.v[i]);
            sum.v[i] = product + sum.v[i];
        }
        same("mul then add", sum, t::add(t::mul(as<t::F32>(a), as<t::F32>(b)), as<t::F32>(c)), a);
    });
    for (const uint32_t x : edges)
        for (const uint32_t y : edges) {
            Bits a, b, c;
            for (uint32_t i = 0; i < 16; ++i) {
                a.v[i] = x | (i << 31);
                b.v[i] = y | (i >> 1 << 31);
                c.v[i] = edge();
            }
            check(a, b, c);
        }
}

void test_halves() {
    Group group{"load_f16, store_f16, load_bf16"};
    uint16_t in[17];
    for (uint32_t first = 0; first < 0x10000; first += 16) {
        Bits input;
        for (uint32_t i = 0; i < 16; ++i) in[i + 1] = uint16_t(input.v[i] = first + i);
        // Hardware conversion quiets a signalling NaN, the scalar conversion does not.
        group.bits("load_f16", each(as<Bits>(s::load_f16(in + 1)), quiet), each(as<Bits>(t::load_f16(in + 1)), quiet),
                   input);
        group.bits("load_bf16", as<Bits>(s::load_bf16(in + 1)), as<Bits>(t::load_bf16(in + 1)), input);
    }
    const auto store = [&](const Bits& a) {
        uint16_t expected[16], actual[18] = {};
        s::store_f16(expected, as<s::F32>(a));
        t::store_f16(actual + 1, as<t::F32>(a));
        for (int i = 0; i < 16; ++i) group.check("store_f16", expected[i], actual[i + 1], a.v[i]);
        group.check("store_f16, before and after", 0, actual[0] | actual[17], 0);
    };
    // Every half, the tie above it, and their neighbors. The last tie, 65520, is the first to round to infinity.
    for (uint32_t h = 0; h < 0x7c00; ++h) {
        const float below = s::half_to_float(uint16_t(h));
        const float above = h == 0x7bff ? 65536.0f : s::half_to_float(uint16_t(h + 1));
        const float tie = below + (above - below) / 2;
        Bits a;
        for (uint32_t i = 0; i < 16; ++i) {
            a.v[i] = as<uint32_t>((i & 4) ? tie : below);
            a.v[i] = a.v[i] + (i & 3) - (a.v[i] == 0 ? 0 : 1);
            a.v[i] |= (i & 8) << 28;
        }
        store(a);
    }
    each_round([&] { store(random_floats()); });
    each_round([&] { store(each(Bits{}, [](uint32_t) { return random_bits(); })); });
}

void test_integers() {
    Group group{"iset1, iadd, isub, imul, ishift_left, load_s8, store_s8, isum_lanes"};
    each_round([&] {
        const Bits a = random_ints(-46340, 46340), b = random_ints(-46340, 46340);
        const auto sa = as<s::I32>(a), sb = as<s::I32>(b);
        const auto ta = as<t::I32>(a), tb = as<t::I32>(b);
        const auto x = int32_t(random_bits());
        group.bits("iset1", as<Bits>(s::iset1(x)), as<Bits>(t::iset1(x)), a);
        group.bits("iadd", as<Bits>(s::iadd(sa, sb)), as<Bits>(t::iadd(ta, tb)), a);
        group.bits("isub", as<Bits>(s::isub(sa, sb)), as<Bits>(t::isub(ta, tb)), a);
        group.bits("imul", as<Bits>(s::imul(sa, sb)), as<Bits>(t::imul(ta, tb)), a);
        group.bits("ishift_left", as<Bits>(s::ishift_left<6>(sa)), as<Bits>(t::ishift_left<6>(ta)), a);
        group.check("isum_lanes", uint32_t(s::isum_lanes(sa)), uint32_t(t::isum_lanes(ta)), 0);
    });
    each_round([&] {
        const Bits a = random_words();
        int8_t expected[16], actual[18] = {};
        s::store_s8(expected, as<s::I32>(a));
        t::store_s8(actual + 1, as<t::I32>(a));
        for (int i = 0; i < 16; ++i) group.check("store_s8", uint8_t(expected[i]), uint8_t(actual[i + 1]), a.v[i]);
        group.check("store_s8, before and after", 0, actual[0] != 0 || actual[17] != 0, 0);
    });
    int8_t in[256 + 16];
    for (int i = 0; i < 256 + 16; ++i) in[i] = int8_t(uint8_t(i));
    for (int i = 0; i < 256; ++i)
        group.bits("load_s8", as<Bits>(s::load_s8(in + i)), as<Bits>(t::load_s8(in + i)), Bits{});
}

void test_conversions() {
    Group group{"to_float, biased, unbiased, round_to_int, power_of_two"};
    const auto rounded = [&](const Bits& a) {
        group.bits("round_to_int", as<Bits>(s::round_to_int(as<s::F32>(a))), as<Bits>(t::round_to_int(as<t::F32>(a))),
                   a);
    };
    // Values that exceed an int32 have no defined result.
    const auto fits = [](uint32_t x) { return (x & 0x7fffffff) <= 0x4effffff ? x : x & 0x807fffff; };
    each_round([&] {
        const Bits a = random_words();
        group.bits("to_float", as<Bits>(s::to_float(as<s::I32>(a))), as<Bits>(t::to_float(as<t::I32>(a))), a);
        rounded(each(random_floats(), fits));
    });
    each_round([&] {  // sums stay below 2^22
        const int32_t start = random_between(-2000000, 2000000);
        const Bits a = random_ints(-2000000, 2000000);
        const auto expected = s::unbiased(s::iadd(s::biased(start), as<s::I32>(a)));
        group.bits("biased", as<Bits>(expected), as<Bits>(t::unbiased(t::iadd(t::biased(start), as<t::I32>(a)))), a);
    });
    for (int first = -40000; first < 40000; first += 16) {  // multiples of 1/2 and 1/4: every tie
        Bits a;
        for (int i = 0; i < 16; ++i) a.v[i] = as<uint32_t>(float(first + i) * 0.25f);
        rounded(a);
    }
    for (int first = -126; first <= 112; first += 14) {
        Bits a;
        for (int i = 0; i < 16; ++i) a.v[i] = uint32_t(first + i);
        group.bits("power_of_two", as<Bits>(s::power_of_two(as<s::I32>(a))), as<Bits>(t::power_of_two(as<t::I32>(a))),
                   a);
    }
}

void test_reductions() {
    Group group{"sum_lanes, max_lanes"};
    const auto check = [&](const Bits& a) {
        const auto bits = [](float x) { return as<uint32_t>(x); };
        const auto sa = as<s::F32>(a);
        const auto ta = as<t::F32>(a);
        group.check("sum_lanes", one_nan(bits(s::sum_lanes(sa))), one_nan(bits(t::sum_lanes(ta))), a.v[0]);
        group.check("max_lanes", bits(s::max_lanes(sa)), bits(t::max_lanes(ta)), a.v[0]);
    };
    each_round([&] { check(random_floats()); });
    each_round([&] {  // similar magnitudes, so that the order of the sum affects rounding
        check(each(Bits{}, [](uint32_t) { return (random_bits() & 0x80ffffff) | 0x3f000000; }));
    });
    each_round([&] {  // zeros of both signs, and NaN in any lane: the order of operands matters
        check(each(Bits{}, [](uint32_t) {
            const uint32_t bits = random_bits();
            return bits % 5 == 0 ? 0x7fc00000 | (bits >> 16) : bits & 0x80000000;
        }));
    });
}

Bytes random_bytes(int low, int high) {
    Bytes r;
    for (uint8_t& byte : r.v) byte = uint8_t(random_between(low, high));
    return r;
}

template <int n>
void test_shift(Group& group, const Bytes& a) {
    const auto sa = as<s::U8>(a);
    const auto ta = as<t::U8>(a);
    group.bytes("shift_right", as<Bytes>(s::shift_right<n>(sa)), as<Bytes>(t::shift_right<n>(ta)), a);
    group.bytes("shift_left", as<Bytes>(s::shift_left<n>(sa)), as<Bytes>(t::shift_left<n>(ta)), a);
    const Bytes b = random_bytes(0, 255);
    group.bytes("insert_right", as<Bytes>(s::insert_right<n>(sa, as<s::U8>(b))),
                as<Bytes>(t::insert_right<n>(ta, as<t::U8>(b))), a);
    if constexpr (n > 1) test_shift<n - 1>(group, a);
}

template <int k>
void test_byte(Group& group, const Bytes& a) {
    const auto sa = as<s::U8>(a);
    const auto ta = as<t::U8>(a);
    group.bits("byte", as<Bits>(s::byte<k>(sa)), as<Bits>(t::byte<k>(ta)), as<Bits>(a));
    group.bits("signed_byte", as<Bits>(s::signed_byte<k>(sa)), as<Bits>(t::signed_byte<k>(ta)), as<Bits>(a));
    if constexpr (k > 0) test_byte<k - 1>(group, a);
}

void test_bytes() {
    Group group{
        "load_bytes, low_bits, shifts, insert_right, byte, signed_byte, minus, flip_sign, either, lookup, store"};
    for (int first = 0; first < 256; ++first) {
        uint8_t in[65];
        Bytes a;
        for (int i = 0; i < 64; ++i) in[i + 1] = a.v[i] = uint8_t(first + i * 37);
        group.bytes("load_bytes", a, as<Bytes>(t::load_bytes(in + 1)), a);
        test_shift<7>(group, a);
        test_byte<3>(group, a);
        group.bytes("minus", as<Bytes>(s::minus<32>(as<s::U8>(a))), as<Bytes>(t::minus<32>(as<t::U8>(a))), a);
        group.bytes("flip_sign", as<Bytes>(s::flip_sign(as<s::U8>(a))), as<Bytes>(t::flip_sign(as<t::U8>(a))), a);
        uint8_t stored[65];
        t::store_bytes(stored + 1, as<t::U8>(a));
        Bytes back;
        std::memcpy(back.v, stored + 1, 64);
        group.bytes("store_bytes", a, back, a);
        int32_t ints[17];
        std::memcpy(ints + 1, a.v, 64);
        group.bits("load_ints", as<Bits>(a), as<Bits>(t::load_ints(ints + 1)), as<Bits>(a));
        t::store(ints + 1, as<t::I32>(a));
        std::memcpy(back.v, ints + 1, 64);
        group.bytes("store of integers", a, back, a);
        for (int mask = 0; mask < 256; ++mask)
            group.bytes("low_bits", as<Bytes>(s::low_bits(as<s::U8>(a), uint8_t(mask))),
                        as<Bytes>(t::low_bits(as<t::U8>(a), uint8_t(mask))), a);
    }
    for (int round = 0; round < 2000; ++round) {
        const Bytes a = random_bytes(0, 255), b = random_bytes(0, 255), index = random_bytes(0, 15);
        test_shift<7>(group, a);
        test_byte<3>(group, a);
        group.bytes("minus", as<Bytes>(s::minus<32>(as<s::U8>(a))), as<Bytes>(t::minus<32>(as<t::U8>(a))), a);
        group.bytes("either", as<Bytes>(s::either(as<s::U8>(a), as<s::U8>(b))),
                    as<Bytes>(t::either(as<t::U8>(a), as<t::U8>(b))), a);
        int8_t table[16];
        std::memcpy(table, b.v, 16);
        group.bytes("lookup", as<Bytes>(s::lookup(table, as<s::U8>(index))),
                    as<Bytes>(t::lookup(table, as<t::U8>(index))), index);
    }
}

void test_dots() {
    Group group{"dot4, dot4_signed"};
    const auto check = [&](const Bits& start, const Bytes& w, const int8_t* a, bool is_signed) {
        const auto one = [&]<int g>() {
            const auto sacc = as<s::I32>(start);
            const auto tacc = as<t::I32>(start);
            if (!is_signed) {
                group.bits("dot4", as<Bits>(s::dot4<g>(sacc, as<s::U8>(w), s::columns(a))),
                           as<Bits>(t::dot4<g>(tacc, as<t::U8>(w), t::columns(a))), start);
                return;
            }
            int32_t sum = 0;
            for (int i = 0; i < 4; ++i) sum += a[4 * g + i];
            const t::I32 dot = t::dot4_signed<g>(tacc, as<t::U8>(w), t::columns(a));
            group.bits("dot4_signed", as<Bits>(s::dot4_signed<g>(sacc, as<s::U8>(w), s::columns(a))),
                       as<Bits>(t::isub(dot, t::iset1(t::kSignedOffset * sum))), start);
        };
        one.template operator()<0>(), one.template operator()<1>();
        one.template operator()<2>(), one.template operator()<3>();
    };
    // Equal bounds give the extremes, where a 16-bit step would saturate.
    const auto ranges = [&](int low, int high, bool is_signed) {
        for (int round = 0; round < 4000; ++round) {
            const Bytes w = random_bytes(low, high);
            int8_t a[17];
            const int extreme = round % 8;
            for (int i = 0; i < 16; ++i) {
                a[i + 1] = int8_t(random_between(-127, 127));
                if (extreme == 1) a[i + 1] = 127;
                if (extreme == 2) a[i + 1] = -127;
                if (extreme == 3) a[i + 1] = i % 2 ? 127 : -127;
            }
            check(random_ints(-1000000, 1000000), w, a + 1, is_signed);
        }
    };
    ranges(0, 15, false);
    ranges(0, 127, false);
    ranges(127, 127, false);
    ranges(-128, 127, true);
    ranges(-128, -128, true);
    ranges(-128, -127, true);
    ranges(127, 127, true);
    ranges(0, 0, true);
}

// Activations must have the same bits as the scalar functions, which GPUs also compute.
void test_activations() {
    Group group{"gelu, gelu_quick"};
    each_round([&] {
        const Bits a = random_floats(), b = random_floats();
        float x[16], up[16], y[16];
        std::memcpy(x, &a, sizeof x);
        std::memcpy(up, &b, sizeof up);
        const int n = random_between(1, 16);
        const auto same = [&](const char* what, const auto& many, const auto& one) {
            for (const bool times : {false, true}) {
                many(x, times ? up : nullptr, n, y);
                for (int i = 0; i < n; ++i)
                    group.check(what, one_nan(as<uint32_t>(times ? one(x[i]) * up[i] : one(x[i]))),
                                one_nan(as<uint32_t>(y[i])), a.v[i]);
            }
        };
        same("gelu", t::gelu,
             [](float v) { return v / (1.0f + woolly::exp_of(-1.59576912f * (v + 0.044715f * v * v * v))); });
        same("gelu_quick", t::gelu_quick, [](float v) { return v / (1.0f + woolly::exp_of(-1.702f * v)); });
    });
}

}  // namespace

int main() {
    test_moves();
    test_arithmetic();
    test_halves();
    test_integers();
    test_conversions();
    test_reductions();
    test_bytes();
    test_dots();
    test_activations();
    return any_difference ? 1 : 0;
}
