// clamp: x clamped to ±limit.
#include <algorithm>

#include "cpu/ops/elements.h"

namespace woolly {

namespace {

struct Clamp {
    const float limit;

    explicit Clamp(const Arguments& a) : limit(a.number("limit")) {}

    void operator()(const Worker&, const float* x, int64_t n, float* y) const {
        for (int64_t i = 0; i < n; ++i) y[i] = std::min(std::max(x[i], -limit), limit);
    }
};

}  // namespace

std::unique_ptr<Step> make_clamp(const Arguments& a) { return std::make_unique<EachElement<Clamp>>(a); }

}  // namespace woolly
