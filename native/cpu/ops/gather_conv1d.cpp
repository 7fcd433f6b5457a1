// gather_conv1d: depthwise convolution over the rows whose indices the batch gives for each row.
#include <array>
#include <stdexcept>

#include "cpu/kernels/scans.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

constexpr int kMaxGatherTaps = 64;

struct GatherConv1d final : Step {
    const ScanTable& kernels;
    const Value x, y;
    const int first, taps;       // columns of the batch's gather_rows
    std::vector<float> weights;  // [taps, width]
    std::vector<float> zeros;    // a row

    explicit GatherConv1d(const Arguments& a)
        : kernels(scan_table(a.program->kernels().name)),
          x(a.input(0)),
          y(a.output(0)),
          first(a.integer("first")),
          taps(a.integer("taps")),
          zeros(size_t(x.width)) {
        const Vector* weight = a.vector("weight");
        if (taps < 1 || taps > kMaxGatherTaps)
            a.fail("takes filters of 1 to " + std::to_string(kMaxGatherTaps) + " rows");
        if (first < 0 || x.output_rows || y.output_rows != (a.integer("wanted") != 0) || x.width != y.width)
            a.fail("has indices or rows that do not fit");
        if (weight == nullptr || weight->n != taps * x.width) a.fail("needs a filter for each column");
        weights.resize(size_t(weight->n));
        for (int64_t column = 0; column < x.width; ++column)
            for (int k = 0; k < taps; ++k) weights[size_t(k * x.width + column)] = weight->data[column * taps + k];
    }

    void check(const BatchView& b, const Cache&) const override {
        b.check_whole();
        if (b.n_gather < first + taps) throw std::invalid_argument("the batch does not name the rows of a filter");
        for (int64_t text = 0; text < b.n_sequences; ++text) {
            const int64_t n = b.offsets[text + 1] - b.offsets[text];
            for (int64_t row = b.offsets[text]; row < b.offsets[text + 1]; ++row)
                for (int i = first; i < first + taps; ++i)
                    if (b.gather_rows[row * b.n_gather + i] < -1 || b.gather_rows[row * b.n_gather + i] >= n)
                        throw std::invalid_argument("a filter reads a row outside its text of " + std::to_string(n));
        }
    }

    void run(Worker& w) const override {
        w.share(y.rows(w.batch), [&](int64_t begin, int64_t end) {
            std::array<const float*, kMaxGatherTaps> rows;
            for (int64_t r = begin; r < end; ++r) {
                const int64_t row = y.output_rows ? w.batch.output_rows[r] : r;
                const int64_t start = w.batch.offsets[w.sequence_of(row)];
                for (int k = 0; k < taps; ++k) {
                    const int32_t at = w.batch.gather_rows[row * w.batch.n_gather + first + k];
                    rows[size_t(k)] = at < 0 ? zeros.data() : x.data + (start + at) * x.width;
                }
                kernels.conv({.rows = rows.data(),
                              .weights = weights.data(),
                              .bias = nullptr,
                              .y = y.data + r * y.width,
                              .n = x.width,
                              .stride = x.width,
                              .kernel = taps,
                              .silu = false});
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_gather_conv1d(const Arguments& a) { return std::make_unique<GatherConv1d>(a); }

}  // namespace woolly
