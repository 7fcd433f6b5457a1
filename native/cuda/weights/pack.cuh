// Packing of blocks into the tile layouts of tile.cuh, lane by lane.
#pragma once

#include "weights/blocks_rare.cuh"

// Blocks of one row within a tile.
struct Line {
    const u8* at;  // null: past the last row
    int first, n_blocks;
    int exponent;  // of the row factor
    const u8* points;
    template <class T>
    __device__ const u8* block(int i) const {
        return at == nullptr || first + i >= n_blocks ? nullptr : at + u64(first + i) * Block<T>::bytes;
    }
    // Quant at a place of the tile; 0 past the last column.
    template <class T>
    __device__ u32 quant(int place) const {
        const int k = column_at(place);
        const u8* b = block<T>(k / Block<T>::columns);
        return b == nullptr ? 0 : Block<T>::quant(b, k % Block<T>::columns, points);
    }
    // x * 2^(more - exponent)
    __device__ float scaled(float x, int more) const { return x * power_of_two(more - exponent); }
};

// Tile being written, as one lane sees it.
struct Out {
    u8* tile;
    int lane;
    bool is_second_pass;  // second pass: merge with the rows written before
    __device__ int g() const { return lane >> 2; }
    __device__ int t() const { return lane & 3; }
    __device__ void put(int at, u32 word) const {
        u32* place = reinterpret_cast<u32*>(tile + at);
        *place = is_second_pass ? *place | word : word;
    }
};

// Rows g and g + 8 of a lane.
#define LINES const Line &a, const Line &b

// 8-bit quants, as read by unpack_bytes.
template <class T>
__device__ void put_bytes(const Out& out, LINES) {
    for (int k16 = 0; k16 < 16; ++k16)
        for (int row = 0; row < 2; ++row) {
            const Line& line = row ? b : a;
            const int k = 16 * k16 + 2 * out.t();
            out.put(
                (k16 >> 1) * 512 + out.lane * 16 + (k16 & 1) * 8 + 4 * row,
                line.quant<T>(k) | line.quant<T>(k + 1) << 8 | line.quant<T>(k + 8) << 16 | line.quant<T>(k + 9) << 24);
        }
}
// Low four bits of the quants, as read by nibble_word.
template <class T>
__device__ void put_nibbles(const Out& out, LINES) {
    for (int k16 = 0; k16 < 16; ++k16) {
        u32 word = 0;
        for (int e = 0; e < 2; ++e) {
            const int k = 16 * k16 + 2 * out.t() + e;
            word |= ((a.quant<T>(k) & 15) | (b.quant<T>(k) & 15) << 4 | (a.quant<T>(k + 8) & 15) << 8 |
                     (b.quant<T>(k + 8) & 15) << 12)
                    << 16 * e;
        }
        out.put((k16 >> 2) * 512 + out.lane * 16 + (k16 & 3) * 4, word);
    }
}
// Fifth bits, as read by fifth_bits.
template <class T>
__device__ void put_fifths(const Out& out, int at, LINES) {
    for (int i = 0; i < 4; ++i) {
        u32 word = 0;
        for (int j = 0; j < 4; ++j)
            for (int e = 0; e < 4; ++e) {  // places 2t, 2t + 1, 2t + 8, 2t + 9
                const int k = 64 * i + 16 * j + 2 * out.t() + (e & 1) + (e >> 1) * 8;
                const int bit = (j >> 1) * 8 + (j & 1) * 2 + (e >> 1) + 16 * (e & 1);
                word |= (a.quant<T>(k) >> 4 & 1) << bit | (b.quant<T>(k) >> 4 & 1) << (bit + 4);
            }
        out.put(at + out.lane * 16 + 4 * i, word);
    }
}
// Low two bits of the quants, as read by pair_word.
template <class T>
__device__ void put_pairs(const Out& out, LINES) {
    for (int k16 = 0; k16 < 16; k16 += 2) {
        u32 word = 0;
        for (int e = 0; e < 4; ++e) {  // places 2t and 2t + 1 of two mma
            const int k = 16 * (k16 + (e >> 1)) + 2 * out.t() + (e & 1);
            word |= ((a.quant<T>(k) & 3) | (b.quant<T>(k) & 3) << 2 | (a.quant<T>(k + 8) & 3) << 4 |
                     (b.quant<T>(k + 8) & 3) << 6)
                    << (8 * (e >> 1) + 16 * (e & 1));
        }
        out.put((k16 >> 3) * 512 + out.lane * 16 + (k16 >> 1 & 3) * 4, word);
    }
}
// Third bits of the quants: mma j of four at bits 0, 1, 8, 9; operands two bits apart.
template <class T>
__device__ void put_thirds(const Out& out, int at, LINES) {
    for (int i = 0; i < 4; ++i) {
        u32 word = 0;
        for (int j = 0; j < 4; ++j)
            for (int e = 0; e < 4; ++e) {
                const int k = 64 * i + 16 * j + 2 * out.t() + (e & 1) + (e >> 1) * 8;
                const int bit = (j >> 1) * 8 + (j & 1) + (e >> 1) * 4 + 16 * (e & 1);
                word |= (a.quant<T>(k) >> 2 & 1) << bit | (b.quant<T>(k) >> 2 & 1) << (bit + 2);
            }
        out.put(at + out.lane * 16 + 4 * i, word);
    }
}

// Scales of `columns`-wide groups in this lane's quarter of the tile, times 2^24. The fields of row g + 8 are
// 2^`higher` times larger. IS_MINIMUM: the offset, unscaled.
template <class T, bool IS_MINIMUM>
__device__ u32 scale_pair(LINES, int k, int higher) {
    float pair[2] = {0, 0};
    for (int row = 0; row < 2; ++row) {
        const Line& line = row ? b : a;
        const u8* block = line.block<T>(k / Block<T>::columns);
        if (block == nullptr) continue;
        if constexpr (IS_MINIMUM)
            pair[row] = line.scaled(Block<T>::minimum(block, k % Block<T>::columns), 0);
        else
            pair[row] = line.scaled(Block<T>::scale(block, k % Block<T>::columns), row ? 24 - higher : 24);
    }
    return to_half2(pair[0], pair[1]);
}
template <class T>
__device__ void put_scales(const Out& out, int at, int columns, LINES, int higher) {
    const int n = 64 / columns;
    for (int i = 0; i < n; ++i)
        out.put(at + out.lane * 4 * n + 4 * i, scale_pair<T, false>(a, b, columns * (n * out.t() + i), higher));
}
// 8-bit factors of this lane's four 16-column groups, rows g and g + 8 interleaved.
template <class T>
__device__ void put_factors(const Out& out, int at, LINES) {
    const u8 *first = a.block<T>(0), *second = b.block<T>(0);
    for (int i = 0; i < 2; ++i) {
        u32 word = 0;
        for (int e = 0; e < 2; ++e) {
            const int group = 4 * out.t() + 2 * i + e;
            if (first != nullptr) word |= Block<T>::factor(first, group) << 16 * e;
            if (second != nullptr) word |= Block<T>::factor(second, group) << (16 * e + 8);
        }
        out.put(at + out.lane * 8 + 4 * i, word);
    }
}
template <class T>
__device__ void put_units(const Out& out, int at, LINES, int higher) {
    const u8 *first = a.block<T>(0), *second = b.block<T>(0);
    if (out.t() != 0) return;
    out.put(at + out.g() * 4, to_half2(first == nullptr ? 0 : a.scaled(Block<T>::unit(first), 24),
                                       second == nullptr ? 0 : b.scaled(Block<T>::unit(second), 24 - higher)));
}

// Pack<tile type>::tile<block type>
template <class Kind>
struct Pack;

template <>
struct Pack<F16> {
    template <class T>
    __device__ static float value(const Line& line, int place) {
        const u8* b = line.block<T>(column_at(place));
        return b == nullptr ? 0 : line.scaled(Block<T>::number(b), 0);
    }
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        for (int k16 = 0; k16 < 16; ++k16)
            for (int i = 0; i < 4; ++i) {
                const int k = 16 * k16 + 2 * out.t() + (i >> 1) * 8;
                const Line& line = i & 1 ? b : a;
                out.put(k16 * 512 + out.lane * 16 + 4 * i, to_half2(value<T>(line, k), value<T>(line, k + 1)));
            }
    }
};
template <>
struct Pack<Q8_0> {
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        put_bytes<T>(out, a, b);
        put_scales<T>(out, 4096, 32, a, b, 0);
    }
};
template <>
struct Pack<Wide> {
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        put_bytes<T>(out, a, b);
        put_scales<T>(out, 4096, 16, a, b, 0);
    }
};
template <>
struct Pack<Q4_0> {
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        put_nibbles<T>(out, a, b);
        put_scales<T>(out, 2048, 32, a, b, 4);
    }
};
template <>
struct Pack<Q5_0> {
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        put_nibbles<T>(out, a, b);
        put_fifths<T>(out, 2048, a, b);
        put_scales<T>(out, 2560, 32, a, b, 4);
    }
};
template <>
struct Pack<Q4_1> {
    // Scales and offsets of two groups.
    template <class T>
    __device__ static void shifted(const Out& out, int at, LINES) {
        for (int i = 0; i < 2; ++i) {
            const int k = 32 * (2 * out.t() + i);
            out.put(at + out.lane * 16 + 4 * i, scale_pair<T, false>(a, b, k, 4));
            out.put(at + out.lane * 16 + 8 + 4 * i, scale_pair<T, true>(a, b, k, 0));
        }
    }
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        put_nibbles<T>(out, a, b);
        shifted<T>(out, 2048, a, b);
    }
};
template <>
struct Pack<Q5_1> {
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        put_nibbles<T>(out, a, b);
        put_fifths<T>(out, 2048, a, b);
        Pack<Q4_1>::shifted<T>(out, 2560, a, b);
    }
};
template <>
struct Pack<IQ4_NL> {
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        for (int k16 = 0; k16 < 16; ++k16) {
            u32 word = 0;
            for (int e = 0; e < 2; ++e) {
                const int k = 16 * k16 + 2 * out.t() + 8 * e;
                word |= (a.quant<T>(k) | a.quant<T>(k + 1) << 4 | b.quant<T>(k) << 8 | b.quant<T>(k + 1) << 12)
                        << 16 * e;
            }
            out.put((k16 >> 2) * 512 + out.lane * 16 + (k16 & 3) * 4, word);
        }
        put_scales<T>(out, 2048, 32, a, b, 0);
    }
};
template <>
struct Pack<MXFP4> {
    template <class T>
    __device__ static u32 scale(const Line& line, int k) {
        const u8* block = line.block<T>(k / Block<T>::columns);
        return block == nullptr ? 0 : Block<T>::scale(block, k % Block<T>::columns, line.exponent);
    }
    template <class T>
    __device__ static void tile(const Out& out, LINES) {
        for (int k16 = 0; k16 < 16; ++k16) {
            u32 word = 0;
            for (int i = 0; i < 8; ++i) {
                const int k = 16 * k16 + 2 * out.t() + (i & 1) + (i >> 2) * 8, operand = i >> 1;
                const u32 q = (operand & 1 ? b : a).quant<T>(k);
                word |= (q >> 3 << (15 - operand) | (q & 7) << (9 - 3 * operand)) << 16 * (i & 1);
            }
            out.put((k16 >> 2) * 512 + out.lane * 16 + (k16 & 3) * 4, word);
        }
        const int columns = Block<T>::scale_columns, n = 64 / columns;
        for (int i = 0; i < n; ++i) {
            const int k = columns * (n * out.t() + i);
            out.put(2048 + out.lane * 4 * n + 4 * i, scale<T>(a, k) | scale<T>(b, k) << 16);
        }
    }
};
template <>
struct Pack<NVFP4> : Pack<MXFP4> {};
