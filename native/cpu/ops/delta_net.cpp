// delta_net: the gated delta rule over the state of each head.
#include <cmath>

#include "cpu/ops/activations.h"
#include "cpu/ops/functions.h"
#include "cpu/ops/scan.h"
#include "cpu/ops/table.h"

namespace woolly {

namespace {

struct DeltaNet final : Scan {
    const Value q, k, decay, beta;
    const int64_t heads_k;
    const bool mod;  // head j of v uses head j % heads_k of k instead of j / (heads_v / heads_k)
    const float eps;
    const std::vector<float> unit, read_unit;  // factors from root mean square to L2 norm, and for q to the scaled mean

    explicit DeltaNet(const Arguments& a)
        : Scan(a, a.input(2), ScanRule::delta, a.integer("heads_v"), a.input(1).width / a.integer("heads_k")),
          q(a.input(0)),
          k(a.input(1)),
          decay(a.input(3)),
          beta(a.input(4)),
          heads_k(a.integer("heads_k")),
          mod(a.text("order") == "mod"),
          eps(a.number("eps") / float(n_keys)),
          unit(size_t(n_keys), 1.0f / std::sqrt(float(n_keys))),
          read_unit(size_t(n_keys), 1.0f / float(n_keys)) {
        if (decay.width != n_heads && decay.width != n_heads * n_keys) a.fail("got a decay that fits no head");
    }

    void token(const Worker& w, int64_t row, int64_t head, Token& t) const override {
        const KernelTable& table = w.program.kernels();
        const int64_t at = row * k.width + (mod ? head % heads_k : head / (n_heads / heads_k)) * n_keys;
        table.rms_norm(k.data + at, unit.data(), eps, n_keys, t.write);
        table.rms_norm(q.data + at, read_unit.data(), eps, n_keys, t.read);
        if (decay.width == n_heads)
            std::fill_n(t.decay, n_keys, exp_of(decay.data[row * decay.width + head]));
        else
            exponentials(decay.data + row * decay.width + head * n_keys, n_keys, t.decay);
        for (int64_t i = 0; i < n_keys; ++i) t.probe[i] = t.decay[i] * t.write[i];
        t.beta = beta.data[row * beta.width + head];
    }
};

}  // namespace

std::unique_ptr<Step> make_delta_net(const Arguments& a) { return std::make_unique<DeltaNet>(a); }

}  // namespace woolly
