// input: the embeddings injected by the batch, unchanged.
#include <cstring>
#include <stdexcept>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct Input final : Step {
    const Value y;

    explicit Input(const Arguments& a) : y(a.output(0)) {}

    void check(const BatchView& b, const Cache&) const override {
        if (b.hidden == nullptr || b.hidden_width != y.width)
            throw std::invalid_argument("the batch has no input rows of " + std::to_string(y.width) + " columns");
    }

    void run(Worker& w) const override {
        w.share(w.batch.n_rows * y.width, [&](int64_t begin, int64_t end) {
            std::memcpy(y.data + begin, w.batch.hidden + begin, size_t(end - begin) * sizeof(float));
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_input(const Arguments& a) { return std::make_unique<Input>(a); }

}  // namespace woolly
