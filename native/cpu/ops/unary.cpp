// unary: an activation of each element.
#include "cpu/ops/activations.h"
#include "cpu/ops/elements.h"

namespace woolly {

namespace {

struct Unary {
    const Act kind;

    explicit Unary(const Arguments& a) : kind(act_named(a, a.text("kind"))) {}

    void operator()(const Worker& w, const float* x, int64_t n, float* y) const {
        activate(w.program.kernels(), kind, x, n, y);
    }
};

}  // namespace

std::unique_ptr<Step> make_unary(const Arguments& a) { return std::make_unique<EachElement<Unary>>(a); }

}  // namespace woolly
