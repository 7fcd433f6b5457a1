// Packed weights: tiles of 16 rows x 256 columns, stored in the order in which lanes read the A operands of sixteen
// mma.m16n8k16. Lane (g = lane / 4, t = lane % 4) reads rows g and g + 8, places 2t, 2t + 1, 2t + 8, 2t + 9 of each k16
// step. Places permute the columns, in tiles and in activation rows alike (place_of): a lane has 64 consecutive
// columns, four per mma, and thus its own scales.
//
// A matrix is [16-row panel][256-column tile], followed by one f32 factor per packed row, a power of two. Unpacked f16
// times the factor is the weight. The factor follows the largest scale of the row (pack.cu), so no scale of a file
// overflows or underflows; beyond rounding to 11 bits, the error is below 2^-16 of the row's largest weight. Rows and
// columns past the matrix are zeros.
//
// Unpacking needs no integer conversion: masked bits of a word are f16 subnormals (q * 2^-24, or q * 2^-20 four bits
// higher), and one fma turns each into a weight.
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
// Tile types: X(name in kernels, type). Other file types are packed losslessly as one of these (blocks.cuh): BF16 as
// F16, IQ4_XS as IQ4_NL; IQ1, IQ2, IQ3, TQ1_0 and TQ2_0 as Wide, which takes more bits.
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

// Token pasting with expanded arguments, for preprocessor conditions on the tile type that is compiled.
#define CONCAT_EXPANDED(a, b) a##b
#define CONCAT(a, b) CONCAT_EXPANDED(a, b)

// Tile<T>: `bytes` per tile, `Scales` of a lane, and `unpack`, the A operand of mma k16 (0 to 15): a[0] row g, a[1] row
// g + 8; a[2] and a[3] the same rows, 8 places on. Called by all lanes of a warp. The tile is in shared or global
// memory, 16-byte aligned. Unroll the loop over k16: four mma share one load. Types with nibbles also have
// `unpack_word`, which takes the word of nibble_word.
template <class T>
struct Tile;

// Place of a column in its tile, and its inverse. Lane t has columns 64 t to 64 t + 63; mma k16 takes 4 k16 to 4 k16 +
// 3 of them, pairs staying adjacent.
__device__ __forceinline__ int place_of(int k) {
    return (k & ~255) | (k >> 2 & 15) << 4 | (k >> 1 & 1) << 3 | (k >> 6 & 3) << 1 | (k & 1);
}
__device__ __forceinline__ int column_at(int place) {
    return (place & ~255) | (place >> 1 & 3) << 6 | (place >> 4 & 15) << 2 | (place >> 3 & 1) << 1 | (place & 1);
}
// Nibbles of one mma (a load holds four): in the low half word, from the lowest nibble, rows g and g + 8 of place 2t,
// then of place 2t + 8; in the high half word the odd places.
__device__ __forceinline__ u32 nibble_word(const u8* tile, int lane, int k16) {
    return select_word(*reinterpret_cast<const Words4*>(tile + (k16 >> 2) * 512 + lane * 16), k16 & 3);
}

// Forces values into registers. Otherwise compilers load each word of a vector separately where it is used: four times
// slower from shared memory.
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
// Nibble words of four mma, k64 = 0 to 3.
__device__ __forceinline__ Words4 nibble_words(const u8* tile, int lane, int k64) {
    Words4 v = *reinterpret_cast<const Words4*>(tile + k64 * 512 + lane * 16);
    keep_in_registers(v.x, v.y, v.z, v.w);
    return v;
}

// Fifth bits of one mma, shifted so that row g has bit 4 and row g + 8 bit 8; `later`: 0 for places 2t, 2t + 1, 1 for
// those 8 on.
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
// 8-bit weights plus 128: 16 bytes per lane for two mma, four of row g and four of row g + 8 each.
__device__ __forceinline__ void unpack_bytes(const u8* tile, u32 pair, int lane, int k16, u32 a[4]) {
    const Words4 v = *reinterpret_cast<const Words4*>(tile + (k16 >> 1) * 512 + lane * 16);
    const u32 low = k16 & 1 ? v.z : v.x, high = k16 & 1 ? v.w : v.y;
    const u32 minus = half_mul(pair, 0x80808080u);  // -128 in units of the fields
    a[0] = half_fma(pick_bytes(low, 0, 0x4140), half_low(pair), half_low(minus));
    a[1] = half_fma(pick_bytes(high, 0, 0x4140), half_high(pair), half_high(minus));
    a[2] = half_fma(pick_bytes(low, 0, 0x4342), half_low(pair), half_low(minus));
    a[3] = half_fma(pick_bytes(high, 0, 0x4342), half_high(pair), half_high(minus));
}

// 4,096 bytes of quants, then f16 scales: of lane (g, t) those of groups 2t and 2t + 1, rows g and g + 8 per word. All
// types with a scale per 32 columns end like this.
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

// Same with a scale per 16 columns: of lane (g, t) those of groups 4t to 4t + 3.
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
// A operands of four mma, k64 = 0 to 3.
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
