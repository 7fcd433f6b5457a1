// AVX-512 (F, BW, DQ, VL) with VNNI: 16 lanes are one register.
// GCC 12 and older warn about the undefined operand that their own header passes to unmasked intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

namespace woolly::WOOLLY_TARGET {

struct F32 {
    __m512 v;
};
struct I32 {
    __m512i v;
};
struct U8 {
    __m512i v;
};

inline F32 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F32 zero() { return {_mm512_setzero_ps()}; }
inline F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
inline F32 add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32 sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32 mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The instruction is a > b ? a : b: it returns the second operand for NaN and for two zeros.
inline F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32 at_least(F32 a, float least) { return max(set1(least), a); }
inline F32 larger(F32 a, F32 b) { return max(a, b); }
inline I32 as_ints(F32 a) { return {_mm512_castps_si512(a.v)}; }
inline F32 fma_to(F32 a, F32 b, const float* c) { return fma(a, b, load(c)); }
inline F32 abs(F32 a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)}; }
inline F32 div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }

inline __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

inline F32 load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(load_256(p))}; }
inline void store_f16(uint16_t* p, F32 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline F32 load_bf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_256(p)), 16))};
}

inline I32 iset1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I32 izero() { return {_mm512_setzero_si512()}; }
inline I32 iadd(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I32 isub(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline I32 imul(I32 a, I32 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline I32 load_s8(const int8_t* p) { return {_mm512_cvtepi8_epi32(load_128(p))}; }
inline I32 load_codes(const int8_t* table, const uint8_t* p, int shift) {
    const __m128i codes = _mm_and_si128(_mm_srl_epi16(load_128(p), _mm_cvtsi32_si128(shift)), _mm_set1_epi8(15));
    return {_mm512_cvtepi8_epi32(_mm_shuffle_epi8(load_128(table), codes))};
}
inline F32 to_float(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }
template <int n>
inline I32 ishift_left(I32 a) {
    return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
inline I32 ishift_right(I32 a) {
    return {_mm512_srai_epi32(a.v, n)};
}
inline I32 biased(int32_t x) { return iset1(x); }
inline F32 unbiased(I32 a) { return to_float(a); }
inline I32 round_to_int(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }
inline I32 load_ints(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store(int32_t* p, I32 a) { _mm512_storeu_si512(p, a.v); }
inline void store_s8(int8_t* p, I32 a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v)); }
// Sums of each 16 of 256 bytes. Bytes are biased by 128 and added as unsigned.
inline void sums_of_16(const int8_t* q, int32_t* sums) {
    const __m512i even = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0), odd = _mm512_set_epi64(15, 13, 11, 9, 7, 5, 3, 1);
    const auto eights = [&](int i) {
        const __m512i larger = _mm512_xor_si512(_mm512_loadu_si512(q + 64 * i), _mm512_set1_epi8(-128));
        return _mm512_sad_epu8(larger, _mm512_setzero_si512());
    };
    for (int i = 0; i < 4; i += 2) {
        const __m512i a = eights(i), b = eights(i + 1);
        const __m512i both =
            _mm512_add_epi64(_mm512_permutex2var_epi64(a, even, b), _mm512_permutex2var_epi64(a, odd, b));
        const __m256i less = _mm256_sub_epi32(_mm512_cvtepi64_epi32(both), _mm256_set1_epi32(16 * 128));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + 4 * i), less);
    }
}
// Lane i of the result reduces all lanes of v[i] with `both`: each step combines two vectors into one with half of
// their lanes.
template <class F>
[[gnu::always_inline]] inline __m512i joined_lanes(__m512i (&v)[16], const F& both) {
    for (int i = 0; i < 8; ++i)
        v[i] = both(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; ++i)
        v[i] = both(_mm512_unpacklo_epi64(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_epi64(v[2 * i], v[2 * i + 1]));
    for (int n = 2; n > 0; n /= 2)
        for (int i = 0; i < n; ++i)
            v[i] = both(_mm512_shuffle_i32x4(v[2 * i], v[2 * i + 1], 0x88),
                        _mm512_shuffle_i32x4(v[2 * i], v[2 * i + 1], 0xdd));
    return v[0];
}
// quantize<32, 32> of generic/vectors.h for 16 blocks together: one by one, their maxima, scales and sums are long
// dependency chains. Returns false and writes nothing if a block is not ordinary. Magnitudes compare like their bits,
// with infinities and NaN above all numbers.
inline bool quantize_16(const float* x, int8_t* q, float* scale, int32_t* sums) {
    const __m512i size = _mm512_set1_epi32(0x7fffffff);
    __m512i v[16];
    for (int b = 0; b < 16; ++b)
        v[b] = _mm512_max_epu32(_mm512_and_si512(_mm512_loadu_si512(x + 32 * b), size),
                                _mm512_and_si512(_mm512_loadu_si512(x + 32 * b + 16), size));
    const __m512i bits = joined_lanes(v, [](__m512i a, __m512i b) { return _mm512_max_epu32(a, b); });
    const __m512 magnitude = _mm512_castsi512_ps(bits), most = _mm512_set1_ps(127.0f);
    const __m512 scales = _mm512_div_ps(magnitude, most);
    if (_mm512_cmp_ps_mask(scales, _mm512_set1_ps(0x1p-100f), _CMP_GT_OQ) != 0xffff ||
        _mm512_cmplt_epu32_mask(bits, _mm512_set1_epi32(0x7f800000)) != 0xffff)
        return false;
    _mm512_storeu_ps(scale, scales);
    alignas(64) float inverse[16];
    _mm512_store_ps(inverse, _mm512_div_ps(most, magnitude));
    for (int b = 0; b < 16; ++b) {
        const F32 by = set1(inverse[b]);
        const I32 low = round_to_int(mul(load(x + 32 * b), by)), high = round_to_int(mul(load(x + 32 * b + 16), by));
        store_s8(q + 32 * b, low);
        store_s8(q + 32 * b + 16, high);
        v[b] = iadd(low, high).v;
    }
    _mm512_storeu_si512(sums, joined_lanes(v, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }));
    return true;
}
inline F32 power_of_two(I32 a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(a.v, _mm512_set1_epi32(127)), 23))};
}

inline float sum_lanes(F32 a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float max_lanes(F32 a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline int32_t isum_lanes(I32 a) { return _mm512_reduce_add_epi32(a.v); }

// Prefetch distance of weights, doubled in super-blocks. The hardware prefetcher alone does not keep up with the dots.
constexpr int kPrefetch = 4096;
// Inline assembly instead of the builtin: GCC moves builtin prefetches to the start of a loop, where too many are
// issued together.
[[gnu::always_inline]] inline void prefetch(const uint8_t* p) { asm volatile("prefetcht0 (%0)" ::"r"(p) : "memory"); }
// Prefetch to L2, for data that is used much later.
[[gnu::always_inline]] inline void prefetch_early(const uint8_t* p) {
    asm volatile("prefetcht1 (%0)" ::"r"(p) : "memory");
}

inline U8 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_bytes(uint8_t* p, U8 a) { _mm512_storeu_si512(p, a.v); }
inline U8 low_bits(U8 a, uint8_t mask) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(static_cast<char>(mask)))}; }
// There is no byte shift: 16-bit lanes shift, then bits that crossed from the neighboring byte are cleared.
template <int n>
inline U8 shift_right(U8 a) {
    return low_bits({_mm512_srli_epi16(a.v, n)}, static_cast<uint8_t>(0xff >> n));
}
template <int n>
inline U8 shift_left(U8 a) {
    return low_bits({_mm512_slli_epi16(a.v, n)}, static_cast<uint8_t>(0xff << n));
}
inline U8 either(U8 a, U8 b) { return {_mm512_or_si512(a.v, b.v)}; }
// a with its low 8 - n bits replaced by b >> n: one bitwise select.
template <int n>
inline U8 insert_right(U8 a, U8 b) {
    return {_mm512_ternarylogic_epi32(_mm512_set1_epi8(static_cast<char>(0xff >> n)), _mm512_srli_epi16(b.v, n), a.v,
                                      0xca)};
}
template <int n>
inline U8 minus(U8 a) {
    return {_mm512_sub_epi8(a.v, _mm512_set1_epi8(n))};
}
inline U8 flip_sign(U8 a) { return {_mm512_xor_si512(a.v, _mm512_set1_epi8(static_cast<char>(0x80)))}; }
// Byte k of each lane.
template <int k>
inline I32 byte(U8 a) {
    return {_mm512_and_si512(_mm512_srli_epi32(a.v, 8 * k), _mm512_set1_epi32(255))};
}
template <int k>
inline I32 signed_byte(U8 a) {
    return {_mm512_srai_epi32(_mm512_slli_epi32(a.v, 24 - 8 * k), 24)};
}
inline U8 lookup(const int8_t* table, U8 a) {
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_128(table)), a.v)};
}

inline U8 plus(U8 a, U8 b) { return {_mm512_add_epi8(a.v, b.v)}; }
// Bits [from, from + n) of each lane, moved to bit `to`.
template <int from, int n, int to>
inline I32 field(U8 a) {
    constexpr uint32_t mask = ((uint32_t{1} << n) - 1) << to;
    const __m512i moved = from >= to ? _mm512_srli_epi32(a.v, unsigned(from >= to ? from - to : 0))
                                     : _mm512_slli_epi32(a.v, unsigned(from < to ? to - from : 0));
    return {_mm512_and_si512(moved, _mm512_set1_epi32(int32_t(mask)))};
}
inline U8 as_bytes(I32 a) { return {a.v}; }
inline U8 look_up(const uint32_t* table, I32 index) { return {_mm512_i32gather_epi32(index.v, table, 4)}; }
// Gathered as 64-bit words: half as many loads as for each half.
inline void look_up(const uint64_t* table, I32 index, U8* low, U8* high) {
    const __m512i a = _mm512_i32gather_epi64(_mm512_castsi512_si256(index.v), table, 8);
    const __m512i b = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(index.v, 1), table, 8);
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    low->v = _mm512_permutex2var_epi32(a, even, b);
    high->v = _mm512_permutex2var_epi32(a, _mm512_or_si512(even, _mm512_set1_epi32(1)), b);
}
// Negates byte i of each lane if bit 4 * k + i of the lane of `signs` is set.
template <int k>
inline U8 negate(U8 a, U8 signs) {
    constexpr int32_t byte_of = 0x01010101 * (k / 2), bit_of = k % 2 == 0 ? 0x08040201 : int32_t(0x80402010);
    const __m512i lanes = _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    const __m512i own = _mm512_shuffle_epi8(signs.v, _mm512_or_si512(lanes, _mm512_set1_epi32(byte_of)));
    const __mmask64 negative = _mm512_test_epi8_mask(own, _mm512_set1_epi32(bit_of));
    return {_mm512_mask_sub_epi8(a.v, negative, _mm512_setzero_si512(), a.v)};
}
// Extracts a digit of each byte, a fraction of 256 in base 3; `power` is 3 to the number of earlier digits. There is no
// byte product: bytes are in the upper halves of 16-bit lanes, where the product drops the carry.
template <int power>
inline U8 trit(U8 a) {
    const __m512i three = _mm512_set1_epi16(3), before = _mm512_set1_epi16(power);
    const __m512i even = _mm512_mulhi_epu16(_mm512_mullo_epi16(_mm512_slli_epi16(a.v, 8), before), three);
    const __m512i top = _mm512_and_si512(a.v, _mm512_set1_epi16(int16_t(0xff00)));
    const __m512i odd = _mm512_mulhi_epu16(_mm512_mullo_epi16(top, before), three);
    return {_mm512_or_si512(even, _mm512_slli_epi16(odd, 8))};
}

// Rows per pass over the packed weights, and over opened ones.
constexpr int kMaxRows = 8, kWideRows = 8;
// Rows computed together over opened floats, and over packed ones.
constexpr int kFloatRows = 6, kFloatDots = 4;
// Rows of a product of f32 matrices, and strips of sums that fit registers.
constexpr int kProductRows = 6, kProductSums = 24, kGridSums = 24;

using Columns = const int8_t*;
inline Columns columns(const int8_t* a) { return a; }

template <int g>
[[gnu::always_inline]] inline I32 dot4(I32 acc, U8 w, Columns a) {
    int32_t four;
    std::memcpy(&four, a + 4 * g, 4);
    return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(four))};
}
// The byte dot takes unsigned weights: flipping the top bit adds 128.
constexpr int32_t kSignedOffset = 128;
template <int g>
[[gnu::always_inline]] inline I32 dot4_signed(I32 acc, U8 w, Columns a) {
    return dot4<g>(acc, flip_sign(w), a);
}

// sum += dot * factor, for 16-bit dots. The factor is byte k of each lane, times 256: the lane's upper half is 0, so
// the sign extension of the dot has no effect.
constexpr bool kShortProducts = true;
template <int k>
[[gnu::always_inline]] inline I32 byte_times_256(U8 a) {
    const __m128i from = _mm_set_epi32(int(0x80800080u) + ((12 + k) << 8), int(0x80800080u) + ((8 + k) << 8),
                                       int(0x80800080u) + ((4 + k) << 8), int(0x80800080u) + (k << 8));
    return {_mm512_shuffle_epi8(a.v, _mm512_broadcast_i32x4(from))};
}
[[gnu::always_inline]] inline I32 add_short_product(I32 sum, I32 dot, I32 factor) {
    return {_mm512_dpwssd_epi32(sum.v, dot.v, factor.v)};
}

// Packs two 16-bit numbers into each lane, and acc += such pairs times a pair of activation sums.
[[gnu::always_inline]] inline U8 pair_of(I32 low, I32 high) {
    return {_mm512_or_si512(_mm512_and_si512(low.v, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(high.v, 16))};
}
[[gnu::always_inline]] inline I32 pair_dot(I32 acc, U8 pairs, const uint8_t* sums) {
    int32_t two;
    std::memcpy(&two, sums, 4);
    return {_mm512_dpwssd_epi32(acc.v, pairs.v, _mm512_set1_epi32(two))};
}

}  // namespace woolly::WOOLLY_TARGET
