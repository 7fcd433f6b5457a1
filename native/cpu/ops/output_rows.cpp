// output_rows: selects the rows whose logits are requested.
#include <cstring>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct OutputRows final : Step {
    const Value x, y;

    explicit OutputRows(const Arguments& a) : x(a.input(0)), y(a.output(0)) {}

    void run(Worker& w) const override {
        w.share(w.batch.n_output, [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r)
                std::memcpy(y.data + r * y.width, x.data + w.batch.output_rows[r] * y.width, size_t(y.width) * 4);
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_output_rows(const Arguments& a) { return std::make_unique<OutputRows>(a); }

}  // namespace woolly
