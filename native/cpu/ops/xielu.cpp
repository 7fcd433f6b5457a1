// xielu: beta x, plus alpha_p x^2 above 0, plus alpha_n (expm1(min(x, eps)) - x) below.
#include <algorithm>

#include "cpu/ops/elements.h"
#include "cpu/ops/functions.h"

namespace woolly {

namespace {

struct Xielu {
    const float alpha_p, alpha_n, beta, eps;

    explicit Xielu(const Arguments& a)
        : alpha_p(a.number("alpha_p")), alpha_n(a.number("alpha_n")), beta(a.number("beta")), eps(a.number("eps")) {}

    void operator()(const Worker&, const float* x, int64_t n, float* y) const {
        for (int64_t i = 0; i < n; ++i) {
            const float v = x[i];
            const float bent = v > 0 ? alpha_p * v * v : alpha_n * (expm1_of(std::min(v, eps)) - v);
            y[i] = bent + beta * v;
        }
    }
};

}  // namespace

std::unique_ptr<Step> make_xielu(const Arguments& a) { return std::make_unique<EachElement<Xielu>>(a); }

}  // namespace woolly
