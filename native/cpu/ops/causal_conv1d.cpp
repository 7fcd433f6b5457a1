// causal_conv1d: causal depthwise convolution; the oldest rows come from the sequence's slot.
#include <array>

#include "cpu/kernels/scans.h"
#include "cpu/ops/slots.h"
#include "cpu/ops/table.h"

namespace woolly {

namespace {

constexpr int kMaxKernel = 16;

struct CausalConv1d final : Step {
    const ScanTable& kernels;
    const Value x, y;
    const int kernel, apart;  // filter size, and dilation in rows
    const bool silu;
    const Vector* const bias;
    const int64_t n_kept;
    const SlotEntry slot;        // the n_kept latest rows, oldest first
    std::vector<float> weights;  // [kernel, width]

    explicit CausalConv1d(const Arguments& a)
        : kernels(scan_table(a.program->kernels().name)),
          x(a.input(0)),
          y(a.output(0)),
          kernel(a.integer("kernel")),
          apart(a.integer("gap") + 1),
          silu(a.text("act") == "silu"),
          bias(a.vector("bias")),
          n_kept(int64_t(kernel - 1) * apart),
          slot{a.integer("entry"), n_kept * x.width} {
        const Vector* weight = a.vector("weight");
        if (apart < 1) a.fail("has rows that are less than one apart");
        if (kernel < 2 || kernel > kMaxKernel) a.fail("takes filters of 2 to " + std::to_string(kMaxKernel) + " rows");
        if (weight == nullptr || weight->n != kernel * x.width || (bias != nullptr && bias->n != x.width))
            a.fail("needs a filter for each column");
        weights.resize(size_t(weight->n));
        for (int64_t column = 0; column < x.width; ++column)
            for (int k = 0; k < kernel; ++k) weights[size_t(k * x.width + column)] = weight->data[column * kernel + k];
    }

    void check(const BatchView&, const Cache& cache) const override { slot.check(cache); }

    // Row of a sequence, `back` rows before `row`; it may be in the slot.
    const float* row_before(const Worker& w, int64_t sequence, int64_t row, int64_t back) const {
        const int64_t at = row - back, first = w.batch.offsets[sequence];
        return at >= first ? x.data + at * x.width : slot.before(w, sequence) + (n_kept + at - first) * x.width;
    }

    // Writes the rows remaining after `row` to a slot.
    void leave(const Worker& w, int64_t sequence, int64_t row, int32_t to) const {
        float* at = w.cache.slot(slot.entry, to);
        for (int64_t back = n_kept - 1; back >= 0; --back, at += x.width)
            std::memcpy(at, row_before(w, sequence, row, back), size_t(x.width) * sizeof(float));
    }

    void run(Worker& w) const override {
        const BatchView& batch = w.batch;
        // A single row is split into columns, so that all threads have work.
        const int64_t parts = batch.n_rows >= w.program.n_threads() ? 1 : w.program.n_threads();
        w.share(batch.n_rows * parts, [&](int64_t begin, int64_t end) {
            std::array<const float*, kMaxKernel> rows;
            for (int64_t task = begin; task < end; ++task) {
                const int64_t row = task / parts, part = task % parts;
                const int64_t first = x.width * part / parts, last = x.width * (part + 1) / parts;
                for (int k = 0; k < kernel; ++k)
                    rows[size_t(k)] = row_before(w, w.sequence_of(row), row, int64_t(kernel - 1 - k) * apart) + first;
                kernels.conv({.rows = rows.data(),
                              .weights = weights.data() + first,
                              .bias = bias == nullptr ? nullptr : bias->data + first,
                              .y = y.data + row * y.width + first,
                              .n = last - first,
                              .stride = x.width,
                              .kernel = kernel,
                              .silu = silu});
            }
        });
        slot.leave_states(w, [&](int64_t sequence, int64_t row, int32_t to) { leave(w, sequence, row, to); });
    }
};

}  // namespace

std::unique_ptr<Step> make_causal_conv1d(const Arguments& a) { return std::make_unique<CausalConv1d>(a); }

}  // namespace woolly
