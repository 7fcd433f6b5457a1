// scan_mamba: per column S = e^(dt a) S + dt x b, y = S c + d x.
#include "cpu/kernels/scans.h"
#include "cpu/ops/slots.h"
#include "cpu/ops/table.h"

namespace woolly {

namespace {

struct ScanMamba final : Step {
    static constexpr int64_t kColumns = 64;  // per task

    const ScanTable& kernels;
    const Value x, dt, b, c, y;
    const Vector* const skip;
    const SlotEntry slot;
    std::vector<float> rates;  // [n_states, columns]: a, transposed so that columns are side by side

    explicit ScanMamba(const Arguments& a)
        : kernels(scan_table(a.program->kernels().name)),
          x(a.input(0)),
          dt(a.input(1)),
          b(a.input(2)),
          c(a.input(3)),
          y(a.output(0)),
          skip(a.vector("d")),
          slot{a.integer("entry"), x.width * b.width} {
        const Vector* rate = a.vector("a");
        if (rate == nullptr || skip == nullptr || rate->n != slot.numbers || skip->n != x.width)
            a.fail("needs weights 'a' and 'd' of numbers for each column");
        rates.resize(size_t(slot.numbers));
        for (int64_t column = 0; column < x.width; ++column)
            for (int64_t i = 0; i < b.width; ++i)
                rates[size_t(i * x.width + column)] = rate->data[column * b.width + i];
    }

    void check(const BatchView&, const Cache& cache) const override { slot.check(cache); }

    void run(Worker& w) const override {
        const int64_t blocks = (x.width + kColumns - 1) / kColumns;
        w.take(w.batch.n_sequences * blocks, [&](int64_t task) { scan(w, task / blocks, task % blocks * kColumns); });
    }

    void scan(const Worker& w, int64_t sequence, int64_t column) const {
        const int64_t n = std::min(kColumns, x.width - column);
        const float* from = slot.before(w, sequence) + column;
        float* state = slot.after(w, sequence) + column;
        SlotEntry::runs(w.batch, sequence, [&](int64_t first, int64_t last, int32_t keep) {
            const int64_t at = first * x.width + column;
            kernels.mamba({.from = from,
                           .state = state,
                           .n_states = b.width,
                           .n_columns = n,
                           .n_tokens = last - first,
                           .a = rates.data() + column,
                           .d = skip->data + column,
                           .x = x.data + at,
                           .dt = dt.data + at,
                           .b = b.data + first * b.width,
                           .c = c.data + first * b.width,
                           .y = y.data + at,
                           .stride = x.width});
            from = state;
            if (keep < 0) return;
            float* to = w.cache.slot(slot.entry, keep) + column;
            for (int64_t i = 0; i < b.width; ++i)
                std::memcpy(to + i * x.width, state + i * x.width, size_t(n) * sizeof(float));
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_scan_mamba(const Arguments& a) { return std::make_unique<ScanMamba>(a); }

}  // namespace woolly
