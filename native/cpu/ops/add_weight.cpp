// add_weight: each group of columns plus the weight.
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct AddWeight final : Step {
    const Value x, y;
    const Vector* const weight;

    explicit AddWeight(const Arguments& a) : x(a.input(0)), y(a.output(0)), weight(a.vector("weight")) {
        if (weight == nullptr) a.fail("needs a weight 'weight'");
    }

    void run(Worker& w) const override {
        const int64_t n = weight->n;
        w.share(y.rows(w.batch) * (y.width / n), [&](int64_t begin, int64_t end) {
            for (int64_t g = begin; g < end; ++g)
                for (int64_t i = 0; i < n; ++i) y.data[g * n + i] = x.data[g * n + i] + weight->data[i];
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_add_weight(const Arguments& a) { return std::make_unique<AddWeight>(a); }

}  // namespace woolly
