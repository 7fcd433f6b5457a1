// Tiles of K-quant types: integer scales of groups, and one or two f16 per super-block.
#pragma once

#include "weights/tile.cuh"

// (x & mask) | bits in one lop3.
__device__ __forceinline__ u32 and_or(u32 x, u32 mask, u32 bits) {
#ifdef WOOLLY_EMULATED
    return (x & mask) | bits;
#else
    u32 y;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
    return y;
#endif
}

// 2,048 bytes of nibbles; 64 bytes of units (64 d and 64 dmin of rows g and g + 8); 192 bytes of factors. The factor
// word of lane (g, t) has scale and minimum of row g in bits 4 to 9 and 20 to 25 (group 2t), 10 to 15 and 26 to 31
// (group 2t + 1); its other 8 bits, 0 to 3 and 16 to 19, are bits 4 to 7 and 20 to 23 of row g + 8, whose remaining two
// bytes come last (64 for all lanes). No lane needs a shuffle.
template <>
struct Tile<Q4_K> {
    static constexpr int bytes = 2048 + 256;
    static constexpr bool has_nibbles = true;
    struct Scales {
        u32 a[2], b[2];  // (scale, minimum) of groups 2t and 2t + 1, rows g and g + 8
    };
    __device__ __forceinline__ static Scales scales(const u8* tile, int lane) { return scales_at(tile + 2048, lane); }
    __device__ __forceinline__ static Scales scales_at(const u8* factors, int lane) {
        const Words2 units = *reinterpret_cast<const Words2*>(factors + (lane >> 2) * 8);
        const u32 first = *reinterpret_cast<const u32*>(factors + 64 + lane * 4);
        const u32 upper = *reinterpret_cast<const u16*>(factors + 192 + lane * 2);
        const u32 second = (first & 0x000f000fu) << 4 | pick_bytes(upper, 0, 0x1404);
        const u32 unit_a = units.x, unit_b = units.y;
        Scales s;
        // The six bits below the exponent of 1.0 are 1 + factor / 64: one fma gives factor * unit.
        s.a[0] = half_fma(and_or(first, 0x03f003f0u, 0x3c003c00u), unit_a, half_negated(unit_a));
        s.a[1] = half_fma(and_or(first >> 6, 0x03f003f0u, 0x3c003c00u), unit_a, half_negated(unit_a));
        s.b[0] = half_fma(and_or(second, 0x03f003f0u, 0x3c003c00u), unit_b, half_negated(unit_b));
        s.b[1] = half_fma(and_or(second >> 6, 0x03f003f0u, 0x3c003c00u), unit_b, half_negated(unit_b));
        return s;
    }
    __device__ __forceinline__ static void unpack(const u8* tile, const Scales& s, int lane, int k16, u32 a[4]) {
        unpack_word(nibble_word(tile, lane, k16), tile, s, lane, k16, a);
    }
    __device__ __forceinline__ static void unpack_word(u32 v, const u8*, const Scales& s, int lane, int k16, u32 a[4]) {
        const u32 u = v >> 8;
        const u32 first = s.a[k16 >> 3], second = s.b[k16 >> 3];
        const u32 first_minus = half_negated(half_high(first)), second_minus = half_negated(half_high(second));
        a[0] = half_fma(v & 0x000f000fu, half_low(first), first_minus);
        a[1] = half_fma(v & 0x00f000f0u, half_low(second), second_minus);
        a[2] = half_fma(u & 0x000f000fu, half_low(first), first_minus);
        a[3] = half_fma(u & 0x00f000f0u, half_low(second), second_minus);
    }
};

// As Q4_K, with 512 bytes of fifth bits before the scales: a word per lane for four mma.
template <>
struct Tile<Q5_K> {
    static constexpr int bytes = 2048 + 512 + 256;
    static constexpr bool has_nibbles = true;
    typedef Tile<Q4_K>::Scales Scales;
    __device__ __forceinline__ static Scales scales(const u8* tile, int lane) {
        return Tile<Q4_K>::scales_at(tile + 2560, lane);
    }
    __device__ __forceinline__ static void unpack(const u8* tile, const Scales& s, int lane, int k16, u32 a[4]) {
        unpack_word(nibble_word(tile, lane, k16), tile, s, lane, k16, a);
    }
    __device__ __forceinline__ static void unpack_word(u32 v, const u8* tile, const Scales& s, int lane, int k16,
                                                       u32 a[4]) {
        const u32 u = v >> 8;
        const u32 h = select_word(*reinterpret_cast<const Words4*>(tile + 2048 + lane * 16), k16 >> 2);
        const u32 h0 = fifth_bits(h, k16, 0), h1 = fifth_bits(h, k16, 1);
        const u32 first = s.a[k16 >> 3], second = s.b[k16 >> 3];
        const u32 first_minus = half_negated(half_high(first)), second_minus = half_negated(half_high(second));
        a[0] = half_fma((v & 0x000f000fu) | (h0 & 0x00100010u), half_low(first), first_minus);
        a[1] = half_fma((v & 0x00f000f0u) | (h0 & 0x01000100u), half_low(second), second_minus);
        a[2] = half_fma((u & 0x000f000fu) | (h1 & 0x00100010u), half_low(first), first_minus);
        a[3] = half_fma((u & 0x00f000f0u) | (h1 & 0x01000100u), half_low(second), second_minus);
    }
};

// 2,048 bytes of low nibbles; 1,024 of upper bit pairs, a word per two mma; 256 of scales plus 128 (of lane (g, t)
// groups 4t to 4t + 3, rows g and g + 8 interleaved); 32 of d, rows g and g + 8 per word; 96 of padding: copies of
// complete cache lines are faster.
template <>
struct Tile<Q6_K> {
    static constexpr int bytes = 2048 + 1024 + 256 + 128;
    static constexpr bool has_nibbles = false;
    struct Scales {
        u32 pairs[4];  // (row g, row g + 8) of groups 4t to 4t + 3
    };
    __device__ __forceinline__ static Scales scales(const u8* tile, int lane) { return scales_at(tile + 3072, lane); }
    __device__ __forceinline__ static Scales scales_at(const u8* factors, int lane) {
        const Words2 w = *reinterpret_cast<const Words2*>(factors + lane * 8);
        const u32 d = *reinterpret_cast<const u32*>(factors + 256 + (lane >> 2) * 4);
        const u32 minus = 0xe480e480u;  // -(1024 + 128): a byte below the exponent 0x64 reads as 1024 more
        Scales s;
        s.pairs[0] = half_mul(half_add(pick_bytes(w.x, 0x64646464u, 0x4140), minus), d);
        s.pairs[1] = half_mul(half_add(pick_bytes(w.x, 0x64646464u, 0x4342), minus), d);
        s.pairs[2] = half_mul(half_add(pick_bytes(w.y, 0x64646464u, 0x4140), minus), d);
        s.pairs[3] = half_mul(half_add(pick_bytes(w.y, 0x64646464u, 0x4342), minus), d);
        return s;
    }
    __device__ __forceinline__ static void unpack(const u8* tile, const Scales& s, int lane, int k16, u32 a[4]) {
        const u8* uppers = tile + 2048 + (k16 >> 3) * 512 + lane * 16;
        const u32 h = select_word(*reinterpret_cast<const Words4*>(uppers), k16 >> 1 & 3);
        unpack_words(nibble_word(tile, lane, k16), h, s, lane, k16, a);
    }
    __device__ __forceinline__ static void unpack_words(u32 v, u32 h, const Scales& s, int lane, int k16, u32 a[4]) {
        const u32 u = v >> 8;
        const u32 pair = s.pairs[k16 >> 2];
        const u32 minus = half_mul(pair, 0x82008020u);  // -32 in units of the fields: 2^-24, 2^-20
        const bool odd = k16 & 1;
        const u32 h0 = odd ? h << 4 : h, h1 = odd ? h >> 4 : h, h2 = odd ? h << 2 : h >> 2, h3 = odd ? h >> 6 : h >> 2;
        a[0] = half_fma((v & 0x000f000fu) | (h0 & 0x00300030u), half_low(pair), half_low(minus));
        a[1] = half_fma((v & 0x00f000f0u) | (h1 & 0x03000300u), half_high(pair), half_high(minus));
        a[2] = half_fma((u & 0x000f000fu) | (h2 & 0x00300030u), half_low(pair), half_low(minus));
        a[3] = half_fma((u & 0x00f000f0u) | (h3 & 0x03000300u), half_high(pair), half_high(minus));
    }
};

// Bit pairs: word k16 / 2 % 4 of a 16-byte load serves two mma, the low byte of each half word for the even one: rows g
// and g + 8 of place 2t, then of place 2t + 8. Each field is worth 4 times the previous one: the scale of row g + 8 is
// stored 4 times smaller, and the later places use a 16 times smaller scale.
__device__ __forceinline__ u32 pair_word(const u8* tile, int lane, int k16) {
    const u32 v = select_word(*reinterpret_cast<const Words4*>(tile + (k16 >> 3) * 512 + lane * 16), k16 >> 1 & 3);
    return k16 & 1 ? v >> 8 : v;
}
constexpr u32 SIXTEENTHS = 0x2c002c00u;

// 1,024 bytes of bit pairs; 256 of factors (scale low, minimum high) in the order of Q6_K; 64 of units, 16 d of rows g
// and g + 8, then 16 dmin; 64 of padding.
template <>
struct Tile<Q2_K> {
    static constexpr int bytes = 1024 + 256 + 128;
    static constexpr bool has_nibbles = false;
    struct Scales {
        u32 pairs[4], minus[4];
    };
    __device__ __forceinline__ static Scales scales(const u8* tile, int lane) {
        const Words2 w = *reinterpret_cast<const Words2*>(tile + 1024 + lane * 8);
        const Words2 units = *reinterpret_cast<const Words2*>(tile + 1280 + (lane >> 2) * 8);
        Scales s;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 both = pick_bytes(i < 2 ? w.x : w.y, 0, i & 1 ? 0x4342 : 0x4140);
            // As in Q4_K: four bits below the exponent of 1.0 are 1 + factor / 16.
            s.pairs[i] = half_fma((both << 6 & 0x03c003c0u) | 0x3c003c00u, units.x, half_negated(units.x));
            s.minus[i] =
                half_negated(half_fma((both << 2 & 0x03c003c0u) | 0x3c003c00u, units.y, half_negated(units.y)));
        }
        return s;
    }
    __device__ __forceinline__ static void unpack(const u8* tile, const Scales& s, int lane, int k16, u32 a[4]) {
        const u32 v = pair_word(tile, lane, k16);
        const u32 pair = s.pairs[k16 >> 2], minus = s.minus[k16 >> 2];
        const u32 later = half_mul(pair, SIXTEENTHS);
        a[0] = half_fma(v & 0x00030003u, half_low(pair), half_low(minus));
        a[1] = half_fma(v & 0x000c000cu, half_high(pair), half_high(minus));
        a[2] = half_fma(v & 0x00300030u, half_low(later), half_low(minus));
        a[3] = half_fma(v & 0x00c000c0u, half_high(later), half_high(minus));
    }
};

// 1,024 bytes of bit pairs; 512 of third bits, a word per lane for four mma; 256 of scales plus 128 in the order of
// Q6_K; 32 of d.
template <>
struct Tile<Q3_K> {
    static constexpr int bytes = 1024 + 512 + 256 + 32;
    static constexpr bool has_nibbles = false;
    typedef Tile<Q6_K>::Scales Scales;
    __device__ __forceinline__ static Scales scales(const u8* tile, int lane) {
        return Tile<Q6_K>::scales_at(tile + 1536, lane);
    }
    __device__ __forceinline__ static void unpack(const u8* tile, const Scales& s, int lane, int k16, u32 a[4]) {
        const u32 v = pair_word(tile, lane, k16);
        const u32 h = select_word(*reinterpret_cast<const Words4*>(tile + 1024 + lane * 16), k16 >> 2);
        const int e = k16 & 3;
        const u32 third = e == 0 ? h << 2 : e == 1 ? h << 1 : e == 2 ? h >> 6 : h >> 7;
        const u32 pair = s.pairs[k16 >> 2], later = half_mul(pair, SIXTEENTHS);
        const u32 minus = half_mul(pair, 0x80108004u);  // -4 in units of the fields: 2^-24, 2^-22
        a[0] = half_fma((v & 0x00030003u) | (third & 0x00040004u), half_low(pair), half_low(minus));
        a[1] = half_fma((v & 0x000c000cu) | (third & 0x00100010u), half_high(pair), half_high(minus));
        a[2] = half_fma((v & 0x00300030u) | (third & 0x00400040u), half_low(later), half_low(minus));
        a[3] = half_fma((v & 0x00c000c0u) | (third & 0x01000100u), half_high(later), half_high(minus));
    }
};
