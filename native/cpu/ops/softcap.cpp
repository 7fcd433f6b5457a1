// softcap: cap * tanh(x / cap).
#include "cpu/ops/activations.h"
#include "cpu/ops/elements.h"

namespace woolly {

namespace {

struct Softcap {
    const float cap;

    explicit Softcap(const Arguments& a) : cap(a.number("cap")) {}

    void operator()(const Worker&, const float* x, int64_t n, float* y) const { soft_cap(cap, x, n, y); }
};

}  // namespace

std::unique_ptr<Step> make_softcap(const Arguments& a) { return std::make_unique<EachElement<Softcap>>(a); }

}  // namespace woolly
