// softcap: x bounded by cap * tanh(x / cap).
#include "cpu/ops/activations.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct Softcap final : Step {
    const Value x, y;
    const float cap;

    explicit Softcap(const Arguments& a) : x(a.input(0)), y(a.output(0)), cap(a.number("cap")) {}

    void run(Worker& w) const override {
        w.share(y.rows(w.batch) * y.width,
                [&](int64_t begin, int64_t end) { soft_cap(cap, x.data + begin, end - begin, y.data + begin); });
    }
};

}  // namespace

std::unique_ptr<Step> make_softcap(const Arguments& a) { return std::make_unique<Softcap>(a); }

}  // namespace woolly
