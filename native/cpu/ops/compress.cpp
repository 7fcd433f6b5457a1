// compress: pools the latest rows of a sequence into one, with softmax weights per column; only at the last position of
// each block.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/ops/functions.h"
#include "cpu/ops/slots.h"
#include "cpu/ops/table.h"

namespace woolly {

namespace {

struct Compress final : Step {
    const Value kv, gate, y;
    const Vector* const bias;  // [every, kv.width]
    const int every;
    const bool overlaps;   // includes the previous block, using the first half of the columns
    const int n_rows;      // pooled rows per result
    const SlotEntry slot;  // the n_rows - 1 latest rows of kv and gate side by side, oldest first

    explicit Compress(const Arguments& a)
        : kv(a.input(0)),
          gate(a.input(1)),
          y(a.output(0)),
          bias(a.vector("bias")),
          every(a.integer("every")),
          overlaps(kv.width == 2 * y.width),
          n_rows((overlaps ? 2 : 1) * every),
          slot{a.integer("entry"), int64_t(n_rows - 1) * 2 * kv.width} {
        if (every < 2 || kv.width != (overlaps ? 2 : 1) * y.width || gate.width != kv.width || bias == nullptr ||
            bias->n != every * kv.width)
            a.fail("has columns or a bias that do not fit its blocks");
        a.program->need_own(size_t(2 * y.width) * sizeof(float));
    }

    void check(const BatchView&, const Cache& cache) const override { slot.check(cache); }

    // Row of kv (of gate with second = true) of a sequence, `back` rows before `row`; it may be in the slot.
    const float* row_before(const Worker& w, int64_t sequence, int64_t row, int64_t back, bool second) const {
        const int64_t at = row - back, first = w.batch.offsets[sequence];
        if (at >= first) return (second ? gate : kv).data + at * kv.width;
        return slot.before(w, sequence) + (2 * (n_rows - 1 + at - first) + second) * kv.width;
    }

    // Writes the rows remaining after `row` to a slot.
    void leave(const Worker& w, int64_t sequence, int64_t row, int32_t to) const {
        float* at = w.cache.slot(slot.entry, to);
        for (int64_t back = n_rows - 2; back >= 0; --back)
            for (const bool second : {false, true}) {
                std::memcpy(at, row_before(w, sequence, row, back, second), size_t(kv.width) * sizeof(float));
                at += kv.width;
            }
    }

    // Pools the block that ends with `row`. Rows before the start of the sequence have weight 0.
    void close(const Worker& w, int64_t row) const {
        const int64_t sequence = w.sequence_of(row), width = y.width;
        const int n = std::min(n_rows, w.batch.positions[row] + 1);
        float *to = y.data + row * width, *most = reinterpret_cast<float*>(w.own()), *sums = most + width;
        const auto each = [&](const auto& use) {
            for (int back = n - 1; back >= 0; --back) {
                // The later of two blocks supplies the second half of its columns.
                const int64_t at = overlaps && back < every ? width : 0;
                use(row_before(w, sequence, row, back, false) + at, row_before(w, sequence, row, back, true) + at,
                    bias->data + (every - 1 - back % every) * kv.width + at);
            }
        };
        std::fill_n(most, width, -INFINITY);
        each([&](const float*, const float* score, const float* added) {
            for (int64_t c = 0; c < width; ++c) {
                const float s = score[c] + added[c];
                most[c] = s > most[c] ? s : most[c];
            }
        });
        std::fill_n(sums, width, 0.0f);
        std::fill_n(to, width, 0.0f);
        each([&](const float* value, const float* score, const float* added) {
            for (int64_t c = 0; c < width; ++c) {
                const float share = exp_of(score[c] + added[c] - most[c]);
                sums[c] += share;
                to[c] += share * value[c];
            }
        });
        for (int64_t c = 0; c < width; ++c) to[c] /= sums[c];
    }

    void run(Worker& w) const override {
        const BatchView& batch = w.batch;
        w.share(batch.n_rows, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row)
                if ((batch.positions[row] + 1) % every == 0)
                    close(w, row);
                else
                    std::fill_n(y.data + row * y.width, y.width, 0.0f);
        });
        slot.leave_states(w, [&](int64_t sequence, int64_t row, int32_t to) { leave(w, sequence, row, to); });
    }
};

}  // namespace

std::unique_ptr<Step> make_compress(const Arguments& a) { return std::make_unique<Compress>(a); }

}  // namespace woolly
