// scatter_rows: embeddings injected by the batch replace rows of x, or are added to them.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct ScatterRows final : Step {
    const Value x, y;
    const int part;   // index of the x-sized group of columns
    const bool adds;  // adds to x instead of replacing it

    explicit ScatterRows(const Arguments& a)
        : x(a.input(0)), y(a.output(0)), part(a.integer("part")), adds(a.integer("adds") != 0) {
        if (part < 0) a.fail("has no part " + std::to_string(part));
    }

    void check(const BatchView& b, const Cache&) const override {
        if (b.n_embeds > 0 && b.embeds_width < (part + 1) * y.width)
            throw std::invalid_argument("the batch has embeddings of " + std::to_string(b.embeds_width) +
                                        " columns, fewer than the plan reads");
    }

    void run(Worker& w) const override {
        w.share(w.batch.n_rows, [&](int64_t begin, int64_t end) {
            const BatchView& b = w.batch;
            std::memcpy(y.data + begin * y.width, x.data + begin * y.width, size_t((end - begin) * y.width) * 4);
            int64_t i = std::lower_bound(b.embeds_rows, b.embeds_rows + b.n_embeds, begin) - b.embeds_rows;
            for (; i < b.n_embeds && b.embeds_rows[i] < end; ++i) {
                const float* from = b.inputs_embeds + i * b.embeds_width + part * y.width;
                float* to = y.data + b.embeds_rows[i] * y.width;
                for (int64_t c = 0; c < y.width; ++c) to[c] = adds ? to[c] + from[c] : from[c];
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_scatter_rows(const Arguments& a) { return std::make_unique<ScatterRows>(a); }

}  // namespace woolly
