// Strips: rows of weights that the level multiplies at a time by several rows of activations. Here all 16 of a panel;
// levels with narrow registers define their own.

namespace woolly::WOOLLY_TARGET {

constexpr int kStrip = 16;
constexpr bool kSigned = false;

using StripF = F32;
using StripI = I32;
using StripU = U8;

[[gnu::always_inline]] inline StripF strip_load(const float* p) { return load(p); }
[[gnu::always_inline]] inline StripI strip_load(const int32_t* p) { return load_ints(p); }
[[gnu::always_inline]] inline StripU strip_load(const uint8_t* p) { return load_bytes(p); }
[[gnu::always_inline]] inline StripI strip_zero() { return izero(); }
[[gnu::always_inline]] inline StripI strip_biased() { return biased(0); }
[[gnu::always_inline]] inline StripF scaled(StripF a, float x) { return mul(a, set1(x)); }
[[gnu::always_inline]] inline StripF fma(StripF a, float b, StripF c) { return fma(a, set1(b), c); }
[[gnu::always_inline]] inline StripI multiply_add(StripI acc, StripI a, StripI b) { return iadd(acc, imul(a, b)); }
[[gnu::always_inline]] inline StripI add_64(StripI a, StripI b) { return iadd(a, ishift_left<6>(b)); }
[[gnu::always_inline]] inline StripF strip_fzero() { return zero(); }
// Four numbers, one of which is used as a factor.
using Four = const float*;
[[gnu::always_inline]] inline Four four_of(const float* p) { return p; }
template <int l>
[[gnu::always_inline]] inline StripF fma_of(StripF a, Four b, StripF c) {
    return fma(a, set1(b[l]), c);
}
// Maximum queries for widening keys and values in registers (generic/products.h).
constexpr int kFewQueries = kProductRows;
template <int n>
[[gnu::always_inline]] inline void widened_first(StripF (&)[n]) {}
// Selects one strip of 16 lanes.
template <int>
[[gnu::always_inline]] inline StripF strip_of(const F32& a) {
    return a;
}
template <int g>
[[gnu::always_inline]] inline StripI strip_dot(StripI acc, StripU w, Columns a) {
    return dot4<g>(acc, w, a);
}
template <int g>
[[gnu::always_inline]] inline StripI strip_dot_signed(StripI acc, StripU w, Columns a) {
    return dot4_signed<g>(acc, w, a);
}

}  // namespace woolly::WOOLLY_TARGET
