// Packed weights. A tile is 16 rows x 256 columns, and what a lane of a warp needs of it for the operand A of sixteen
// mma.m16n8k16 lies together: rows g = lane / 4 and g + 8, places 2t, 2t + 1, 2t + 8, 2t + 9 of each 16, t = lane % 4.
// Places are columns in another order, the same in tiles and in rows (place_of): a lane has 64 columns that follow one
// another, four for each mma, so that their scales are its own.
//
// A matrix is its tiles, [strip of 16 rows][tile of 256 columns], then one f32 for each packed row: the row's factor, a
// power of two. Opened halves times the factor are the weights, so no scale of a file is too large or too small: the
// factor is chosen by the largest scale of the row (pack.cu), and what is lost beside the rounding to 11 bits is below
// 2^-16 of the row's largest weight. Rows and columns beyond the matrix are zeros.
//
// Openers get by without converting integers: bits that are masked out of a word are subnormal halves (q * 2^-24, or
// q * 2^-20 four bits higher), and one fma makes the weight of each.
#pragma once

#include "primitives/half.cuh"

struct F16;
struct Q8_0;
struct Wide;
struct Q4_0;
struct Q4_1;
struct Q5_0;
struct Q5_1;
struct IQ4_NL;
struct MXFP4;
struct NVFP4;
struct Q2_K;
struct Q3_K;
struct Q4_K;
struct Q5_K;
struct Q6_K;
// All kinds of tiles: X(name in kernels, name here). Other types of files are packed as one of these (blocks.cuh):
// BF16 as F16, IQ4_XS as IQ4_NL, and IQ1, IQ2, IQ3, TQ1_0 and TQ2_0 as Wide, which is wider but loses nothing.
// clang-format off
#define TILE_TYPES(X) \
    X(f16, F16) \
    X(q8_0, Q8_0) \
    X(wide, Wide) \
    X(q4_0, Q4_0) \
    X(q4_1, Q4_1) \
    X(q5_0, Q5_0) \
    X(q5_1, Q5_1) \
    X(iq4_nl, IQ4_NL) \
    X(mxfp4, MXFP4) \
    X(nvfp4, NVFP4) \
    X(q2_k, Q2_K) \
    X(q3_k, Q3_K) \
    X(q4_k, Q4_K) \
    X(q5_k, Q5_K) \
    X(q6_k, Q6_K)
// clang-format on

// Two names as one, so that the preprocessor can ask what holds for the one kind that is compiled.
#define CONCAT_EXPANDED(a, b) a##b
#define CONCAT(a, b) CONCAT_EXPANDED(a, b)

// Tile<T>: `bytes` of a tile; `Scales`, what a lane keeps of a tile; `open`: the operand A of mma number k16 (0 to 15),
// a[0] row g, a[1] row g + 8, a[2] and a[3] the same rows 8 columns on. All lanes of a warp must call them together.
// The tile may lie in shared or global memory, 16 bytes aligned. Unroll the loop over k16: four mma share one load.
// Kinds with nibbles have `open_word`, too, which is given them (nibble_word).
template <class T>
struct Tile;

// Where a column stands among the 256 places of its tile: lane t has columns 64 t to 64 t + 63, of which mma number k16
// takes 4 k16 to 4 k16 + 3, and two of these lie together. The other way round below.
__device__ __forceinline__ int place_of(int k) {
    return (k & ~255) | (k >> 2 & 15) << 4 | (k >> 1 & 1) << 3 | (k >> 6 & 3) << 1 | (k & 1);
}
__device__ __forceinline__ int column_at(int place) {
    return (place & ~255) | (place >> 1 & 3) << 6 | (place >> 4 & 15) << 2 | (place >> 3 & 1) << 1 | (place & 1);
}
// Nibbles of four mma: word k16 % 4 has, from the lowest nibble, rows g and g + 8 of place 2t, then of place 2t + 8;
// the upper half word the same of the odd places.
__device__ __forceinline__ u32 nibble_word(const u8* tile, int lane, int k16) {
    return select_word(*reinterpret_cast<const Words4*>(tile + (k16 >> 2) * 512 + lane * 16), k16 & 3);
}

// Numbers that are in registers from here on. Compilers load each word of a vector where it is used, by itself, which
// takes four times as long in shared memory.
__device__ __forceinline__ void keep_in_registers(u32& a, u32& b) {
#ifndef WOOLLY_EMULATED
    asm volatile("" : "+r"(a), "+r"(b));
#endif
}
__device__ __forceinline__ void keep_in_registers(u32& a, u32& b, u32& c, u32& d) {
#ifndef WOOLLY_EMULATED
    asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
#endif
}
// The words of four mma at once, number k64 (0 to 3) of a tile.
__device__ __forceinline__ Words4 nibble_words(const u8* tile, int lane, int k64) {
    Words4 v = *reinterpret_cast<const Words4*>(tile + k64 * 512 + lane * 16);
    keep_in_registers(v.x, v.y, v.z, v.w);
    return v;
}

// Fifth bits of four mma in one word: of row g under bit 4, of row g + 8 under bit 8, after a shift for places 2t and
// 2t + 1 (`later` 0) or those 8 on (1).
__device__ __forceinline__ u32 fifth_bits(u32 word, int k16, int later) {
    const int at = (k16 >> 1 & 1) * 8 + (k16 & 1) * 2 + later;
    return at < 4 ? word << (4 - at) : word >> (at - 4);
}

template <>
struct Tile<F16> {
    static constexpr int bytes = 8192;
    static constexpr bool has_nibbles = false;
    struct Scales {};
    __device__ __forceinline__ static Scales scales(const u8*, int) { return {}; }
    __device__ __forceinline__ static void unpack(const u8* tile, const Scales&, int lane, int k16, u32 a[4]) {
        const Words4 v = *reinterpret_cast<const Words4*>(tile + k16 * 512 + lane * 16);
        a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
    }
};
// Weights of 8 bits plus 128; of two mma a lane has 16 bytes, four of row g and four of row g + 8 for each.
__device__ __forceinline__ void unpack_bytes(const u8* tile, u32 pair, int lane, int k16, u32 a[4]) {
    const Words4 v = *reinterpret_cast<const Words4*>(tile + (k16 >> 1) * 512 + lane * 16);
    const u32 low = k16 & 1 ? v.z : v.x, high = k16 & 1 ? v.w : v.y;
    const u32 minus = half_mul(pair, 0x80808080u);  // -128 in units of the fields
    a[0] = half_fma(pick_bytes(low, 0, 0x4140), half_low(pair), half_low(minus));
    a[1] = half_fma(pick_bytes(high, 0, 0x4140), half_high(pair), half_high(minus));
    a[2] = half_fma(pick_bytes(low, 0, 0x4342), half_low(pair), half_low(minus));
    a[3] = half_fma(pick_bytes(high, 0, 0x4342), half_high(pair), half_high(minus));
}

// 4096 bytes of quants. Then scales, as halves: of lane (g, t) those of groups 2t and 2t + 1, rows g and g + 8 in a
// word. All types with a scale for 32 columns have these at their end.
template <>
struct Tile<Q8_0> {
    static constexpr int bytes = 4096 + 256;
    static constexpr bool has_nibbles = false;
    typedef Words2 Scales;
    __device__ __forceinline__ static Scales scales(const u8* tile, int lane) {
        return *reinterpret_cast<const Words2*>(tile + 4096 + lane * 8);
    }
    __device__ __forceinline__ static void unpack(const u8* tile, const Scales& s, int lane, int k16, u32 a[4]) {
        unpack_bytes(tile, k16 & 8 ? s.y : s.x, lane, k16, a);
    }
};

// The same with a scale for 16 columns: of lane (g, t) those of groups 4t to 4t + 3.
template <>
struct Tile<Wide> {
    static constexpr int bytes = 4096 + 512;
    static constexpr bool has_nibbles = false;
    typedef Words4 Scales;
    __device__ __forceinline__ static Scales scales(const u8* tile, int lane) {
        return *reinterpret_cast<const Words4*>(tile + 4096 + lane * 16);
    }
    __device__ __forceinline__ static void unpack(const u8* tile, const Scales& s, int lane, int k16, u32 a[4]) {
        unpack_bytes(tile, select_word(s, k16 >> 2), lane, k16, a);
    }
};

#include "weights/tile_32.cuh"
#include "weights/tile_k.cuh"

template <class A, class B>
constexpr bool is_same = false;
template <class A>
constexpr bool is_same<A, A> = true;
// Operands A of four mma, number k64 (0 to 3) of a tile.
template <class T>
__device__ __forceinline__ void unpack_four(const u8* tile, const typename Tile<T>::Scales& s, int lane, int k64,
                                            u32 (&a)[4][4]) {
    if constexpr (is_same<T, Q6_K>) {
        const Words4 v = nibble_words(tile, lane, k64);
        Words2 h = *reinterpret_cast<const Words2*>(tile + 2048 + (k64 >> 1) * 512 + lane * 16 + (k64 & 1) * 8);
        keep_in_registers(h.x, h.y);
#pragma unroll
        for (int e = 0; e < 4; e++)
            Tile<Q6_K>::unpack_words(select_word(v, e), e < 2 ? h.x : h.y, s, lane, k64 * 4 + e, a[e]);
    } else if constexpr (Tile<T>::has_nibbles) {
        const Words4 v = nibble_words(tile, lane, k64);
#pragma unroll
        for (int e = 0; e < 4; e++) Tile<T>::unpack_word(select_word(v, e), tile, s, lane, k64 * 4 + e, a[e]);
    } else {
#pragma unroll
        for (int e = 0; e < 4; e++) Tile<T>::unpack(tile, s, lane, k64 * 4 + e, a[e]);
    }
}
