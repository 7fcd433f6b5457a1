// Packing of the K-quant types (super-blocks of 256 columns).
#pragma once

#include "weights/pack.cuh"

template <>
struct Pack<Q4_K> {
    // 6-bit scales and minima of the two groups of lane t, from bits 4 and 20 up. A block starts with d, dmin and 12
    // bytes of factors.
    template <class T>
    __device__ static u32 factors(const Line& line, int t) {
        const u8* block = line.block<T>(0);
        if (block == nullptr) return 0;
        return scale_k4(block + 4, 2 * t) << 4 | minimum_k4(block + 4, 2 * t) << 20 |
               scale_k4(block + 4, 2 * t + 1) << 10 | minimum_k4(block + 4, 2 * t + 1) << 26;
    }
    // 64 d, for fields worth 2^-24 or 2^-20, and 64 dmin.
    template <class T>
    __device__ static u32 units(const Line& line, int more) {
        const u8* block = line.block<T>(0);
        return block == nullptr ? 0 : to_half2(line.scaled(half_at(block), more), line.scaled(half_at(block + 2), 6));
    }
    template <class T>
    __device__ static void scales(const Out& out, int at, LINES) {
        const int t = out.t();
        if (t < 2) out.put(at + out.g() * 8 + 4 * t, t ? units<T>(b, 26) : units<T>(a, 30));
        const u32 second = factors<T>(b, t);
        out.put(at + 64 + out.lane * 4, factors<T>(a, t) | (second >> 4 & 0x000f000fu));
        if (t & 1) return;
        const u32 next = factors<T>(b, t + 1);
        out.put(at + 192 + out.lane * 2,
                (second >> 8 & 255) | second >> 24 << 8 | (next >> 8 & 255) << 16 | next >> 24 << 24);
    }
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        put_nibbles<T>(out, a, b);
        scales<T>(out, 2048, a, b);
    }
};
template <>
struct Pack<Q5_K> {
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        put_nibbles<T>(out, a, b);
        put_fifths<T>(out, 2048, a, b);
        Pack<Q4_K>::scales<T>(out, 2560, a, b);
    }
};
template <>
struct Pack<Q6_K> {
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        put_nibbles<T>(out, a, b);
        for (int i = 0; i < 8; ++i) {
            u32 word = 0;
            for (int e = 0; e < 2; ++e) {
                const int even = 32 * i + 2 * out.t() + e, odd = even + 16;
                word |= (a.quant<T>(odd) >> 4 | a.quant<T>(odd + 8) >> 4 << 2 | a.quant<T>(even) >> 4 << 4 |
                         a.quant<T>(even + 8) >> 4 << 6 | b.quant<T>(even) >> 4 << 8 | b.quant<T>(even + 8) >> 4 << 10 |
                         b.quant<T>(odd) >> 4 << 12 | b.quant<T>(odd + 8) >> 4 << 14)
                        << 16 * e;
            }
            out.put(2048 + (i >> 2) * 512 + out.lane * 16 + (i & 3) * 4, word);
        }
        put_factors<T>(out, 3072, a, b);
        put_units<T>(out, 3328, a, b, 4);
        if (out.lane < 24) out.put(3360 + 4 * out.lane, 0);
    }
};
template <>
struct Pack<Q3_K> {
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        put_pairs<T>(out, a, b);
        put_thirds<T>(out, 1024, a, b);
        put_factors<T>(out, 1536, a, b);
        put_units<T>(out, 1792, a, b, 2);
    }
};
template <>
struct Pack<Q2_K> {
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        put_pairs<T>(out, a, b);
        put_factors<T>(out, 1024, a, b);
        const u8 *first = a.block<T>(0), *second = b.block<T>(0);
        if (out.t() == 0) {
            out.put(1280 + out.g() * 8, to_half2(first == nullptr ? 0 : a.scaled(half_at(first + 80), 28),
                                                 second == nullptr ? 0 : b.scaled(half_at(second + 80), 26)));
            out.put(1284 + out.g() * 8, to_half2(first == nullptr ? 0 : a.scaled(half_at(first + 82), 4),
                                                 second == nullptr ? 0 : b.scaled(half_at(second + 82), 4)));
        }
        if (out.lane < 16) out.put(1344 + 4 * out.lane, 0);
    }
};
