// Strips of NEON: eight rows of weights at a time, because the sums of 16 rows by 4 rows of activations exceed the
// registers.

namespace woolly::WOOLLY_TARGET {

constexpr int kStrip = 8;       // lanes
constexpr int kWideRows = 4;    // rows of activations computed together
constexpr bool kSigned = true;  // signed dots are as fast as unsigned ones

struct StripF {
    float32x4_t v[2];
};
struct StripI {
    int32x4_t v[2];
};
struct StripU {
    int8x16_t v[2];
};

#define WOOLLY_STRIP WOOLLY_TWICE

[[gnu::always_inline]] inline StripF strip_load(const float* p) { return {{vld1q_f32(p), vld1q_f32(p + 4)}}; }
[[gnu::always_inline]] inline void store(float* p, StripF a) { WOOLLY_STRIP(vst1q_f32(p + 4 * i, a.v[i])); }
[[gnu::always_inline]] inline StripI strip_load(const int32_t* p) { return {{vld1q_s32(p), vld1q_s32(p + 4)}}; }
[[gnu::always_inline]] inline StripU strip_load(const uint8_t* p) {
    return {{vreinterpretq_s8_u8(vld1q_u8(p)), vreinterpretq_s8_u8(vld1q_u8(p + 16))}};
}
[[gnu::always_inline]] inline StripI strip_zero() {
    StripI r;
    WOOLLY_STRIP(asm volatile("movi %0.2d, #0" : "=w"(r.v[i])));
    return r;
}
// Loaded instead of copied: loads have separate pipes.
inline constexpr int32_t kBias[4] = {0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000};
[[gnu::always_inline]] inline StripI strip_biased() {
    StripI r;
    WOOLLY_STRIP(asm volatile("ldr %q0, %1" : "=w"(r.v[i]) : "Q"(kBias)));
    return r;
}
[[gnu::always_inline]] inline StripF unbiased(StripI a) {
    StripF r;
    WOOLLY_STRIP(r.v[i] = vsubq_f32(vreinterpretq_f32_s32(a.v[i]), vdupq_n_f32(12582912.0f)));
    return r;
}
[[gnu::always_inline]] inline StripF to_float(StripI a) { return {{vcvtq_f32_s32(a.v[0]), vcvtq_f32_s32(a.v[1])}}; }
[[gnu::always_inline]] inline StripF scaled(StripF a, float x) {
    WOOLLY_STRIP(a.v[i] = vmulq_f32(a.v[i], vdupq_n_f32(x)));
    return a;
}
[[gnu::always_inline]] inline StripF fma(StripF a, StripF b, StripF c) {
    WOOLLY_STRIP(c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]));
    return c;
}
[[gnu::always_inline]] inline StripF fma(StripF a, float b, StripF c) {
    WOOLLY_STRIP(c.v[i] = vfmaq_f32(c.v[i], a.v[i], vdupq_n_f32(b)));
    return c;
}
[[gnu::always_inline]] inline StripF add(StripF a, StripF b) {
    WOOLLY_STRIP(a.v[i] = vaddq_f32(a.v[i], b.v[i]));
    return a;
}
[[gnu::always_inline]] inline StripF strip_fzero() { return {{vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}}; }

// Selects one strip of 16 lanes.
template <int i>
[[gnu::always_inline]] inline StripF strip_of(const F32& a) {
    return {{a.v[2 * i], a.v[2 * i + 1]}};
}
// Maximum queries for widening keys and values in registers (generic/products.h): with more, conversions compete with
// the sums.
constexpr int kFewQueries = 4;
// Values are loaded before the first use: a core whose queues are full of sums does not look further ahead.
template <int n>
[[gnu::always_inline]] inline void widened_first(StripF (&a)[n]) {
    for (StripF& one : a) asm volatile("" : "+w"(one.v[0]), "+w"(one.v[1]));
}
// Four numbers, one of which is used as a factor.
using Four = float32x4_t;
[[gnu::always_inline]] inline Four four_of(const float* p) { return vld1q_f32(p); }
template <int l>
[[gnu::always_inline]] inline StripF fma_of(StripF a, Four b, StripF c) {
    WOOLLY_STRIP(c.v[i] = vfmaq_laneq_f32(c.v[i], a.v[i], b, l));
    return c;
}
template <int l>
[[gnu::always_inline]] inline F32 fma_of(F32 a, Four b, F32 c) {
    for (int i = 0; i < 4; ++i) c.v[i] = vfmaq_laneq_f32(c.v[i], a.v[i], b, l);
    return c;
}
// Rows computed together over opened floats, and over packed ones.
constexpr int kFloatRows = 3, kFloatDots = 1;
// Rows of a product of f32 matrices, and strips of sums that fit registers.
constexpr int kProductRows = 8, kProductSums = 8;
// Sums of 16 lanes that fit registers.
constexpr int kGridSums = 4;

// acc + a * b
[[gnu::always_inline]] inline StripI multiply_add(StripI acc, StripI a, StripI b) {
    WOOLLY_STRIP(acc.v[i] = vmlaq_s32(acc.v[i], a.v[i], b.v[i]));
    return acc;
}
// a + 64 * b
[[gnu::always_inline]] inline StripI add_64(StripI a, StripI b) {
    WOOLLY_STRIP(a.v[i] = vaddq_s32(a.v[i], vshlq_n_s32(b.v[i], 6)));
    return a;
}
template <int g>
[[gnu::always_inline]] inline StripI strip_dot(StripI acc, StripU w, Columns a) {
    WOOLLY_STRIP(acc.v[i] = vdotq_laneq_s32(acc.v[i], w.v[i], a, g));
    return acc;
}

template <int g>
[[gnu::always_inline]] inline StripI strip_dot_signed(StripI acc, StripU w, Columns a) {
    return strip_dot<g>(acc, w, a);
}

#undef WOOLLY_STRIP

}  // namespace woolly::WOOLLY_TARGET
