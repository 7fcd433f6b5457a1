// pool: one row per requested text: mean of its rows, the first, or the last.
#include <algorithm>
#include <cstring>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

constexpr int64_t kRun = 16;

struct PoolTexts final : Step {
    const Value x, y;
    const bool mean, last;

    explicit PoolTexts(const Arguments& a)
        : x(a.input(0)), y(a.output(0)), mean(a.text("kind") == "mean"), last(a.text("kind") == "last") {
        if (!mean && !last && a.text("kind") != "first") a.fail("has no kind '" + a.text("kind") + "'");
        a.program->need_own(2 * size_t(y.width) * sizeof(float));
    }

    void check(const BatchView& batch, const Cache&) const override {
        if (!last) batch.check_whole();
    }

    void run(Worker& w) const override {
        w.share(w.batch.n_output, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int32_t text = w.sequence_of(w.batch.output_rows[i]);
                const int64_t from = w.batch.offsets[text], to = w.batch.offsets[text + 1];
                float* out = y.data + i * y.width;
                if (mean)
                    average(x.data + from * x.width, to - from, reinterpret_cast<float*>(w.own()), out);
                else
                    std::memcpy(out, x.data + (last ? to - 1 : from) * x.width, size_t(y.width) * 4);
            }
        });
    }

    // In row order, with partial sums of 16 rows: the rounding error does not grow with the text.
    void average(const float* rows, int64_t n, float* sums, float* out) const {
        float* run = sums + y.width;
        std::fill(sums, sums + y.width, 0.0f);
        for (int64_t first = 0; first < n; first += kRun) {
            std::fill(run, run + y.width, 0.0f);
            for (int64_t r = first; r < std::min(n, first + kRun); ++r)
                for (int64_t c = 0; c < y.width; ++c) run[c] += rows[r * y.width + c];
            for (int64_t c = 0; c < y.width; ++c) sums[c] += run[c];
        }
        for (int64_t c = 0; c < y.width; ++c) out[c] = sums[c] / float(n);
    }
};

}  // namespace

std::unique_ptr<Step> make_pool(const Arguments& a) { return std::make_unique<PoolTexts>(a); }

}  // namespace woolly
