// mul_weight: each group of columns times the weight; each element of the weight scales one column or a run of columns.
#include <algorithm>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct MulWeight final : Step {
    const Value x, y;
    const Vector* const weight;
    const int64_t each;  // columns per element of the weight

    explicit MulWeight(const Arguments& a)
        : x(a.input(0)), y(a.output(0)), weight(a.vector("weight")), each(std::max(1, a.integer("run"))) {
        if (weight == nullptr) a.fail("needs a weight 'weight'");
        if (y.width % (weight->n * each) != 0)
            a.fail("got " + std::to_string(y.width) + " columns; expected a multiple of " +
                   std::to_string(weight->n * each));
    }

    void run(Worker& w) const override {
        const int64_t n = weight->n;
        w.share(y.rows(w.batch) * (y.width / (n * each)), [&](int64_t begin, int64_t end) {
            for (int64_t g = begin; g < end; ++g)
                if (each == 1) {
                    for (int64_t i = 0; i < n; ++i) y.data[g * n + i] = x.data[g * n + i] * weight->data[i];
                } else {
                    for (int64_t i = 0; i < n; ++i)
                        for (int64_t c = (g * n + i) * each; c < (g * n + i + 1) * each; ++c)
                            y.data[c] = x.data[c] * weight->data[i];
                }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_mul_weight(const Arguments& a) { return std::make_unique<MulWeight>(a); }

}  // namespace woolly
