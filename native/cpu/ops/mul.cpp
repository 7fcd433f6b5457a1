// mul: a times b; each column of b scales a run of columns of a.
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct Mul final : Step {
    const Value a, b, y;

    explicit Mul(const Arguments& from) : a(from.input(0)), b(from.input(1)), y(from.output(0)) {}

    void run(Worker& w) const override {
        const int64_t run = a.width / b.width;
        w.share(y.rows(w.batch) * b.width, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const float factor = b.data[i];
                for (int64_t c = i * run; c < (i + 1) * run; ++c) y.data[c] = a.data[c] * factor;
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_mul(const Arguments& a) { return std::make_unique<Mul>(a); }

}  // namespace woolly
