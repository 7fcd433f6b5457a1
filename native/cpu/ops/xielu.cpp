// xielu: beta x, plus alpha_p x^2 above 0, plus alpha_n (expm1(min(x, eps)) - x) below.
#include <cmath>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct Xielu final : Step {
    const Value x, y;
    const float alpha_p, alpha_n, beta, eps;

    explicit Xielu(const Arguments& a)
        : x(a.input(0)),
          y(a.output(0)),
          alpha_p(a.number("alpha_p")),
          alpha_n(a.number("alpha_n")),
          beta(a.number("beta")),
          eps(a.number("eps")) {}

    void run(Worker& w) const override {
        w.share(y.rows(w.batch) * y.width, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const float v = x.data[i];
                const float bent = v > 0 ? alpha_p * v * v : alpha_n * (std::expm1(std::min(v, eps)) - v);
                y.data[i] = bent + beta * v;
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_xielu(const Arguments& a) { return std::make_unique<Xielu>(a); }

}  // namespace woolly
