// Positions chosen by a sparse-attention index (index_topk.cpp), and their keys and values, gathered as f32 in blocks
// of 16.
#pragma once

#include <algorithm>

#include "cpu/program/worker.h"

namespace woolly {

// Number of chosen positions of a row: at most `n`, in blocks of which the last is its own and ends at the row. If n is
// not a multiple of the block: positions of complete blocks, plus those after the last complete one.
constexpr int count_chosen(int position, int n, int block) {
    if (position < n) return position + 1;
    return n % block != 0 ? n / block * block + (position + 1) % block : n - (block - 1 - position % block);
}

// Gathered keys or values of up to kSplit chosen positions of one KV head.
class Gathered {
  public:
    // f32 that `of` needs besides the blocks: one opened cache block.
    static constexpr size_t opened(int columns) { return size_t(kChunk) * size_t(columns); }

    // Fills `to` with blocks of f32 in the layout of a cache of that type, and `blocks` with their addresses.
    static void of(const Worker& w, int entry, int kv_head, const int32_t* pages, const float* positions, int n,
                   int columns, bool is_v, float* open, float* to, const uint8_t** blocks) {
        const KvKernels& kept = w.program.kernels().kv[int(is_v ? w.cache.v_type() : w.cache.k_type())];
        int last = -1;  // cache block that is open
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
