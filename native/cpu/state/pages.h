// KV cache pages. A page has 32 positions of one layer: for each KV head, two blocks of 16 positions of K and, unless V
// is a part of K, two of V (block layout: cpu/kernels/generic/kv_blocks.h).
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "cpu/kernels/table.h"
#include "cpu/program/batch.h"
#include "cpu/program/memory.h"

namespace woolly {

constexpr int kPageSize = 32;

class Cache {
  public:
    struct Layer {
        int n_kv_heads, k_dim, v_dim;   // v_dim is 0 if V is a part of K
        size_t k_block, v_block, page;  // bytes
        Memory memory;
    };

    Cache(KvType k, KvType v, int64_t n_pages) : k_type_(k), v_type_(v), n_pages_(n_pages) {}
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;

    // Heads are padded to complete blocks of the types.
    void add_layer(int n_kv_heads, int k_dim, int v_dim) {
        k_dim = padded(k_dim), v_dim = padded(v_dim);
        const size_t k_block = kv_block_bytes(k_type_, k_dim), v_block = kv_block_bytes(v_type_, v_dim);
        const size_t page = 2 * (k_block + v_block) * size_t(n_kv_heads);
        layers_.push_back({n_kv_heads, k_dim, v_dim, k_block, v_block, page, Memory(page * size_t(n_pages_))});
    }

    // Blocks of f32 numbers per sequence; `numbers` by entry, 0: none.
    void add_slots(int64_t n_slots, const std::vector<int64_t>& numbers) {
        n_slots_ = n_slots;
        for (const int64_t n : numbers) {
            has_slots_ = has_slots_ || n > 0;
            // One extra block stays zero: the initial state of sequences.
            slots_.push_back({n, Memory(size_t(n) * size_t(n_slots + 1) * sizeof(float))});
        }
    }
    bool has_slots() const { return has_slots_; }
    int64_t n_slots() const { return n_slots_; }
    int64_t slot_numbers(int entry) const { return size_t(entry) < slots_.size() ? slots_[size_t(entry)].numbers : 0; }
    // A slot of an entry; -1: zeros, read-only.
    float* slot(int entry, int32_t slot) const {
        const Slots& s = slots_[size_t(entry)];
        return reinterpret_cast<float*>(s.memory.data()) + (slot < 0 ? n_slots_ : slot) * s.numbers;
    }

    // Bytes of one page over all entries, and of one slot.
    size_t page_bytes() const {
        size_t sum = 0;
        for (const Layer& layer : layers_) sum += layer.page;
        return sum;
    }
    size_t slot_bytes() const {
        size_t sum = 0;
        for (const Slots& slots : slots_) sum += size_t(slots.numbers) * sizeof(float);
        return sum;
    }
    std::vector<int> entries() const {
        std::vector<int> all(layers_.size());
        std::iota(all.begin(), all.end(), 0);
        return all;
    }
    size_t page_bytes(const std::vector<int>& entries) const {
        size_t sum = 0;
        for (const int entry : entries) sum += layers_.at(size_t(entry)).page;
        return sum;
    }
    int64_t n_pages(const std::vector<int>& entries) const {
        int64_t least = n_pages_;
        for (const int entry : entries)
            if (!windows_.empty() && windows_.at(size_t(entry)).table >= 0)
                least = std::min(least, windows_.at(size_t(entry)).n_pages);
        return least;
    }
    // Copies a page of all entries with the same page numbering: those of one window, or all with full attention.
    void read_page(const std::vector<int>& entries, int64_t page, uint8_t* out) const {
        for (const int entry : entries) {
            const Layer& layer = layers_[size_t(entry)];
            std::memcpy(out, layer.memory.data() + size_t(page) * layer.page, layer.page);
            out += layer.page;
        }
    }
    void write_page(const std::vector<int>& entries, int64_t page, const uint8_t* in) {
        for (const int entry : entries) {
            Layer& layer = layers_[size_t(entry)];
            std::memcpy(layer.memory.data() + size_t(page) * layer.page, in, layer.page);
            in += layer.page;
        }
    }
    void read_slot(int32_t number, uint8_t* out) const {
        for (size_t entry = 0; entry < slots_.size(); ++entry) {
            const size_t n = size_t(slots_[entry].numbers) * sizeof(float);
            if (n > 0) std::memcpy(out, slot(int(entry), number), n);
            out += n;
        }
    }
    void write_slot(int32_t number, const uint8_t* in) {
        for (size_t entry = 0; entry < slots_.size(); ++entry) {
            const size_t n = size_t(slots_[entry].numbers) * sizeof(float);
            if (n > 0) std::memcpy(slot(int(entry), number), in, n);
            in += n;
        }
    }

    KvType k_type() const { return k_type_; }
    KvType v_type() const { return v_type_; }
    // Heads are zero-padded to complete blocks of both types: scores and results are unchanged.
    int padded(int head_dim) const {
        const int block = std::max(kKvInfos[int(k_type_)].columns, kKvInfos[int(v_type_)].columns);
        return (head_dim + block - 1) / block * block;
    }
    int64_t n_pages() const { return n_pages_; }
    const std::vector<Layer>& layers() const { return layers_; }
    size_t n_bytes() const {
        size_t sum = 0;
        for (const Layer& layer : layers_) sum += layer.memory.size();
        for (const Slots& slots : slots_) sum += size_t(slots.numbers * n_slots_) * sizeof(float);
        return sum;
    }

    // Block of K (of V with second = true) that contains a position of a page.
    uint8_t* block(int layer, int64_t page, int kv_head, int position_in_page, bool second) const {
        const Layer& l = layers_[size_t(layer)];
        const size_t head = size_t(kv_head) * 2 * (l.k_block + l.v_block), at = size_t(position_in_page) / 16;
        return l.memory.data() + size_t(page) * l.page + head +
               (second ? 2 * l.k_block + at * l.v_block : at * l.k_block);
    }

    // A sliding-window entry may have fewer pages, with its own page table.
    struct Window {
        int table = -1;  // index in BatchView::window_pages; -1: as BatchView::pages
        int64_t length = 0, n_pages = 0;
    };
    void set_window(int entry, int table, int64_t length, int64_t n_pages) {
        if (size_t(entry) >= layers_.size() || table < 0 || length < 1 || n_pages < 1)
            throw std::invalid_argument("a window of the cache is not one of its entries");
        windows_.resize(layers_.size());
        windows_[size_t(entry)] = {table, length, n_pages};
        Layer& layer = layers_[size_t(entry)];
        layer.memory = Memory(layer.page * size_t(n_pages));
    }
    const std::vector<Window>& windows() const { return windows_; }
    // Page table of a sequence for an entry; -1 for pages invisible to all rows.
    const int32_t* pages(const BatchView& b, int entry, int64_t sequence) const {
        const int table = windows_.empty() ? -1 : windows_[size_t(entry)].table;
        const int32_t* first = table < 0 ? b.pages : b.window_pages + table * b.n_sequences * b.max_pages;
        return first + sequence * b.max_pages;
    }

  private:
    std::vector<Window> windows_;  // by entry; empty: no windows
    KvType k_type_, v_type_;
    int64_t n_pages_;
    std::vector<Layer> layers_;
    struct Slots {
        int64_t numbers;
        Memory memory;
    };
    std::vector<Slots> slots_;  // by entry
    int64_t n_slots_ = 0;
    bool has_slots_ = false;
};

}  // namespace woolly
