// Positions that an index chose (pick.cpp), and the keys and values of them: gathered as f32, in blocks of 16.
#pragma once

#include <algorithm>

#include "cpu/program/worker.h"

namespace woolly {

// How many positions a row has chosen: `n` at most, in blocks of which its own is one, and ends with it. If n is no
// multiple of the block, those of whole blocks, and the ones after the last that is complete.
constexpr int count_chosen(int position, int n, int block) {
    if (position < n) return position + 1;
    return n % block != 0 ? n / block * block + (position + 1) % block : n - (block - 1 - position % block);
}

// Keys, or values, of up to kSplit chosen positions of one KV head.
class Gathered {
  public:
    // f32 that `of` needs beside the blocks: one opened block of the cache.
    static constexpr size_t opened(int columns) { return size_t(kChunk) * size_t(columns); }

    // Fills `to` with blocks of f32, as a cache of that type has them, and `blocks` with their addresses.
    static void of(const Worker& w, int entry, int kv_head, const int32_t* pages, const float* positions, int n,
                   int columns, bool is_v, float* open, float* to, const uint8_t** blocks) {
        const KvKernels& kept = w.program.kernels().kv[int(is_v ? w.cache.v_type() : w.cache.k_type())];
        int last = -1;  // block of the cache that is open
        for (int i = 0; i < n; ++i) {
            const int position = int(positions[i]), slot = position % 16;
            if (position / 16 != last) {
                last = position / 16;
                const uint8_t* block =
                    w.cache.block(entry, pages[position / kPageSize], kv_head, position % kPageSize, is_v);
                AttentionTile t{};
                t.k_dim = t.v_dim = columns, t.n_blocks = 1;
                t.k_blocks = t.v_blocks = &block;
                is_v ? kept.open_v(t, 0, 1, open) : kept.open_k(t, 0, 1, open);
            }
            float* block = to + i / 16 * 16 * columns;
            if (is_v)
                std::copy_n(open + slot * columns, columns, block + i % 16 * columns);
            else
                for (int c = 0; c < columns; ++c) block[16 * c + i % 16] = open[kChunk * c + slot];
        }
        for (int b = 0; b < (n + 15) / 16; ++b) blocks[b] = reinterpret_cast<const uint8_t*>(to + b * 16 * columns);
    }
};

}  // namespace woolly
