// Keys and values of past tokens. A page holds 32 positions of one layer: for each KV head, two blocks of 16 positions
// of K and two of V (kernels/generic/attention.h says how a block lies).
#pragma once

#include <vector>

#include "kernels/table.h"
#include "program/memory.h"

namespace woolly {

constexpr int kPageSize = 32;

class Cache {
  public:
    struct Layer {
        int n_kv_heads, head_dim;
        size_t block, page;  // bytes
        Memory memory;
    };

    Cache(KvType type, int64_t n_pages) : type_(type), n_pages_(n_pages) {}
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;

    void add_layer(int n_kv_heads, int head_dim) {
        const size_t block = kv_block_bytes(type_, head_dim);
        const size_t page = block * 4 * size_t(n_kv_heads);
        layers_.push_back({n_kv_heads, head_dim, block, page, Memory(page * size_t(n_pages_))});
    }

    KvType type() const { return type_; }
    int64_t n_pages() const { return n_pages_; }
    const std::vector<Layer>& layers() const { return layers_; }
    size_t n_bytes() const {
        size_t sum = 0;
        for (const Layer& layer : layers_) sum += layer.memory.size();
        return sum;
    }

    // K block (of V: second = true) that holds a position of a page.
    uint8_t* block(int layer, int64_t page, int kv_head, int position_in_page, bool second) const {
        const Layer& l = layers_[size_t(layer)];
        const size_t index = size_t(kv_head) * 4 + (second ? 2 : 0) + size_t(position_in_page) / 16;
        return l.memory.data() + size_t(page) * l.page + index * l.block;
    }

  private:
    KvType type_;
    int64_t n_pages_;
    std::vector<Layer> layers_;
};

}  // namespace woolly
