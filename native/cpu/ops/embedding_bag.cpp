// embedding_bag: x plus a weighted sum of table rows; the batch gives indices and weights for each row.
#include <cstring>
#include <stdexcept>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"
#include "quant/decode.h"

namespace woolly {

namespace {

struct EmbeddingBag final : Step {
    const Matrix& table;
    const Value x, y;
    const int first, taps;  // columns of the batch's gather_rows

    explicit EmbeddingBag(const Arguments& a)
        : table(a.matrix("table")), x(a.input(0)), y(a.output(0)), first(a.integer("first")), taps(a.integer("taps")) {
        if (table.columns != y.width || first < 0 || taps < 1) a.fail("has a table or indices that do not fit");
        a.program->need_own(size_t(y.width) * 4);
    }

    void check(const BatchView& b, const Cache&) const override {
        if (b.n_gather < first + taps) throw std::invalid_argument("the batch names no rows of a table");
        for (int64_t r = 0; r < b.n_rows; ++r)
            for (int i = first; i < first + taps; ++i)
                if (b.gather_rows[r * b.n_gather + i] < -1 || b.gather_rows[r * b.n_gather + i] >= table.rows)
                    throw std::invalid_argument("a place is outside its table of " + std::to_string(table.rows));
    }

    void run(Worker& w) const override {
        w.share(w.batch.n_rows, [&](int64_t begin, int64_t end) {
            float* row = reinterpret_cast<float*>(w.own());
            for (int64_t r = begin; r < end; ++r) {
                float* to = y.data + r * y.width;
                std::memcpy(to, x.data + r * y.width, size_t(y.width) * 4);
                for (int64_t i = r * w.batch.n_gather + first, last = i + taps; i < last; ++i) {
                    if (w.batch.gather_rows[i] < 0) continue;
                    dequantize_row(table.type, table.source + size_t(w.batch.gather_rows[i]) * table.stride(), y.width,
                                   row);
                    for (int64_t c = 0; c < y.width; ++c) to[c] += w.batch.gather_weights[i] * row[c];
                }
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_embedding_bag(const Arguments& a) { return std::make_unique<EmbeddingBag>(a); }

}  // namespace woolly
