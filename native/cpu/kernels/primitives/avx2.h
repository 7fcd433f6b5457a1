// AVX2 with FMA and F16C: 16 lanes are two registers.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "cpu/kernels/primitives/parts.h"

namespace woolly::WOOLLY_TARGET {

struct F32 {
    __m256 v[2];
};
struct I32 {
    __m256i v[2];
};
struct U8 {
    __m256i v[2];
};

#define WOOLLY_PARTS WOOLLY_TWICE

inline F32 set1(float x) {
    const __m256 a = _mm256_set1_ps(x);
    return {{a, a}};
}
inline F32 zero() { return set1(0.0f); }
inline F32 load(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
inline void store(float* p, F32 a) { WOOLLY_PARTS(_mm256_storeu_ps(p + 8 * i, a.v[i])); }
inline F32 add(F32 a, F32 b) {
    WOOLLY_PARTS(a.v[i] = _mm256_add_ps(a.v[i], b.v[i]));
    return a;
}
inline F32 sub(F32 a, F32 b) {
    WOOLLY_PARTS(a.v[i] = _mm256_sub_ps(a.v[i], b.v[i]));
    return a;
}
inline F32 mul(F32 a, F32 b) {
    WOOLLY_PARTS(a.v[i] = _mm256_mul_ps(a.v[i], b.v[i]));
    return a;
}
inline F32 fma(F32 a, F32 b, F32 c) {
    WOOLLY_PARTS(c.v[i] = _mm256_fmadd_ps(a.v[i], b.v[i], c.v[i]));
    return c;
}
// The instruction is a > b ? a : b: it returns the second operand for NaN and for two zeros.
inline F32 max(F32 a, F32 b) {
    WOOLLY_PARTS(a.v[i] = _mm256_max_ps(a.v[i], b.v[i]));
    return a;
}
inline F32 at_least(F32 a, float least) { return max(set1(least), a); }
inline F32 larger(F32 a, F32 b) { return max(a, b); }
inline I32 as_ints(F32 a) { return {{_mm256_castps_si256(a.v[0]), _mm256_castps_si256(a.v[1])}}; }
inline F32 fma_to(F32 a, F32 b, const float* c) { return fma(a, b, load(c)); }
inline F32 abs(F32 a) {
    WOOLLY_PARTS(a.v[i] = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v[i]));
    return a;
}
inline F32 div(F32 a, F32 b) {
    WOOLLY_PARTS(a.v[i] = _mm256_div_ps(a.v[i], b.v[i]));
    return a;
}

inline __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

inline F32 load_f16(const uint16_t* p) { return {{_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 8))}}; }
inline void store_f16(uint16_t* p, F32 a) {
    WOOLLY_PARTS(
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8 * i), _mm256_cvtps_ph(a.v[i], _MM_FROUND_TO_NEAREST_INT)));
}
inline F32 load_bf16(const uint16_t* p) {
    F32 r;
    WOOLLY_PARTS(r.v[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(p + 8 * i)), 16)));
    return r;
}

inline I32 iset1(int32_t x) {
    const __m256i a = _mm256_set1_epi32(x);
    return {{a, a}};
}
inline I32 izero() { return iset1(0); }
inline I32 iadd(I32 a, I32 b) {
    WOOLLY_PARTS(a.v[i] = _mm256_add_epi32(a.v[i], b.v[i]));
    return a;
}
inline I32 isub(I32 a, I32 b) {
    WOOLLY_PARTS(a.v[i] = _mm256_sub_epi32(a.v[i], b.v[i]));
    return a;
}
inline I32 imul(I32 a, I32 b) {
    WOOLLY_PARTS(a.v[i] = _mm256_mullo_epi32(a.v[i], b.v[i]));
    return a;
}
inline I32 load_s8(const int8_t* p) {
    const __m128i b = load_128(p);
    return {{_mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(b, b))}};
}
inline I32 load_codes(const int8_t* table, const uint8_t* p, int shift) {
    const __m128i codes = _mm_and_si128(_mm_srl_epi16(load_128(p), _mm_cvtsi32_si128(shift)), _mm_set1_epi8(15));
    const __m128i b = _mm_shuffle_epi8(load_128(table), codes);
    return {{_mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(b, b))}};
}
template <int n>
inline I32 ishift_left(I32 a) {
    WOOLLY_PARTS(a.v[i] = _mm256_slli_epi32(a.v[i], n));
    return a;
}
template <int n>
inline I32 ishift_right(I32 a) {
    WOOLLY_PARTS(a.v[i] = _mm256_srai_epi32(a.v[i], n));
    return a;
}
inline F32 to_float(I32 a) {
    F32 r;
    WOOLLY_PARTS(r.v[i] = _mm256_cvtepi32_ps(a.v[i]));
    return r;
}
inline I32 biased(int32_t x) { return iset1(x); }
inline F32 unbiased(I32 a) { return to_float(a); }
inline I32 round_to_int(F32 a) {
    I32 r;
    WOOLLY_PARTS(r.v[i] = _mm256_cvtps_epi32(a.v[i]));
    return r;
}
inline I32 load_ints(const int32_t* p) {
    I32 r;
    WOOLLY_PARTS(r.v[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8 * i)));
    return r;
}
inline void store(int32_t* p, I32 a) {
    WOOLLY_PARTS(_mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8 * i), a.v[i]));
}
// Low byte of each lane. The pack instructions saturate, so the other bytes are cleared first; they also work within
// 128 bits, which leaves the groups of four lanes as 0, 2 | 1, 3.
inline void store_s8(int8_t* p, I32 a) {
    const __m256i low_byte = _mm256_set1_epi32(0xff);
    const __m256i words = _mm256_packus_epi32(_mm256_and_si256(a.v[0], low_byte), _mm256_and_si256(a.v[1], low_byte));
    const __m128i even = _mm256_castsi256_si128(words), odd = _mm256_extracti128_si256(words, 1);
    const __m128i bytes = _mm_packus_epi16(even, odd);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_shuffle_epi32(bytes, _MM_SHUFFLE(3, 1, 2, 0)));
}
inline F32 power_of_two(I32 a) {
    F32 r;
    WOOLLY_PARTS(r.v[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(a.v[i], _mm256_set1_epi32(127)), 23)));
    return r;
}

inline float sum_lanes(F32 a) {
    const __m256 eight = _mm256_add_ps(a.v[0], a.v[1]);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float max_lanes(F32 a) {
    const __m256 eight = _mm256_max_ps(a.v[0], a.v[1]);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline int32_t isum_lanes(I32 a) {
    const __m256i eight = _mm256_add_epi32(a.v[0], a.v[1]);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

// Prefetch distance of weights, doubled in super-blocks. The hardware prefetcher alone does not keep up with the dots.
constexpr int kPrefetch = 4096;
// Inline assembly instead of the builtin: GCC moves builtin prefetches to the start of a loop, where too many are
// issued together.
[[gnu::always_inline]] inline void prefetch(const uint8_t* p) { asm volatile("prefetcht0 (%0)" ::"r"(p) : "memory"); }
// Prefetch to L2, for data that is used much later.
[[gnu::always_inline]] inline void prefetch_early(const uint8_t* p) {
    asm volatile("prefetcht1 (%0)" ::"r"(p) : "memory");
}

inline U8 load_bytes(const uint8_t* p) {
    U8 r;
    WOOLLY_PARTS(r.v[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * i)));
    return r;
}
inline void store_bytes(uint8_t* p, U8 a) {
    WOOLLY_PARTS(_mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32 * i), a.v[i]));
}
inline U8 low_bits(U8 a, uint8_t mask) {
    WOOLLY_PARTS(a.v[i] = _mm256_and_si256(a.v[i], _mm256_set1_epi8(static_cast<char>(mask))));
    return a;
}
// There is no byte shift: 16-bit lanes shift, then bits that crossed from the neighboring byte are cleared.
template <int n>
inline U8 shift_right(U8 a) {
    WOOLLY_PARTS(a.v[i] = _mm256_srli_epi16(a.v[i], n));
    return low_bits(a, static_cast<uint8_t>(0xff >> n));
}
template <int n>
inline U8 shift_left(U8 a) {
    WOOLLY_PARTS(a.v[i] = _mm256_slli_epi16(a.v[i], n));
    return low_bits(a, static_cast<uint8_t>(0xff << n));
}
inline U8 either(U8 a, U8 b) {
    WOOLLY_PARTS(a.v[i] = _mm256_or_si256(a.v[i], b.v[i]));
    return a;
}
// a with its low 8 - n bits replaced by b >> n.
template <int n>
inline U8 insert_right(U8 a, U8 b) {
    return either(low_bits(a, static_cast<uint8_t>(~(0xff >> n))), shift_right<n>(b));
}
template <int n>
inline U8 minus(U8 a) {
    WOOLLY_PARTS(a.v[i] = _mm256_sub_epi8(a.v[i], _mm256_set1_epi8(n)));
    return a;
}
inline U8 flip_sign(U8 a) {
    WOOLLY_PARTS(a.v[i] = _mm256_xor_si256(a.v[i], _mm256_set1_epi8(static_cast<char>(0x80))));
    return a;
}
// Byte k of each lane.
template <int k>
inline I32 byte(U8 a) {
    I32 r;
    WOOLLY_PARTS(r.v[i] = _mm256_srli_epi32(a.v[i], 8 * k);
                 if constexpr (k < 3) r.v[i] = _mm256_and_si256(r.v[i], _mm256_set1_epi32(255)));
    return r;
}
template <int k>
inline I32 signed_byte(U8 a) {
    I32 r;
    WOOLLY_PARTS(r.v[i] = _mm256_srai_epi32(_mm256_slli_epi32(a.v[i], 24 - 8 * k), 24));
    return r;
}
inline U8 lookup(const int8_t* table, U8 a) {
    const __m256i values = _mm256_broadcastsi128_si256(load_128(table));
    WOOLLY_PARTS(a.v[i] = _mm256_shuffle_epi8(values, a.v[i]));
    return a;
}

inline U8 plus(U8 a, U8 b) {
    WOOLLY_PARTS(a.v[i] = _mm256_add_epi8(a.v[i], b.v[i]));
    return a;
}
// Bits [from, from + n) of each lane, moved to bit `to`.
template <int from, int n, int to>
inline I32 field(U8 a) {
    constexpr uint32_t mask = ((uint32_t{1} << n) - 1) << to;
    I32 r;
    WOOLLY_PARTS(const __m256i moved = from >= to ? _mm256_srli_epi32(a.v[i], from >= to ? from - to : 0)
                                                  : _mm256_slli_epi32(a.v[i], from < to ? to - from : 0);
                 r.v[i] = _mm256_and_si256(moved, _mm256_set1_epi32(int32_t(mask))));
    return r;
}
inline U8 as_bytes(I32 a) { return {{a.v[0], a.v[1]}}; }
inline U8 look_up(const uint32_t* table, I32 index) {
    U8 r;
    WOOLLY_PARTS(r.v[i] = _mm256_i32gather_epi32(reinterpret_cast<const int*>(table), index.v[i], 4));
    return r;
}
inline void look_up(const uint64_t* table, I32 index, U8* low, U8* high) {
    const long long* words = reinterpret_cast<const long long*>(table);
    WOOLLY_PARTS(
        const __m256 a = _mm256_castsi256_ps(_mm256_i32gather_epi64(words, _mm256_castsi256_si128(index.v[i]), 8));
        const __m256 b = _mm256_castsi256_ps(_mm256_i32gather_epi64(words, _mm256_extracti128_si256(index.v[i], 1), 8));
        // Works within 128 bits; the halves of a and b are then reordered.
        low->v[i] = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), 0xd8);
        high->v[i] = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8));
}
// Negates byte i of each lane if bit 4 * k + i of the lane of `signs` is set.
template <int k>
inline U8 negate(U8 a, U8 signs) {
    constexpr int32_t byte_of = 0x01010101 * (k / 2), bit_of = k % 2 == 0 ? 0x08040201 : int32_t(0x80402010);
    const __m256i lanes = _mm256_broadcastsi128_si256(
        _mm_set_epi32(0x0c0c0c0c + byte_of, 0x08080808 + byte_of, 0x04040404 + byte_of, byte_of));
    const __m256i bit = _mm256_set1_epi32(bit_of);
    WOOLLY_PARTS(const __m256i own = _mm256_shuffle_epi8(signs.v[i], lanes);
                 const __m256i negative = _mm256_cmpeq_epi8(_mm256_and_si256(own, bit), bit);
                 a.v[i] = _mm256_sub_epi8(_mm256_xor_si256(a.v[i], negative), negative));
    return a;
}
// Extracts a digit of each byte, a fraction of 256 in base 3; `power` is 3 to the number of earlier digits. There is no
// byte product: bytes are in the upper halves of 16-bit lanes, where the product drops the carry.
template <int power>
inline U8 trit(U8 a) {
    const __m256i three = _mm256_set1_epi16(3), before = _mm256_set1_epi16(power);
    WOOLLY_PARTS(const __m256i even =
                     _mm256_mulhi_epu16(_mm256_mullo_epi16(_mm256_slli_epi16(a.v[i], 8), before), three);
                 const __m256i top = _mm256_and_si256(a.v[i], _mm256_set1_epi16(int16_t(0xff00)));
                 const __m256i odd = _mm256_mulhi_epu16(_mm256_mullo_epi16(top, before), three);
                 a.v[i] = _mm256_or_si256(even, _mm256_slli_epi16(odd, 8)));
    return a;
}

// Rows per pass over the packed weights, and over opened ones.
constexpr int kMaxRows = 4, kWideRows = 2;
// Rows computed together over opened floats, and over packed ones.
constexpr int kFloatRows = 1, kFloatDots = 1;
// Rows of a product of f32 matrices, and strips of sums that fit registers.
constexpr int kProductRows = 6, kProductSums = 6, kGridSums = 6;

using Columns = const int8_t*;
inline Columns columns(const int8_t* a) { return a; }

// Four columns of activations, repeated for each row.
inline __m256i four_columns(const int8_t* a) {
    int32_t four;
    std::memcpy(&four, a, 4);
    return _mm256_set1_epi32(four);
}

// The dots are always inlined: otherwise GCC passes each struct through memory.
#if defined(__AVXVNNI__)
template <int g>
[[gnu::always_inline]] inline I32 dot4(I32 acc, U8 w, Columns a) {
    const __m256i four = four_columns(a + 4 * g);
    WOOLLY_PARTS(acc.v[i] = _mm256_dpbusd_avx_epi32(acc.v[i], w.v[i], four));
    return acc;
}
// The byte dot takes unsigned weights: flipping the top bit adds 128.
constexpr int32_t kSignedOffset = 128;
template <int g>
[[gnu::always_inline]] inline I32 dot4_signed(I32 acc, U8 w, Columns a) {
    return dot4<g>(acc, flip_sign(w), a);
}
#else
// The pair sums saturate at 16 bits: 2 * 127 * 127 = 32258 fits.
template <int g>
[[gnu::always_inline]] inline I32 dot4(I32 acc, U8 w, Columns a) {
    const __m256i ones = _mm256_set1_epi16(1), four = four_columns(a + 4 * g);
    WOOLLY_PARTS(acc.v[i] = _mm256_add_epi32(acc.v[i], _mm256_madd_epi16(_mm256_maddubs_epi16(w.v[i], four), ones)));
    return acc;
}
// Sums of pairs of products in 16 bits, widened once for 32 columns of weights up to 15: 16 * 15 * 128 = 30720 fits.
#define WOOLLY_PAIR_SUMS
constexpr int kMaxPairQuant = 15;
template <int g>
[[gnu::always_inline]] inline I32 add_pairs(I32 pairs, U8 w, Columns a) {
    const __m256i four = four_columns(a + 4 * g);
    WOOLLY_PARTS(pairs.v[i] = _mm256_add_epi16(pairs.v[i], _mm256_maddubs_epi16(w.v[i], four)));
    return pairs;
}
[[gnu::always_inline]] inline I32 add_widened(I32 acc, I32 pairs) {
    const __m256i ones = _mm256_set1_epi16(1);
    WOOLLY_PARTS(acc.v[i] = _mm256_add_epi32(acc.v[i], _mm256_madd_epi16(pairs.v[i], ones)));
    return acc;
}
// The sign of the weight moves to the activation; -128 would have no negative. 2 * 128 * 127 = 32512 fits.
constexpr int32_t kSignedOffset = 0;
template <int g>
[[gnu::always_inline]] inline I32 dot4_signed(I32 acc, U8 w, Columns a) {
    const __m256i ones = _mm256_set1_epi16(1), four = four_columns(a + 4 * g);
    WOOLLY_PARTS(const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w.v[i]), _mm256_sign_epi8(four, w.v[i]));
                 acc.v[i] = _mm256_add_epi32(acc.v[i], _mm256_madd_epi16(pairs, ones)));
    return acc;
}
#endif

// As in avx512.h.
constexpr bool kShortProducts = true;
template <int k>
[[gnu::always_inline]] inline I32 byte_times_256(U8 a) {
    const __m128i from = _mm_set_epi32(int(0x80800080u) + ((12 + k) << 8), int(0x80800080u) + ((8 + k) << 8),
                                       int(0x80800080u) + ((4 + k) << 8), int(0x80800080u) + (k << 8));
    I32 r;
    WOOLLY_PARTS(r.v[i] = _mm256_shuffle_epi8(a.v[i], _mm256_broadcastsi128_si256(from)));
    return r;
}
[[gnu::always_inline]] inline I32 add_short_product(I32 sum, I32 dot, I32 factor) {
    WOOLLY_PARTS(sum.v[i] = _mm256_add_epi32(sum.v[i], _mm256_madd_epi16(dot.v[i], factor.v[i])));
    return sum;
}

#undef WOOLLY_PARTS

}  // namespace woolly::WOOLLY_TARGET
