// act: an activation of each element.
#include "cpu/ops/activations.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct Activate final : Step {
    const Value x, y;
    const Act kind;

    explicit Activate(const Arguments& a) : x(a.input(0)), y(a.output(0)), kind(act_named(a, a.text("kind"))) {}

    void run(Worker& w) const override {
        w.share(y.rows(w.batch) * y.width, [&](int64_t begin, int64_t end) {
            activate(w.program.kernels(), kind, x.data + begin, end - begin, y.data + begin);
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_act(const Arguments& a) { return std::make_unique<Activate>(a); }

}  // namespace woolly
