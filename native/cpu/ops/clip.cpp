// clip: x clamped to a lower and an upper bound.
#include <algorithm>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct Clip final : Step {
    const Value x, y;
    const float low, high;

    explicit Clip(const Arguments& a) : x(a.input(0)), y(a.output(0)), low(a.number("low")), high(a.number("high")) {}

    void run(Worker& w) const override {
        w.share(y.rows(w.batch) * y.width, [&](int64_t begin, int64_t end) {
            const float* from = x.data;
            float* to = y.data;
            for (int64_t i = begin; i < end; ++i) to[i] = std::min(std::max(from[i], low), high);
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_clip(const Arguments& a) { return std::make_unique<Clip>(a); }

}  // namespace woolly
