// glu: act(gate) times up.
#include "cpu/ops/activations.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct Glu final : Step {
    const Value gate, up, y;
    const Gate how;

    explicit Glu(const Arguments& a)
        : gate(a.input(0)), up(a.input(1)), y(a.output(0)), how(gate_named(a, a.text("act"))) {}

    void run(Worker& w) const override {
        // Multiples of 16 for all workers but the last: a kernel's tail must not depend on the split.
        const int64_t n = y.rows(w.batch) * y.width;
        w.share((n + 15) / 16, [&](int64_t begin, int64_t end) {
            const int64_t first = begin * 16, last = std::min(end * 16, n);
            if (first < last)
                gate_with(w.program.kernels(), how, gate.data + first, up.data + first, last - first, y.data + first);
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_glu(const Arguments& a) { return std::make_unique<Glu>(a); }

}  // namespace woolly
