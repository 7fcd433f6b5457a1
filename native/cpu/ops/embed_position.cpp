// embed_position: x plus a learned position embedding.
#include <stdexcept>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"
#include "quant/decode.h"

namespace woolly {

namespace {

struct EmbedPosition final : Step {
    const Matrix& table;
    const Value x, y;

    explicit EmbedPosition(const Arguments& a) : table(a.matrix("table")), x(a.input(0)), y(a.output(0)) {
        a.program->need_own(size_t(y.width) * 4);
    }

    void check(const BatchView& batch, const Cache&) const override {
        for (int64_t i = 0; i < batch.n_rows; ++i)
            if (batch.positions[i] >= table.rows)
                throw std::invalid_argument("position " + std::to_string(batch.positions[i]) + " is beyond the " +
                                            std::to_string(table.rows) + " that the model knows");
    }

    void run(Worker& w) const override {
        w.share(y.rows(w.batch), [&](int64_t begin, int64_t end) {
            float* row = reinterpret_cast<float*>(w.own());
            for (int64_t r = begin; r < end; ++r) {
                dequantize_row(table.type, table.source + size_t(w.batch.positions[r]) * table.stride(), y.width, row);
                for (int64_t i = 0; i < y.width; ++i) y.data[r * y.width + i] = x.data[r * y.width + i] + row[i];
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_embed_position(const Arguments& a) { return std::make_unique<EmbedPosition>(a); }

}  // namespace woolly
