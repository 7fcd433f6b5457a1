// add: a plus b.
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct Add final : Step {
    const Value a, b, y;

    explicit Add(const Arguments& from) : a(from.input(0)), b(from.input(1)), y(from.output(0)) {}

    void run(Worker& w) const override {
        w.share(y.rows(w.batch) * y.width, [&](int64_t begin, int64_t end) {
            const float *left = a.data, *right = b.data;
            float* to = y.data;
            for (int64_t i = begin; i < end; ++i) to[i] = left[i] + right[i];
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_add(const Arguments& a) { return std::make_unique<Add>(a); }

}  // namespace woolly
