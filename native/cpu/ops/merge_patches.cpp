// merge_patches: merges a fixed number of rows from each output row on: concatenated, interleaved by column, or
// averaged.
#include <cstring>
#include <stdexcept>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct MergePatches final : Step {
    const Value x, y;
    const int rows;
    const bool mean, interleave;

    explicit MergePatches(const Arguments& a)
        : x(a.input(0)),
          y(a.output(0)),
          rows(a.integer("count")),
          mean(a.text("kind") == "mean"),
          interleave(a.text("kind") == "interleave") {
        if (!mean && !interleave && a.text("kind") != "concat") a.fail("has no kind '" + a.text("kind") + "'");
        if (rows < 1 || y.width != x.width * (mean ? 1 : rows)) a.fail("has rows that do not fit");
    }

    void check(const BatchView& b, const Cache&) const override {
        for (int64_t i = 0; i < b.n_output; ++i)
            if (b.output_rows[i] + rows > b.n_rows) throw std::invalid_argument("rows are folded beyond the batch");
    }

    // Mean of a column in f32, reproducible on GPUs: compensated summation, and a correction for the remainder of the
    // division.
    float mean_of(const float* column) const {
        float sum = 0.0f, lost = 0.0f;
        for (int r = 0; r < rows; ++r) {
            const float number = column[r * x.width], next = sum + number, added = next - sum;
            lost = lost + ((sum - (next - added)) + (number - added));
            sum = next;
        }
        const float count = float(rows), first = sum / count;
        const float rest = float(double(sum) - double(first) * double(count));  // exact
        return first + (rest + lost) / count;
    }

    void run(Worker& w) const override {
        const int64_t n = x.width;
        w.share(w.batch.n_output, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const float* from = x.data + w.batch.output_rows[i] * n;
                float* to = y.data + i * y.width;
                if (!mean && !interleave) {
                    std::memcpy(to, from, size_t(y.width) * 4);
                    continue;
                }
                for (int64_t c = 0; c < n; ++c) {
                    if (mean) to[c] = mean_of(from + c);
                    for (int r = 0; r < rows && interleave; ++r) to[c * rows + r] = from[r * n + c];
                }
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_merge_patches(const Arguments& a) { return std::make_unique<MergePatches>(a); }

}  // namespace woolly
