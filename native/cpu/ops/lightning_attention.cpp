// lightning_attention: per head S = e^-rate S + k v^T, y = S^T q.
#include "cpu/ops/f64_math.h"
#include "cpu/ops/scan.h"
#include "cpu/ops/table.h"

namespace woolly {

namespace {

struct LightningAttention final : Scan {
    const Value q, k;
    std::vector<float> shrink;  // of each head

    explicit LightningAttention(const Arguments& a)
        : Scan(a, a.input(2), ScanRule::plain, a.input(2).width / a.integer("head"), a.integer("head")),
          q(a.input(0)),
          k(a.input(1)) {
        const double slope = double(a.number("slope"));
        for (int64_t h = 0; h < n_heads; ++h)
            shrink.push_back(float(exp_double(-slope * exp2_double(-8.0 * double(h + 1) / double(n_heads)))));
    }

    void token(const Worker&, int64_t row, int64_t head, Token& t) const override {
        const int64_t at = row * v.width + head * n_keys;
        std::fill_n(t.decay, n_keys, shrink[size_t(head)]);
        std::memcpy(t.write, k.data + at, size_t(n_keys) * sizeof(float));
        std::memcpy(t.read, q.data + at, size_t(n_keys) * sizeof(float));
    }
};

}  // namespace

std::unique_ptr<Step> make_lightning_attention(const Arguments& a) { return std::make_unique<LightningAttention>(a); }

}  // namespace woolly
