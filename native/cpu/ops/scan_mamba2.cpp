// scan_mamba2: per head S = e^(dt a) S + b (dt x)^T, y = S^T c + d x.
#include "cpu/ops/functions.h"
#include "cpu/ops/scan.h"
#include "cpu/ops/table.h"

namespace woolly {

namespace {

struct ScanMamba2 final : Scan {
    const Value dt, b, c;
    const int64_t groups;
    const Vector *const rate, *const skip;

    explicit ScanMamba2(const Arguments& a)
        : Scan(a, a.input(0), ScanRule::plain, a.input(1).width, a.input(2).width / a.integer("groups")),
          dt(a.input(1)),
          b(a.input(2)),
          c(a.input(3)),
          groups(a.integer("groups")),
          rate(a.vector("a")),
          skip(a.vector("d")) {
        if (rate == nullptr || skip == nullptr || rate->n != n_heads || skip->n != n_heads)
            a.fail("needs weights 'a' and 'd' of a number for each head");
    }

    void token(const Worker&, int64_t row, int64_t head, Token& t) const override {
        const float step = dt.data[row * dt.width + head];
        const int64_t at = row * b.width + head / (n_heads / groups) * n_keys;
        std::fill_n(t.decay, n_keys, exp_of(step * rate->data[head]));
        for (int64_t i = 0; i < n_keys; ++i) t.write[i] = step * b.data[at + i];
        std::memcpy(t.read, c.data + at, size_t(n_keys) * sizeof(float));
    }

    void finish(const Worker&, int64_t first, int64_t last, int64_t head) const override {
        for (int64_t row = first; row < last; ++row) {
            const int64_t at = row * y.width + head * n_columns;
            for (int64_t i = at; i < at + n_columns; ++i) y.data[i] += skip->data[head] * v.data[i];
        }
    }
};

}  // namespace

std::unique_ptr<Step> make_scan_mamba2(const Arguments& a) { return std::make_unique<ScanMamba2>(a); }

}  // namespace woolly
