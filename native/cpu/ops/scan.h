// Scans over heads: a task is a head of a sequence, its tokens in order, so that neither batch, chunk size nor threads
// affect the bits.
#pragma once

#include "cpu/kernels/scans.h"
#include "cpu/ops/slots.h"

namespace woolly {

struct Scan : Step {
    // Contribution of a token to a head: numbers per key, by the op's rule.
    struct Token {
        float *decay, *probe, *write, *second, *read;
        float beta;
    };

    const ScanTable& kernels;
    const Value v, y;
    const ScanRule rule;
    const int64_t n_heads, n_keys, n_columns;
    const SlotEntry slot;

    Scan(const Arguments& a, const Value& values, ScanRule how, int64_t heads, int64_t keys)
        : kernels(scan_table(a.program->kernels().name)),
          v(values),
          y(a.output(0)),
          rule(how),
          n_heads(heads),
          n_keys(keys),
          n_columns(values.width / heads),
          slot{a.integer("entry"), heads * keys * (values.width / heads)} {
        a.program->need_own(size_t(kTokens) * size_t(kVectors * n_keys + 1) * sizeof(float));
    }

    void check(const BatchView&, const Cache& cache) const override { slot.check(cache); }

    void run(Worker& w) const override {
        w.take(w.batch.n_sequences * n_heads, [&](int64_t task) { scan(w, task / n_heads, task % n_heads); });
    }

  protected:
    virtual void token(const Worker& w, int64_t row, int64_t head, Token& to) const = 0;
    // Called after the rows of a head are computed.
    virtual void finish(const Worker&, int64_t /*first*/, int64_t /*last*/, int64_t /*head*/) const {}

  private:
    static constexpr int64_t kTokens = 32;  // tokens prepared together: the columns' state stays in L1
    static constexpr int64_t kVectors = 5;

    void scan(const Worker& w, int64_t sequence, int64_t head) const {
        const int64_t size = n_keys * n_columns;
        const float* from = slot.before(w, sequence) + head * size;
        float* state = slot.after(w, sequence) + head * size;
        SlotEntry::runs(w.batch, sequence, [&](int64_t first, int64_t last, int32_t keep) {
            for (int64_t row = first; row < last; row += kTokens) {
                tile(w, row, std::min(last, row + kTokens), head, from, state);
                from = state;
            }
            if (keep >= 0)
                std::memcpy(w.cache.slot(slot.entry, keep) + head * size, state, size_t(size) * sizeof(float));
        });
    }

    void tile(const Worker& w, int64_t first, int64_t last, int64_t head, const float* from, float* state) const {
        float* own = reinterpret_cast<float*>(w.own());
        const int64_t part = kTokens * n_keys;
        float* beta = own + kVectors * part;
        for (int64_t row = first; row < last; ++row) {
            float* at = own + (row - first) * n_keys;
            Token t{at, at + part, at + 2 * part, at + 3 * part, at + 4 * part, 1.0f};
            token(w, row, head, t);
            beta[row - first] = t.beta;
        }
        kernels.scan[int(rule)]({.from = from,
                                 .state = state,
                                 .n_keys = n_keys,
                                 .n_columns = n_columns,
                                 .n_tokens = last - first,
                                 .decay = own,
                                 .probe = own + part,
                                 .write = own + 2 * part,
                                 .second = own + 3 * part,
                                 .read = own + 4 * part,
                                 .beta = beta,
                                 .v = v.data + first * v.width + head * n_columns,
                                 .y = y.data + first * y.width + head * n_columns,
                                 .v_stride = v.width,
                                 .y_stride = y.width});
        finish(w, first, last, head);
    }
};

}  // namespace woolly
