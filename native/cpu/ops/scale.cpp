// scale: x times a constant.
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct Scale final : Step {
    const Value x, y;
    const float factor;

    explicit Scale(const Arguments& a) : x(a.input(0)), y(a.output(0)), factor(a.number("factor")) {}

    void run(Worker& w) const override {
        w.share(y.rows(w.batch) * y.width, [&](int64_t begin, int64_t end) {
            const float* from = x.data;
            float* to = y.data;
            for (int64_t i = begin; i < end; ++i) to[i] = from[i] * factor;
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_scale(const Arguments& a) { return std::make_unique<Scale>(a); }

}  // namespace woolly
