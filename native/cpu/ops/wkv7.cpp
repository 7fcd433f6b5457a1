// wkv7: per head S = e^w S + k v^T + b (S^T a)^T, y = S^T r.
#include "cpu/ops/activations.h"
#include "cpu/ops/scan.h"
#include "cpu/ops/table.h"

namespace woolly {

namespace {

struct Wkv7 final : Scan {
    const Value r, w, k, probe, second;

    explicit Wkv7(const Arguments& a)
        : Scan(a, a.input(3), ScanRule::pair, a.input(3).width / a.integer("head"), a.integer("head")),
          r(a.input(0)),
          w(a.input(1)),
          k(a.input(2)),
          probe(a.input(4)),
          second(a.input(5)) {}

    void token(const Worker&, int64_t row, int64_t head, Token& t) const override {
        const int64_t at = row * v.width + head * n_keys;
        const auto copy = [&](const Value& from, float* to) {
            std::memcpy(to, from.data + at, size_t(n_keys) * sizeof(float));
        };
        exponentials(w.data + at, n_keys, t.decay);
        copy(probe, t.probe);
        copy(k, t.write);
        copy(second, t.second);
        copy(r, t.read);
    }
};

}  // namespace

std::unique_ptr<Step> make_wkv7(const Arguments& a) { return std::make_unique<Wkv7>(a); }

}  // namespace woolly
