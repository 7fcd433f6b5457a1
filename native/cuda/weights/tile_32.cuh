// Tiles of types with a float scale per 32 columns (16 in NVFP4).
#pragma once

#include "weights/tile.cuh"

// Nibbles, fifth bits (512 bytes) if any, scales. MINUS: zero points of rows g and g + 8, in units of the fields. With
// minima (added), a lane has those of groups 2t and 2t + 1 after its scales.
template <bool HAS_FIFTH, bool HAS_MINIMA, u32 MINUS>
struct Nibbles32 {
    static constexpr int quants = HAS_FIFTH ? 2560 : 2048, bytes = quants + (HAS_MINIMA ? 512 : 256);
    static constexpr bool has_nibbles = true;
    struct Scales {
        u32 pairs[2], minima[2];
    };
    __device__ __forceinline__ static Scales scales(const u8* tile, int lane) {
        if (HAS_MINIMA) {
            const Words4 w = *reinterpret_cast<const Words4*>(tile + quants + lane * 16);
            return {{w.x, w.y}, {w.z, w.w}};
        }
        const Words2 w = *reinterpret_cast<const Words2*>(tile + quants + lane * 8);
        return {{w.x, w.y}, {0, 0}};
    }
    __device__ __forceinline__ static void unpack(const u8* tile, const Scales& s, int lane, int k16, u32 a[4]) {
        unpack_word(nibble_word(tile, lane, k16), tile, s, lane, k16, a);
    }
    __device__ __forceinline__ static void unpack_word(u32 v, const u8* tile, const Scales& s, int lane, int k16,
                                                       u32 a[4]) {
        const u32 u = v >> 8;
        const u32 pair = s.pairs[k16 >> 3], add = HAS_MINIMA ? s.minima[k16 >> 3] : half_mul(pair, MINUS);
        u32 fields[4] = {v & 0x000f000fu, v & 0x00f000f0u, u & 0x000f000fu, u & 0x00f000f0u};
        if (HAS_FIFTH) {
            const u32 h = select_word(*reinterpret_cast<const Words4*>(tile + 2048 + lane * 16), k16 >> 2);
            const u32 h0 = fifth_bits(h, k16, 0), h1 = fifth_bits(h, k16, 1);
            fields[0] |= h0 & 0x00100010u, fields[1] |= h0 & 0x01000100u;
            fields[2] |= h1 & 0x00100010u, fields[3] |= h1 & 0x01000100u;
        }
        a[0] = half_fma(fields[0], half_low(pair), half_low(add));
        a[1] = half_fma(fields[1], half_high(pair), half_high(add));
        a[2] = half_fma(fields[2], half_low(pair), half_low(add));
        a[3] = half_fma(fields[3], half_high(pair), half_high(add));
    }
};
template <>
struct Tile<Q4_0> : Nibbles32<false, false, 0x80808008u> {};  // minus 8
template <>
struct Tile<Q4_1> : Nibbles32<false, true, 0> {};
template <>
struct Tile<Q5_0> : Nibbles32<true, false, 0x81008010u> {};  // minus 16
template <>
struct Tile<Q5_1> : Nibbles32<true, true, 0> {};

// Nibbles that index the IQ4_NL table: in the low half word, row g of places 2t and 2t + 1, then row g + 8; in the high
// half word the places 8 on. Scales as in Q8_0.
template <>
struct Tile<IQ4_NL> {
    static constexpr int bytes = 2048 + 256;
    static constexpr bool has_nibbles = true;
    typedef Words2 Scales;
    __device__ __forceinline__ static Scales scales(const u8* tile, int lane) {
        return *reinterpret_cast<const Words2*>(tile + 2048 + lane * 8);
    }
    __device__ __forceinline__ static void unpack(const u8* tile, const Scales& s, int lane, int k16, u32 a[4]) {
        unpack_word(nibble_word(tile, lane, k16), tile, s, lane, k16, a);
    }
    __device__ __forceinline__ static void unpack_word(u32 v, const u8*, const Scales& s, int lane, int k16, u32 a[4]) {
        const u32 pair = k16 & 8 ? s.y : s.x;
        const u32 minus = half_mul(pair, 0x80808080u);  // -128 in units of the fields
        const u32 early = iq4_values(v & 0xffffu), late = iq4_values(v >> 16);
        a[0] = half_fma(pick_bytes(early, 0, 0x4140), half_low(pair), half_low(minus));
        a[1] = half_fma(pick_bytes(early, 0, 0x4342), half_high(pair), half_high(minus));
        a[2] = half_fma(pick_bytes(late, 0, 0x4140), half_low(pair), half_low(minus));
        a[3] = half_fma(pick_bytes(late, 0, 0x4342), half_high(pair), half_high(minus));
    }
};

// E2M1: sign at bit 15 and three bits at 11 to 9 form an f16 of 2^-14 times the value. Bits of the four operands are at
// 15 and 9, 14 and 6, 13 and 3, 12 and 0 of each half word. Scales per 16 or 32 columns.
template <int COLUMNS>
struct E2M1Tile {
    static constexpr int n = COLUMNS == 16 ? 4 : 2, bytes = 2048 + 128 * n;
    static constexpr bool has_nibbles = true;
    struct Scales {
        u32 pairs[n];
    };
    __device__ __forceinline__ static Scales scales(const u8* tile, int lane) {
        Scales s;
#pragma unroll
        for (int i = 0; i < n; i += 2) {
            const Words2 w = *reinterpret_cast<const Words2*>(tile + 2048 + lane * 4 * n + 4 * i);
            s.pairs[i] = w.x, s.pairs[i + 1] = w.y;
        }
        return s;
    }
    __device__ __forceinline__ static void unpack(const u8* tile, const Scales& s, int lane, int k16, u32 a[4]) {
        unpack_word(nibble_word(tile, lane, k16), tile, s, lane, k16, a);
    }
    __device__ __forceinline__ static void unpack_word(u32 v, const u8*, const Scales& s, int lane, int k16, u32 a[4]) {
        const u32 pair = s.pairs[k16 / (16 / n)];
        const u32 sign = 0x80008000u, rest = 0x0e000e00u;
        a[0] = half_mul(v & (sign | rest), half_low(pair));
        a[1] = half_mul((v << 1 & sign) | (v << 3 & rest), half_high(pair));
        a[2] = half_mul((v << 2 & sign) | (v << 6 & rest), half_low(pair));
        a[3] = half_mul((v << 3 & sign) | (v << 9 & rest), half_high(pair));
    }
};
template <>
struct Tile<MXFP4> : E2M1Tile<32> {};
template <>
struct Tile<NVFP4> : E2M1Tile<16> {};
