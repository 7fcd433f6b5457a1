// Memory shared by attention steps: sums of separately computed splits, blocks of rows, tables by distance.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "cpu/ops/distances.h"
#include "cpu/program/program.h"

namespace woolly {

// Rows of a sequence that are computed together: more rows share the positions that a kernel opens.
constexpr int kMinBlockRows = 8, kMaxBlockRows = 32;
// With bidirectional attention each head has its own K and V: more rows compensate. At 4,096 rows, blocks of 32 read 5
// GB of K and V per layer of SigLIP.
constexpr int kMaxMaskedRows = 128;
constexpr size_t kPartialBytes = size_t{256} << 20;  // maximum memory for the sums of separately computed splits

struct Softmax : AttentionSums {
    // Floats of n queries, a multiple of a cache line if v_dim is.
    static constexpr int64_t numbers(int64_t n, int64_t v_dim) { return n * v_dim + (2 * n + 15) / 16 * 16; }
    // i-th element of an array of these, with n queries each.
    Softmax(float* base, int64_t i, int n, int v_dim) : AttentionSums{base + i * numbers(n, v_dim), nullptr, nullptr} {
        max = out + n * v_dim, sum = max + n;
    }
    // View without the first n queries.
    Softmax from(int n, int v_dim) const {
        Softmax rest = *this;
        rest.out += n * v_dim, rest.max += n, rest.sum += n;
        return rest;
    }
};

struct AttendScratch final : Scratch {
    int n_threads = 1;
    int64_t block_rows = kMinBlockRows, max_block_rows = kMaxMaskedRows;  // as many as all steps have room for
    size_t group = 0;                                                     // bytes of the sums of all heads of a row
    int64_t heads = 0;
    // Splits are computed separately only if there are few tasks and `partials` has room for them (see Attend::run).
    size_t partial_numbers = 0;
    Memory partials;
    std::unique_ptr<std::atomic<int32_t>[]> finished;  // finished splits, per row and KV head
    // First rows of blocks of at most `block_rows` rows of one sequence, and the end of the last one.
    std::vector<int64_t> blocks;

    // Shared by layers with the same number of heads; bidirectional attention has different buckets.
    std::map<std::tuple<const Vector*, int, bool>, ByDistance> tables;

    void allocate(const Program& p) override {
        n_threads = p.n_threads();
        const size_t splits = size_t(p.max_context() / kSplit + 1),
                     rows = size_t(std::min<int64_t>(4 * p.n_threads(), p.max_rows()));
        partial_numbers = std::min(group * splits * rows, kPartialBytes) / 4;
        partials = Memory(partial_numbers * 4);
        finished = std::make_unique<std::atomic<int32_t>[]>(rows * size_t(heads + 1));
        blocks.reserve(size_t(p.max_rows()) + 1);
    }

    void begin(const BatchView& batch) override {
        blocks.clear();
        const int64_t first = batch.is_part() ? batch.part_first : 0,
                      last = batch.is_part() ? batch.part_last : batch.n_rows;
        block_rows = std::clamp<int64_t>((last - first) / (2 * n_threads), kMinBlockRows, max_block_rows);
        for (int64_t s = 0; s < batch.n_sequences; ++s)
            for (int64_t r = std::max<int64_t>(first, batch.offsets[s]),
                         end = std::min<int64_t>(last, batch.offsets[s + 1]);
                 r < end; r += block_rows)
                blocks.push_back(r);
        blocks.push_back(last);
    }
};

}  // namespace woolly
