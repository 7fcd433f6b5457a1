// layer_norm: each group of columns minus its mean, divided by its standard deviation, times the weight, plus the bias.
#include <cmath>

#include "cpu/ops/functions.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct LayerNorm final : Step {
    const Value x, y;
    const Vector *const weight, *const bias;
    const float eps;
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
            for (int64_t g = begin; g < end; ++g) norm(g, n_groups);
        });
    }

    // Passes over a row that is in the cache.
    void norm(int64_t g, int64_t n_groups) const {
        const float* from = x.data + g * group;
        float* to = y.data + g * group;
        const Mean mean(from, group);
        const float scale = 1.0f / std::sqrt(mean.spread(from, group) + eps);
        // One weight per group, or one for all groups.
        const int64_t at = weight != nullptr && weight->n > group ? g % n_groups * group : 0;
        for (int64_t i = 0; i < group; ++i) {
            float v = mean.off(from[i]) * scale;
            if (weight != nullptr) v *= weight->data[at + i];
            to[i] = bias != nullptr ? v + bias->data[at + i] : v;
        }
    }
};

}  // namespace

std::unique_ptr<Step> make_layer_norm(const Arguments& a) { return std::make_unique<LayerNorm>(a); }

}  // namespace woolly
