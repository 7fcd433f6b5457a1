// conv1d: depthwise convolution centered on each row, zero-padded at the ends of the text.
#include <array>

#include "cpu/kernels/scans.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

constexpr int kMaxTaps = 64;

struct Conv1d final : Step {
    const ScanTable& kernels;
    const Value x, y;
    const int kernel, before;
    const bool silu;
    const Vector* const bias;
    std::vector<float> weights;  // [kernel, width]
    std::vector<float> zeros;    // a row

    explicit Conv1d(const Arguments& a)
        : kernels(scan_table(a.program->kernels().name)),
          x(a.input(0)),
          y(a.output(0)),
          kernel(a.integer("kernel")),
          before(a.integer("before")),
          silu(a.text("act") == "silu"),
          bias(a.vector("bias")),
          zeros(size_t(x.width)) {
        const Vector* weight = a.vector("weight");
        if (kernel < 1 || kernel > kMaxTaps) a.fail("takes filters of 1 to " + std::to_string(kMaxTaps) + " rows");
        if (before < 0 || before >= kernel) a.fail("has a filter that does not cover its own row");
        if (weight == nullptr || weight->n != kernel * x.width || (bias != nullptr && bias->n != x.width))
            a.fail("needs a filter for each column");
        weights.resize(size_t(weight->n));
        for (int64_t column = 0; column < x.width; ++column)
            for (int k = 0; k < kernel; ++k) weights[size_t(k * x.width + column)] = weight->data[column * kernel + k];
    }

    void check(const BatchView& batch, const Cache&) const override { batch.check_whole(); }

    void run(Worker& w) const override {
        w.share(w.batch.n_rows, [&](int64_t begin, int64_t end) {
            std::array<const float*, kMaxTaps> rows;
            for (int64_t row = begin; row < end; ++row) {
                const int64_t sequence = w.sequence_of(row);
                const int64_t first = w.batch.offsets[sequence], last = w.batch.offsets[sequence + 1];
                for (int k = 0; k < kernel; ++k) {
                    const int64_t at = row + k - before;
                    rows[size_t(k)] = at >= first && at < last ? x.data + at * x.width : zeros.data();
                }
                kernels.conv({.rows = rows.data(),
                              .weights = weights.data(),
                              .bias = bias == nullptr ? nullptr : bias->data,
                              .y = y.data + row * y.width,
                              .n = x.width,
                              .stride = x.width,
                              .kernel = kernel,
                              .silu = silu});
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_conv1d(const Arguments& a) { return std::make_unique<Conv1d>(a); }

}  // namespace woolly
