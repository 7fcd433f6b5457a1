// embed_token_type: x plus a token type embedding: type 0, or type 1 after a separator.
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct EmbedTokenType final : Step {
    const Vector* const table;
    const Value x, y;
    const int separator;  // 0: none

    explicit EmbedTokenType(const Arguments& a)
        : table(a.vector("table")), x(a.input(0)), y(a.output(0)), separator(a.integer("separator")) {
        if (table == nullptr || table->n < (separator != 0 ? 2 : 1) * y.width) a.fail("has too small a table");
    }

    bool is_second_segment(const BatchView& batch, int64_t row, int32_t sequence) const {
        for (int64_t r = batch.offsets[sequence]; r < row; ++r)
            if (batch.tokens[r] == separator) return true;
        return false;
    }

    void run(Worker& w) const override {
        w.share(y.rows(w.batch), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r) {
                const bool second = separator != 0 && is_second_segment(w.batch, r, w.sequence_of(r));
                const float* add = table->data + (second ? y.width : 0);
                for (int64_t i = 0; i < y.width; ++i) y.data[r * y.width + i] = x.data[r * y.width + i] + add[i];
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_embed_token_type(const Arguments& a) { return std::make_unique<EmbedTokenType>(a); }

}  // namespace woolly
