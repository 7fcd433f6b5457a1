// layer_norm: each group of columns minus its mean, divided by its deviation, times the weight, plus the bias.
#include <cmath>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

constexpr int kTogether = 4;  // groups that are summed at once

struct LayerNorm final : Step {
    const Value x, y;
    const Vector *const weight, *const bias;
    const double eps;
    const int64_t group;

    explicit LayerNorm(const Arguments& a)
        : x(a.input(0)),
          y(a.output(0)),
          weight(a.vector("weight")),
          bias(a.vector("bias")),
          eps(a.number("eps")),
          group(a.integer("group")) {
        if (group < 1 || x.width % group != 0) a.fail("cannot norm groups of " + std::to_string(group));
    }

    void run(Worker& w) const override {
        const int64_t n_groups = y.width / group;
        w.share(y.rows(w.batch) * n_groups, [&](int64_t begin, int64_t end) {
            int64_t g = begin;
            for (; g + kTogether <= end; g += kTogether) norm<kTogether>(g, n_groups);
            for (; g < end; ++g) norm<1>(g, n_groups);
        });
    }

    // N groups: in f64, and each in the order of its columns, two passes over rows that are in the cache. A sum waits
    // for its last addition, so that several at a time cost as much as one.
    template <int N>
    void norm(int64_t first, int64_t n_groups) const {
        const float* from = x.data + first * group;
        double mean[N] = {}, squares[N] = {};
        for (int64_t i = 0; i < group; ++i)
            for (int r = 0; r < N; ++r) mean[r] += double(from[r * group + i]);
        for (int r = 0; r < N; ++r) mean[r] /= double(group);
        for (int64_t i = 0; i < group; ++i)
            for (int r = 0; r < N; ++r) {
                const double centred = double(from[r * group + i]) - mean[r];
                squares[r] += centred * centred;
            }
        for (int r = 0; r < N; ++r) write(first + r, n_groups, mean[r], std::sqrt(squares[r] / double(group) + eps));
    }

    void write(int64_t g, int64_t n_groups, double mean, double deviation) const {
        const float* from = x.data + g * group;
        float* to = y.data + g * group;
        // A weight for each group, or one for all.
        const int64_t at = weight != nullptr && weight->n > group ? g % n_groups * group : 0;
        for (int64_t i = 0; i < group; ++i) {
            float v = float((double(from[i]) - mean) / deviation);
            if (weight != nullptr) v *= weight->data[at + i];
            to[i] = bias != nullptr ? v + bias->data[at + i] : v;
        }
    }
};

}  // namespace

std::unique_ptr<Step> make_layer_norm(const Arguments& a) { return std::make_unique<LayerNorm>(a); }

}  // namespace woolly
