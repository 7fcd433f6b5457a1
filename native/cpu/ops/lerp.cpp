// lerp: a + (b - a) * weight, for each row-sized run of the weight.
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct Lerp final : Step {
    const Value a, b, y;
    const Vector* const weight;

    explicit Lerp(const Arguments& from)
        : a(from.input(0)), b(from.input(1)), y(from.output(0)), weight(from.vector("weight")) {
        if (weight == nullptr || weight->n != y.width || y.width % a.width != 0 || b.width != a.width)
            from.fail("needs a weight 'weight' of whole rows");
    }

    void run(Worker& w) const override {
        const int64_t n = a.width, runs = y.width / n;
        w.share(y.rows(w.batch) * runs, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
                const float *from = a.data + task / runs * n, *to = b.data + task / runs * n;
                const float* share = weight->data + task % runs * n;
                float* out = y.data + task * n;
                for (int64_t i = 0; i < n; ++i) out[i] = from[i] + (to[i] - from[i]) * share[i];
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_lerp(const Arguments& a) { return std::make_unique<Lerp>(a); }

}  // namespace woolly
