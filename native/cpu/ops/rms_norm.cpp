// rms_norm: each group of columns divided by its root mean square, times the weight.
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct RmsNorm final : Step {
    const Value x, y;
    const std::vector<float> ones;  // weight of a step without one
    const Vector weight;
    const float eps;

    explicit RmsNorm(const Arguments& a)
        : x(a.input(0)),
          y(a.output(0)),
          ones(size_t(a.integer("group")), 1.0f),
          weight(a.vector("weight") == nullptr ? Vector{ones.data(), int64_t(ones.size())} : *a.vector("weight")),
          eps(a.number("eps")) {
        if (weight.n == 0) a.fail("needs a weight 'weight' or a group");
    }

    void run(Worker& w) const override {
        const int64_t n = weight.n;
        w.share(y.rows(w.batch) * (y.width / n), [&](int64_t begin, int64_t end) {
            for (int64_t g = begin; g < end; ++g)
                w.program.kernels().rms_norm(x.data + g * n, weight.data, eps, n, y.data + g * n);
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_rms_norm(const Arguments& a) { return std::make_unique<RmsNorm>(a); }

}  // namespace woolly
