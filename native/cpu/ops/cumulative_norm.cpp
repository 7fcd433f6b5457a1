// cumulative_norm: each row minus the mean of all numbers of its text up to it, divided by their standard deviation,
// times the weight.
#include <cmath>

#include "cpu/ops/functions.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct CumulativeNorm final : Step {
    const Value x, y;
    const Vector* const weight;
    const float eps;

    explicit CumulativeNorm(const Arguments& a)
        : x(a.input(0)), y(a.output(0)), weight(a.vector("weight")), eps(a.number("eps")) {
        if (weight == nullptr || weight->n < 1 || x.width % weight->n != 0) a.fail("needs a weight that divides a row");
    }

    void check(const BatchView& batch, const Cache&) const override { batch.check_whole(); }

    // Tasks are texts instead of rows: 30 s of audio are 12 million numbers, which one thread processes in 15 ms.
    void run(Worker& w) const override {
        w.take(w.batch.n_sequences, [&](int64_t text) {
            double sum = 0, squares = 0, count = 0;
            for (int64_t row = w.batch.offsets[text]; row < w.batch.offsets[text + 1]; ++row) {
                const float* from = x.data + row * x.width;
                count += double(x.width);
                sum += double(sum_of(x.width, [&](int64_t i) { return from[i]; }));
                const float mean = float(sum / count);
                squares += double(sum_of(x.width, [&](int64_t i) { return (from[i] - mean) * (from[i] - mean); }));
                norm(from, mean, 1.0f / std::sqrt(float(squares / count) + eps), y.data + row * y.width);
            }
        });
    }

    void norm(const float* from, float mean, float scale, float* to) const {
        for (int64_t first = 0; first < x.width; first += weight->n)
            for (int64_t i = 0; i < weight->n; ++i) to[first + i] = (from[first + i] - mean) * scale * weight->data[i];
    }
};

}  // namespace

std::unique_ptr<Step> make_cumulative_norm(const Arguments& a) { return std::make_unique<CumulativeNorm>(a); }

}  // namespace woolly
