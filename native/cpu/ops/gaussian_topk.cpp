// gaussian_topk: the part of each element above its row's mean plus some standard deviations.
#include <cmath>

#include "cpu/ops/functions.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct GaussianTopk final : Step {
    const Value x, y;
    const float deviations;

    explicit GaussianTopk(const Arguments& a) : x(a.input(0)), y(a.output(0)), deviations(a.number("deviations")) {}

    void run(Worker& w) const override {
        w.share(y.rows(w.batch), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const float* from = x.data + row * x.width;
                const Mean mean(from, x.width);
                const float floor = mean.first + deviations * std::sqrt(mean.spread(from, x.width));
                for (int64_t c = 0; c < x.width; ++c) {
                    const float above = from[c] - floor;
                    y.data[row * x.width + c] = above < 0.0f ? 0.0f : above;
                }
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_gaussian_topk(const Arguments& a) { return std::make_unique<GaussianTopk>(a); }

}  // namespace woolly
