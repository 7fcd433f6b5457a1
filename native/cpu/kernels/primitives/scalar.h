// Portable primitives: plain loops over 16 lanes. Every other level is bit-identical.
//
// F32 and I32 are 16 lanes, one per row of a panel (or per position in attention). U8 is 64 bytes: 16 rows by 4
// consecutive columns, the operand of a 4-way byte dot. Functions take references, because each is a real call (see
// CMakeLists.txt) that would otherwise copy 64 bytes.
#include <cstdint>
#include <cstring>

namespace woolly::WOOLLY_TARGET {

struct F32 {
    float v[16];
};
struct I32 {
    int32_t v[16];
};
struct U8 {
    uint8_t v[64];
};

#define WOOLLY_LANES for (int i = 0; i < 16; ++i)
// An operation of two operands, lane by lane.
#define WOOLLY_TWO(Lanes, name, op)                     \
    inline Lanes name(const Lanes& a, const Lanes& b) { \
        Lanes r = a;                                    \
        WOOLLY_LANES r.v[i] op b.v[i];                  \
        return r;                                       \
    }

inline F32 zero() { return {}; }
inline F32 set1(float x) {
    F32 r;
    WOOLLY_LANES r.v[i] = x;
    return r;
}
inline F32 load(const float* p) {
    F32 r;
    std::memcpy(r.v, p, sizeof(r.v));
    return r;
}
inline void store(float* p, const F32& a) { std::memcpy(p, a.v, sizeof(a.v)); }
WOOLLY_TWO(F32, add, +=)
WOOLLY_TWO(F32, sub, -=)
WOOLLY_TWO(F32, mul, *=)
WOOLLY_TWO(F32, div, /=)
// x86-64 without FMA would call a slow library function here: the scalar level rounds twice there, once everywhere
// else.
inline F32 fma(const F32& a, const F32& b, const F32& c) {
    F32 r = a;
#if defined(__FMA__) || defined(__aarch64__)
    WOOLLY_LANES r.v[i] = __builtin_fmaf(r.v[i], b.v[i], c.v[i]);
#else
    WOOLLY_LANES r.v[i] = r.v[i] * b.v[i] + c.v[i];
#endif
    return r;
}
inline F32 max(const F32& a, const F32& b) {
    F32 r = a;
    WOOLLY_LANES r.v[i] = r.v[i] > b.v[i] ? r.v[i] : b.v[i];
    return r;
}
// Maximum of each lane and a number. NaN stays NaN.
inline F32 at_least(const F32& a, float least) { return max(set1(least), a); }
// Maximum of numbers, with either zero for two zeros; NaN in the first operand is ignored.
inline F32 larger(const F32& a, const F32& b) { return max(a, b); }
inline F32 abs(const F32& a) {
    F32 r = a;
    WOOLLY_LANES r.v[i] = __builtin_fabsf(r.v[i]);
    return r;
}

inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16;
    const uint32_t magnitude = h & 0x7fff;
    uint32_t bits;
    if (magnitude >= 0x7c00) {
        bits = sign | 0x7f800000 | ((magnitude & 0x3ff) << 13);  // infinity, NaN
    } else if (magnitude >= 0x0400) {
        bits = sign | ((magnitude << 13) + 0x38000000);
    } else {
        float f = float(magnitude) * 0x1p-24f;  // subnormal: exact in f32
        std::memcpy(&bits, &f, 4);
        bits |= sign;
    }
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}
inline uint16_t float_to_half(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return uint16_t(sign | 0x7e00 | ((bits >> 13) & 0x3ff));  // NaN, payload kept
    if (bits >= 0x477ff000) return uint16_t(sign | 0x7c00);                          // rounds to infinity
    if (bits < 0x38800000) {  // subnormal: the sum rounds to the nearest even multiple of 2^-24
        float scaled;
        std::memcpy(&scaled, &bits, 4);
        scaled += 0.5f;
        std::memcpy(&bits, &scaled, 4);
        return uint16_t(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + ((bits >> 13) & 1);
    return uint16_t(sign | ((bits - 0x38000000) >> 13));
}
inline F32 load_f16(const uint16_t* p) {
    F32 r;
    WOOLLY_LANES r.v[i] = half_to_float(p[i]);
    return r;
}
inline void store_f16(uint16_t* p, const F32& a) { WOOLLY_LANES p[i] = float_to_half(a.v[i]); }
inline F32 load_bf16(const uint16_t* p) {
    F32 r;
    WOOLLY_LANES {
        const uint32_t bits = uint32_t(p[i]) << 16;
        std::memcpy(&r.v[i], &bits, 4);
    }
    return r;
}

inline I32 izero() { return {}; }
inline I32 iset1(int32_t x) {
    I32 r;
    WOOLLY_LANES r.v[i] = x;
    return r;
}
WOOLLY_TWO(I32, iadd, +=)
WOOLLY_TWO(I32, isub, -=)
WOOLLY_TWO(I32, imul, *=)
inline I32 load_s8(const int8_t* p) {
    I32 r;
    WOOLLY_LANES r.v[i] = p[i];
    return r;
}
// table[code] for codes of 4 bits, at `shift` of each byte: 0 or 4.
inline I32 load_codes(const int8_t* table, const uint8_t* p, int shift) {
    I32 r;
    WOOLLY_LANES r.v[i] = table[p[i] >> shift & 15];
    return r;
}
template <int n>
inline I32 ishift_left(const I32& a) {
    I32 r = a;
    WOOLLY_LANES r.v[i] = int32_t(uint32_t(r.v[i]) << n);
    return r;
}
inline F32 to_float(const I32& a) {
    F32 r;
    WOOLLY_LANES r.v[i] = float(a.v[i]);
    return r;
}
// Initial value of an integer sum below 2^22 that is then converted to float; levels may represent it differently.
inline I32 biased(int32_t x) { return iset1(x); }
inline F32 unbiased(const I32& a) { return to_float(a); }
// Rounds to the nearest, ties to even. Unspecified for NaN.
inline I32 round_to_int(const F32& a) {
    I32 r;
    WOOLLY_LANES r.v[i] = a.v[i] != a.v[i] ? 0 : int32_t(__builtin_rintf(a.v[i]));
    return r;
}
inline I32 load_ints(const int32_t* p) {
    I32 r;
    WOOLLY_LANES r.v[i] = p[i];
    return r;
}
inline void store(int32_t* p, const I32& a) { WOOLLY_LANES p[i] = a.v[i]; }
inline void store_s8(int8_t* p, const I32& a) { WOOLLY_LANES p[i] = int8_t(a.v[i]); }
inline I32 as_ints(const F32& a) {
    I32 r;
    std::memcpy(r.v, a.v, sizeof(r.v));
    return r;
}
// a * b + c, with c broadcast in memory 16 times.
inline F32 fma_to(const F32& a, const F32& b, const float* c) { return fma(a, b, load(c)); }
// 2 to the power of each lane, for lanes from -126 to 127. Only their lowest nine bits are used.
inline F32 power_of_two(const I32& a) {
    F32 r;
    WOOLLY_LANES {
        const uint32_t bits = (uint32_t(a.v[i]) + 127) << 23;
        std::memcpy(&r.v[i], &bits, 4);
    }
    return r;
}

// Sums and maxima over the lanes, always in this order.
inline float sum_lanes(const F32& a) {
    F32 r = a;
    for (int half = 8; half >= 1; half /= 2)
        for (int i = 0; i < half; ++i) r.v[i] += r.v[i + half];
    return r.v[0];
}
inline float max_lanes(const F32& a) {
    F32 r = a;
    for (int half = 8; half >= 1; half /= 2)
        for (int i = 0; i < half; ++i) r.v[i] = r.v[i] > r.v[i + half] ? r.v[i] : r.v[i + half];
    return r.v[0];
}
inline int32_t isum_lanes(const I32& a) {
    int32_t sum = 0;
    WOOLLY_LANES sum += a.v[i];
    return sum;
}

constexpr int kPrefetch = 0;
inline void prefetch(const uint8_t*) {}
inline void prefetch_early(const uint8_t*) {}

inline U8 load_bytes(const uint8_t* p) {
    U8 r;
    std::memcpy(r.v, p, sizeof(r.v));
    return r;
}
inline void store_bytes(uint8_t* p, const U8& a) { std::memcpy(p, a.v, sizeof(a.v)); }
inline U8 low_bits(const U8& a, uint8_t mask) {
    U8 r = a;
    for (int i = 0; i < 64; ++i) r.v[i] &= mask;
    return r;
}
template <int n>
inline U8 shift_right(const U8& a) {
    U8 r = a;
    for (int i = 0; i < 64; ++i) r.v[i] = uint8_t(r.v[i] >> n);
    return r;
}
template <int n>
inline U8 shift_left(const U8& a) {
    U8 r = a;
    for (int i = 0; i < 64; ++i) r.v[i] = uint8_t(r.v[i] << n);
    return r;
}
inline U8 either(const U8& a, const U8& b) {
    U8 r = a;
    for (int i = 0; i < 64; ++i) r.v[i] |= b.v[i];
    return r;
}
// a with its low 8 - n bits replaced by b >> n.
template <int n>
inline U8 insert_right(const U8& a, const U8& b) {
    U8 r = a;
    for (int i = 0; i < 64; ++i) r.v[i] = uint8_t((r.v[i] & ~(0xff >> n)) | (b.v[i] >> n));
    return r;
}
template <int n>
inline U8 minus(const U8& a) {
    U8 r = a;
    for (int i = 0; i < 64; ++i) r.v[i] = uint8_t(r.v[i] - n);
    return r;
}
// Signed bytes plus 128.
inline U8 flip_sign(const U8& a) {
    U8 r = a;
    for (int i = 0; i < 64; ++i) r.v[i] ^= 0x80;
    return r;
}
// Byte k of each lane.
template <int k>
inline I32 byte(const U8& a) {
    I32 r;
    WOOLLY_LANES r.v[i] = a.v[4 * i + k];
    return r;
}
template <int k>
inline I32 signed_byte(const U8& a) {
    I32 r;
    WOOLLY_LANES r.v[i] = int8_t(a.v[4 * i + k]);
    return r;
}
// table[a] for bytes below 16.
inline U8 lookup(const int8_t* table, const U8& a) {
    U8 r = a;
    for (int i = 0; i < 64; ++i) r.v[i] = uint8_t(table[r.v[i]]);
    return r;
}

inline U8 plus(const U8& a, const U8& b) {
    U8 r = a;
    for (int i = 0; i < 64; ++i) r.v[i] = uint8_t(r.v[i] + b.v[i]);
    return r;
}
// Bits [from, from + n) of each lane, moved to bit `to`.
template <int from, int n, int to>
inline I32 field(const U8& a) {
    I32 r;
    WOOLLY_LANES {
        uint32_t lane;
        std::memcpy(&lane, a.v + 4 * i, 4);
        r.v[i] = int32_t((lane >> from & ((uint32_t{1} << n) - 1)) << to);
    }
    return r;
}
inline U8 as_bytes(const I32& a) {
    U8 r;
    std::memcpy(r.v, a.v, sizeof(r.v));
    return r;
}
// Looks up each lane's word in a table.
inline U8 look_up(const uint32_t* table, const I32& index) {
    U8 r;
    WOOLLY_LANES std::memcpy(r.v + 4 * i, table + index.v[i], 4);
    return r;
}
// The lower and upper halves of each lane's word.
inline void look_up(const uint64_t* table, const I32& index, U8* low, U8* high) {
    WOOLLY_LANES {
        std::memcpy(low->v + 4 * i, table + index.v[i], 4);
        std::memcpy(high->v + 4 * i, reinterpret_cast<const uint8_t*>(table + index.v[i]) + 4, 4);
    }
}
// Negates byte i of each lane if bit 4 * k + i of the lane of `signs` is set.
template <int k>
inline U8 negate(const U8& a, const U8& signs) {
    U8 r = a;
    for (int i = 0; i < 64; ++i)
        if (signs.v[i / 4 * 4 + k / 2] >> (4 * (k % 2) + i % 4) & 1) r.v[i] = uint8_t(-r.v[i]);
    return r;
}
// Extracts a digit of each byte, a fraction of 256 in base 3; `power` is 3 to the number of earlier digits.
template <int power>
inline U8 trit(const U8& a) {
    U8 r = a;
    for (int i = 0; i < 64; ++i) r.v[i] = uint8_t(uint8_t(r.v[i] * power) * 3 >> 8);
    return r;
}

// Rows per pass over the packed weights, and over opened ones (generic/k_quants_many_rows.h).
constexpr int kMaxRows = 1, kWideRows = 1;
// Rows computed together over opened floats, and over packed ones.
constexpr int kFloatRows = 1, kFloatDots = 1;
// Rows of a product of f32 matrices, and strips of sums that fit registers.
constexpr int kProductRows = 2, kProductSums = 2, kGridSums = 2;

// Sixteen activations, in the level's preferred form.
using Columns = const int8_t*;
inline Columns columns(const int8_t* a) { return a; }

// acc[row] += sum over 4 columns of w[row][column] * a[4 * g + column]; w is below 128 in dot4, signed in dot4_signed.
// dot4_signed may add kSignedOffset to each weight; the caller then subtracts kSignedOffset * sum(a).
constexpr int32_t kSignedOffset = 0;
template <int g>
inline I32 dot4_signed(const I32& acc, const U8& w, Columns a) {
    I32 sum = acc;
    for (int r = 0; r < 16; ++r)
        for (int j = 0; j < 4; ++j) sum.v[r] += int8_t(w.v[4 * r + j]) * a[4 * g + j];
    return sum;
}
template <int g>
inline I32 dot4(const I32& acc, const U8& w, Columns a) {
    return dot4_signed<g>(acc, w, a);
}

#undef WOOLLY_LANES

// 16-bit dots are multiplied like all others (generic/k_quants.h).
constexpr bool kShortProducts = false;

}  // namespace woolly::WOOLLY_TARGET
