// token_shift: the preceding row of each row in its sequence. The slot has the row before the first one.
#include "cpu/ops/slots.h"
#include "cpu/ops/table.h"

namespace woolly {

namespace {

struct TokenShift final : Step {
    const Value x, y;
    const SlotEntry slot;  // the latest row

    explicit TokenShift(const Arguments& a) : x(a.input(0)), y(a.output(0)), slot{a.integer("entry"), x.width} {}

    void check(const BatchView&, const Cache& cache) const override { slot.check(cache); }

    void run(Worker& w) const override {
        const BatchView& batch = w.batch;
        const size_t bytes = size_t(x.width) * sizeof(float);
        const auto leave = [&](int64_t row, int32_t to) {
            std::memcpy(w.cache.slot(slot.entry, to), x.data + row * x.width, bytes);
        };
        w.share(batch.n_rows, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const int32_t sequence = w.sequence_of(row);
                const bool is_first = row == batch.offsets[sequence];
                std::memcpy(y.data + row * y.width, is_first ? slot.before(w, sequence) : x.data + (row - 1) * x.width,
                            bytes);
                if (row + 1 == batch.offsets[sequence + 1]) leave(row, batch.slots_out[sequence]);
            }
        });
        w.share(batch.n_snapshots, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) leave(batch.snapshots[2 * i], batch.snapshots[2 * i + 1]);
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_token_shift(const Arguments& a) { return std::make_unique<TokenShift>(a); }

}  // namespace woolly
