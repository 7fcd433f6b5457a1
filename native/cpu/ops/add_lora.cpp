// add_lora: y plus the output of a LoRA adapter, scaled per sequence.
#include <cstring>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct AddLora final : Step {
    const Value x, added, y;
    const int adapter;
    const float factor;

    explicit AddLora(const Arguments& a)
        : x(a.input(0)), added(a.input(1)), y(a.output(0)), adapter(a.integer("adapter")), factor(a.number("factor")) {}

    void check(const BatchView& b, const Cache&) const override {
        if (b.adapters != nullptr && adapter >= b.n_adapters)
            throw std::invalid_argument("the batch has no scale of an adapter");
    }

    void run(Worker& w) const override {
        w.share(y.rows(w.batch), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const int64_t in_batch = y.output_rows ? w.batch.output_rows[row] : row;
                const float scale = w.batch.adapters == nullptr
                                        ? 1.0f
                                        : w.batch.adapters[w.sequence_of(in_batch) * w.batch.n_adapters + adapter];
                const float *left = x.data + row * x.width, *right = added.data + row * x.width;
                float* to = y.data + row * y.width;
                // Rows without the adapter stay bit-identical.
                if (scale == 0.0f) {
                    std::memcpy(to, left, size_t(y.width) * sizeof(float));
                    continue;
                }
                const float times = scale * factor;
                for (int64_t i = 0; i < y.width; ++i) to[i] = left[i] + times * right[i];
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_add_lora(const Arguments& a) { return std::make_unique<AddLora>(a); }

}  // namespace woolly
