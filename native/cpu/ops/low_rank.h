// LoRA contribution to a product with an expert's matrix: b (a x), scaled per sequence and adapter.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cpu/program/arguments.h"
#include "cpu/program/worker.h"

namespace woolly {

class ExpertLow {
  public:
    // Adapters of a role ("gate": weights "gate_a0" and "gate_b0" of adapter 0), whose experts have matrices of this
    // size.
    ExpertLow(const Arguments& a, const std::string& role, int64_t n_experts, int64_t rows, int64_t columns)
        : rows_(rows), columns_(columns) {
        const std::string stem = role + "_a";
        for (const auto& [name, ids] : a.weights) {
            if (name.rfind(stem, 0) != 0 || name.find_first_not_of("0123456789", stem.size()) != std::string::npos ||
                name.size() == stem.size())
                continue;
            const std::string number = name.substr(stem.size());
            const Vector *down = a.vector(name.c_str()), *up = a.vector((role + "_b" + number).c_str());
            const int64_t rank = down->n / std::max<int64_t>(1, n_experts * columns);
            if (up == nullptr || rank < 1 || down->n != n_experts * rank * columns || up->n != n_experts * rows * rank)
                a.fail("has an adapter that does not fit its experts");
            pairs_.push_back({std::stoi(number), a.number(("factor" + number).c_str()), down->data, up->data, rank});
            max_rank_ = std::max(max_rank_, rank);
        }
    }

    bool empty() const { return pairs_.empty(); }
    void check(const BatchView& b) const {
        for (const Pair& pair : pairs_)
            if (b.adapters != nullptr && pair.adapter >= b.n_adapters)
                throw std::invalid_argument("the batch has no scale of an adapter");
    }

    // Contribution for a row of the batch and input x of an expert, times `weight`. Rows without an adapter get -0,
    // which changes no number, not even the sign of 0.
    void write(const Worker& w, int64_t row, int32_t expert, const float* x, float weight, float* to) const {
        std::fill_n(to, rows_, -0.0f);
        std::vector<float> low(size_t(max_rank_), 0.0f);
        const int64_t sequence = w.sequence_of(row);
        for (const Pair& pair : pairs_) {
            const float scale =
                w.batch.adapters == nullptr ? 1.0f : w.batch.adapters[sequence * w.batch.n_adapters + pair.adapter];
            if (scale == 0.0f) continue;
            const float times = scale * pair.factor * weight;
            const float *a = pair.a + expert * pair.rank * columns_, *b = pair.b + expert * rows_ * pair.rank;
            for (int64_t k = 0; k < pair.rank; ++k) low[size_t(k)] = times * dot(a + k * columns_, x, columns_);
            for (int64_t r = 0; r < rows_; ++r) to[r] += dot(b + r * pair.rank, low.data(), pair.rank);
        }
    }

  private:
    struct Pair {
        int adapter;
        float factor;
        const float *a, *b;  // [experts, rank, columns], [experts, rows, rank]
        int64_t rank;
    };

    // In 16 lanes, added at the end, so that compilers vectorize the loop.
    static float dot(const float* a, const float* b, int64_t n) {
        float lanes[16] = {};
        int64_t i = 0;
        for (; i + 16 <= n; i += 16)
            for (int lane = 0; lane < 16; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
        float sum = 0;
        for (; i < n; ++i) sum += a[i] * b[i];
        for (const float lane : lanes) sum += lane;
        return sum;
    }

    int64_t rows_, columns_, max_rank_ = 0;
    std::vector<Pair> pairs_;
};

}  // namespace woolly
