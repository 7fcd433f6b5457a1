// embed: embedding lookup of each token.
#include <stdexcept>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"
#include "quant/decode.h"

namespace woolly {

namespace {

struct Embed final : Step {
    const Matrix& table;
    const Value y;

    explicit Embed(const Arguments& a) : table(a.matrix("table")), y(a.output(0)) {}

    void check(const BatchView& batch, const Cache&) const override {
        for (int64_t i = 0; i < batch.n_rows; ++i)
            if (batch.tokens[i] < 0 || batch.tokens[i] >= table.rows)
                throw std::invalid_argument("token " + std::to_string(batch.tokens[i]) +
                                            " is outside the vocabulary of " + std::to_string(table.rows));
    }

    void run(Worker& w) const override {
        w.share(w.batch.n_rows, [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r)
                dequantize_row(table.type, table.source + size_t(w.batch.tokens[r]) * table.stride(), table.columns,
                               y.data + r * table.columns);
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_embed(const Arguments& a) { return std::make_unique<Embed>(a); }

}  // namespace woolly
