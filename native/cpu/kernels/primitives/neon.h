// NEON with the dot-product extension (ARMv8.2): 16 lanes are four registers.
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "cpu/kernels/primitives/parts.h"

namespace woolly::WOOLLY_TARGET {

struct F32 {
    float32x4_t v[4];
};
struct I32 {
    int32x4_t v[4];
};
struct U8 {
    uint8x16_t v[4];
};

#define WOOLLY_PARTS WOOLLY_FOUR_TIMES

inline F32 set1(float x) {
    const float32x4_t a = vdupq_n_f32(x);
    return {{a, a, a, a}};
}
inline F32 zero() { return set1(0.0f); }
inline F32 load(const float* p) { return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}}; }
inline void store(float* p, F32 a) { WOOLLY_PARTS(vst1q_f32(p + 4 * i, a.v[i])); }
inline F32 add(F32 a, F32 b) {
    WOOLLY_PARTS(a.v[i] = vaddq_f32(a.v[i], b.v[i]));
    return a;
}
inline F32 sub(F32 a, F32 b) {
    WOOLLY_PARTS(a.v[i] = vsubq_f32(a.v[i], b.v[i]));
    return a;
}
inline F32 mul(F32 a, F32 b) {
    WOOLLY_PARTS(a.v[i] = vmulq_f32(a.v[i], b.v[i]));
    return a;
}
inline F32 fma(F32 a, F32 b, F32 c) {
    WOOLLY_PARTS(c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]));
    return c;
}
inline F32 max(F32 a, F32 b) {
    WOOLLY_PARTS(a.v[i] = vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]));
    return a;
}
// Maximum of each lane and a number. NaN stays NaN.
inline F32 at_least(F32 a, float least) {
    WOOLLY_PARTS(a.v[i] = vmaxq_f32(a.v[i], vdupq_n_f32(least)));
    return a;
}
// Maximum of numbers, with either zero for two zeros; NaN is ignored.
inline F32 larger(F32 a, F32 b) {
    WOOLLY_PARTS(a.v[i] = vmaxnmq_f32(a.v[i], b.v[i]));
    return a;
}
inline F32 abs(F32 a) {
    WOOLLY_PARTS(a.v[i] = vabsq_f32(a.v[i]));
    return a;
}
inline F32 div(F32 a, F32 b) {
    WOOLLY_PARTS(a.v[i] = vdivq_f32(a.v[i], b.v[i]));
    return a;
}

inline F32 load_f16(const uint16_t* p) {
    F32 r;
    WOOLLY_PARTS(r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
    return r;
}
inline void store_f16(uint16_t* p, F32 a) {
    WOOLLY_PARTS(vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i]))));
}
inline F32 load_bf16(const uint16_t* p) {
    F32 r;
    // Interleaves zeros below the halves: unlike a shift, this runs on either pipe.
    const uint16x8_t none = vdupq_n_u16(0);
    for (int i = 0; i < 4; i += 2) {
        const uint16x8_t w = vld1q_u16(p + 4 * i);
        r.v[i] = vreinterpretq_f32_u16(vzip1q_u16(none, w));
        r.v[i + 1] = vreinterpretq_f32_u16(vzip2q_u16(none, w));
    }
    return r;
}

inline I32 as_ints(F32 a) {
    I32 r;
    WOOLLY_PARTS(r.v[i] = vreinterpretq_s32_f32(a.v[i]));
    return r;
}
// Loaded for each sum, which overwrites it: a copy would cost an operation.
[[gnu::always_inline]] inline F32 fma_to(F32 a, F32 b, const float* c) {
    F32 r;
    WOOLLY_PARTS(asm volatile("ldr %q0, %1" : "=w"(r.v[i]) : "Q"(*reinterpret_cast<const float32x4_t*>(c)));
                 r.v[i] = vfmaq_f32(r.v[i], a.v[i], b.v[i]));
    return r;
}

inline I32 iset1(int32_t x) {
    const int32x4_t a = vdupq_n_s32(x);
    return {{a, a, a, a}};
}
// Zeroes each register: zeroing is free, a copy costs an operation.
[[gnu::always_inline]] inline I32 izero() {
    I32 r;
    WOOLLY_PARTS(asm volatile("movi %0.2d, #0" : "=w"(r.v[i])));
    return r;
}
inline I32 iadd(I32 a, I32 b) {
    WOOLLY_PARTS(a.v[i] = vaddq_s32(a.v[i], b.v[i]));
    return a;
}
inline I32 isub(I32 a, I32 b) {
    WOOLLY_PARTS(a.v[i] = vsubq_s32(a.v[i], b.v[i]));
    return a;
}
inline I32 imul(I32 a, I32 b) {
    WOOLLY_PARTS(a.v[i] = vmulq_s32(a.v[i], b.v[i]));
    return a;
}
inline I32 widen(int8x16_t b) {
    const int16x8_t low = vmovl_s8(vget_low_s8(b)), high = vmovl_s8(vget_high_s8(b));
    return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
             vmovl_s16(vget_high_s16(high))}};
}
inline I32 load_s8(const int8_t* p) { return widen(vld1q_s8(p)); }
inline I32 load_codes(const int8_t* table, const uint8_t* p, int shift) {
    const uint8x16_t codes = vandq_u8(vshlq_u8(vld1q_u8(p), vdupq_n_s8(int8_t(-shift))), vdupq_n_u8(15));
    return widen(vqtbl1q_s8(vld1q_s8(table), codes));
}
template <int n>
inline I32 ishift_left(I32 a) {
    WOOLLY_PARTS(a.v[i] = vshlq_n_s32(a.v[i], n));
    return a;
}
// Integers below 2^22 in the mantissa of 3 * 2^22: a subtraction makes them floats, four times as fast as a conversion.
inline I32 biased(int32_t x) { return iset1(x + 0x4b400000); }
inline F32 unbiased(I32 a) {
    F32 r;
    WOOLLY_PARTS(r.v[i] = vsubq_f32(vreinterpretq_f32_s32(a.v[i]), vdupq_n_f32(12582912.0f)));
    return r;
}
inline F32 to_float(I32 a) {
    F32 r;
    WOOLLY_PARTS(r.v[i] = vcvtq_f32_s32(a.v[i]));
    return r;
}
inline I32 round_to_int(F32 a) {
    I32 r;
    WOOLLY_PARTS(r.v[i] = vcvtnq_s32_f32(a.v[i]));
    return r;
}
inline I32 load_ints(const int32_t* p) {
    return {{vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)}};
}
inline void store(int32_t* p, I32 a) { WOOLLY_PARTS(vst1q_s32(p + 4 * i, a.v[i])); }
inline void store_s8(int8_t* p, I32 a) {
    const int16x8_t low = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
inline F32 power_of_two(I32 a) {
    F32 r;
    WOOLLY_PARTS(r.v[i] = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(a.v[i], vdupq_n_s32(127)), 23)));
    return r;
}

inline float sum_lanes(F32 a) {
    const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
// Not vmaxq, which prefers NaN and +0: a > b ? a : b is required here as in max.
inline float max_lanes(F32 a) {
    const auto greater = [](float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); };
    const float32x4_t four = greater(greater(a.v[0], a.v[2]), greater(a.v[1], a.v[3]));
    const float32x2_t low = vget_low_f32(four), high = vget_high_f32(four);
    const float32x2_t two = vbsl_f32(vcgt_f32(low, high), low, high);
    const float x = vget_lane_f32(two, 0), y = vget_lane_f32(two, 1);
    return x > y ? x : y;
}
inline int32_t isum_lanes(I32 a) { return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3]))); }

// Prefetch distance of weights, doubled in super-blocks. The hardware prefetcher alone does not keep up with the dots;
// longer distances gain nothing here.
constexpr int kPrefetch = 512;
// Inline assembly instead of the builtin: GCC moves builtin prefetches to the start of a loop, where too many are
// issued together.
[[gnu::always_inline]] inline void prefetch(const uint8_t* p) {
    asm volatile("prfm pldl1keep, [%0]" ::"r"(p) : "memory");
}
// Prefetch to L2, for data that is used much later.
[[gnu::always_inline]] inline void prefetch_early(const uint8_t* p) {
    asm volatile("prfm pldl2keep, [%0]" ::"r"(p) : "memory");
}

inline U8 load_bytes(const uint8_t* p) { return {{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}}; }
inline void store_bytes(uint8_t* p, U8 a) { WOOLLY_PARTS(vst1q_u8(p + 16 * i, a.v[i])); }
inline U8 low_bits(U8 a, uint8_t mask) {
    WOOLLY_PARTS(a.v[i] = vandq_u8(a.v[i], vdupq_n_u8(mask)));
    return a;
}
template <int n>
inline U8 shift_right(U8 a) {
    if constexpr (n > 0) WOOLLY_PARTS(a.v[i] = vshrq_n_u8(a.v[i], n));
    return a;
}
template <int n>
inline U8 shift_left(U8 a) {
    WOOLLY_PARTS(a.v[i] = vshlq_n_u8(a.v[i], n));
    return a;
}
inline U8 either(U8 a, U8 b) {
    WOOLLY_PARTS(a.v[i] = vorrq_u8(a.v[i], b.v[i]));
    return a;
}
// a with its low 8 - n bits replaced by b >> n.
template <int n>
inline U8 insert_right(U8 a, U8 b) {
    WOOLLY_PARTS(a.v[i] = vsriq_n_u8(a.v[i], b.v[i], n));
    return a;
}
template <int n>
inline U8 minus(U8 a) {
    WOOLLY_PARTS(a.v[i] = vsubq_u8(a.v[i], vdupq_n_u8(n)));
    return a;
}
inline U8 flip_sign(U8 a) {
    WOOLLY_PARTS(a.v[i] = veorq_u8(a.v[i], vdupq_n_u8(0x80)));
    return a;
}
// Byte k of each lane.
template <int k>
inline I32 byte(U8 a) {
    I32 r;
    WOOLLY_PARTS(uint32x4_t x = vreinterpretq_u32_u8(a.v[i]); if constexpr (k > 0) x = vshrq_n_u32(x, 8 * k);
                 if constexpr (k < 3) x = vandq_u32(x, vdupq_n_u32(255)); r.v[i] = vreinterpretq_s32_u32(x));
    return r;
}
template <int k>
inline I32 signed_byte(U8 a) {
    I32 r;
    WOOLLY_PARTS(const int32x4_t x = vreinterpretq_s32_u8(a.v[i]);
                 r.v[i] = vshrq_n_s32(k == 3 ? x : vshlq_n_s32(x, 24 - 8 * k), 24));
    return r;
}
inline U8 lookup(const int8_t* table, U8 a) {
    const uint8x16_t values = vreinterpretq_u8_s8(vld1q_s8(table));
    WOOLLY_PARTS(a.v[i] = vqtbl1q_u8(values, a.v[i]));
    return a;
}

inline U8 plus(U8 a, U8 b) {
    WOOLLY_PARTS(a.v[i] = vaddq_u8(a.v[i], b.v[i]));
    return a;
}
// Bits [from, from + n) of each lane, moved to bit `to`.
template <int from, int n, int to>
inline I32 field(U8 a) {
    constexpr uint32_t mask = ((uint32_t{1} << n) - 1) << to;
    I32 r;
    WOOLLY_PARTS(uint32x4_t lane = vreinterpretq_u32_u8(a.v[i]);
                 if constexpr (from > to) lane = vshrq_n_u32(lane, from - to);
                 if constexpr (from < to) lane = vshlq_n_u32(lane, to - from);
                 r.v[i] = vreinterpretq_s32_u32(vandq_u32(lane, vdupq_n_u32(mask))));
    return r;
}
inline U8 as_bytes(I32 a) {
    U8 r;
    WOOLLY_PARTS(r.v[i] = vreinterpretq_u8_s32(a.v[i]));
    return r;
}
// No gather instruction: each lane's word is loaded separately.
inline U8 look_up(const uint32_t* table, I32 index) {
    U8 r;
    WOOLLY_PARTS(uint32x4_t words = vdupq_n_u32(table[vgetq_lane_s32(index.v[i], 0)]);
                 words = vld1q_lane_u32(table + vgetq_lane_s32(index.v[i], 1), words, 1);
                 words = vld1q_lane_u32(table + vgetq_lane_s32(index.v[i], 2), words, 2);
                 words = vld1q_lane_u32(table + vgetq_lane_s32(index.v[i], 3), words, 3);
                 r.v[i] = vreinterpretq_u8_u32(words));
    return r;
}
inline void look_up(const uint64_t* table, I32 index, U8* low, U8* high) {
    WOOLLY_PARTS(const uint64x2_t a = vcombine_u64(vld1_u64(table + vgetq_lane_s32(index.v[i], 0)),
                                                   vld1_u64(table + vgetq_lane_s32(index.v[i], 1)));
                 const uint64x2_t b = vcombine_u64(vld1_u64(table + vgetq_lane_s32(index.v[i], 2)),
                                                   vld1_u64(table + vgetq_lane_s32(index.v[i], 3)));
                 low->v[i] = vreinterpretq_u8_u32(vuzp1q_u32(vreinterpretq_u32_u64(a), vreinterpretq_u32_u64(b)));
                 high->v[i] = vreinterpretq_u8_u32(vuzp2q_u32(vreinterpretq_u32_u64(a), vreinterpretq_u32_u64(b))));
}
// Negates byte i of each lane if bit 4 * k + i of the lane of `signs` is set.
template <int k>
inline U8 negate(U8 a, U8 signs) {
    constexpr uint32_t byte_of = 0x01010101 * (k / 2);
    const uint32_t places[4] = {byte_of, byte_of + 0x04040404, byte_of + 0x08080808, byte_of + 0x0c0c0c0c};
    const uint8x16_t lanes = vreinterpretq_u8_u32(vld1q_u32(places));
    const uint8x16_t bit = vreinterpretq_u8_u32(vdupq_n_u32(k % 2 == 0 ? 0x08040201u : 0x80402010u));
    WOOLLY_PARTS(const uint8x16_t negative = vtstq_u8(vqtbl1q_u8(signs.v[i], lanes), bit);
                 a.v[i] = vsubq_u8(veorq_u8(a.v[i], negative), negative));
    return a;
}
// Extracts a digit of each byte, a fraction of 256 in base 3; `power` is 3 to the number of earlier digits.
template <int power>
inline U8 trit(U8 a) {
    WOOLLY_PARTS(const uint8x16_t rest = vmulq_u8(a.v[i], vdupq_n_u8(power));
                 // Comparisons give all ones, -1: once from a third of 256 on, and again from two thirds on.
                 const uint8x16_t one = vcgeq_u8(rest, vdupq_n_u8(86)),
                 two = vcgeq_u8(rest, vdupq_n_u8(171));
                 a.v[i] = vsubq_u8(vsubq_u8(vdupq_n_u8(0), one), two));
    return a;
}

// Rows per pass over the packed weights.
constexpr int kMaxRows = 4;

using Columns = int8x16_t;
inline Columns columns(const int8_t* a) { return vld1q_s8(a); }

constexpr int32_t kSignedOffset = 0;
template <int g>
[[gnu::always_inline]] inline I32 dot4_signed(I32 acc, U8 w, Columns a) {
    WOOLLY_PARTS(acc.v[i] = vdotq_laneq_s32(acc.v[i], vreinterpretq_s8_u8(w.v[i]), a, g));
    return acc;
}
template <int g>
[[gnu::always_inline]] inline I32 dot4(I32 acc, U8 w, Columns a) {
    return dot4_signed<g>(acc, w, a);
}

#undef WOOLLY_PARTS

// 16-bit dots are multiplied like all others (generic/k_quants.h).
constexpr bool kShortProducts = false;

}  // namespace woolly::WOOLLY_TARGET
