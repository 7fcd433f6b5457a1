// hidden: hidden states from the batch, normed unless they come from a draft step or the plan disables it.
#include <cstring>
#include <stdexcept>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct Hidden final : Step {
    const Value y;
    const Vector* const norm;
    const float eps;

    explicit Hidden(const Arguments& a) : y(a.output(0)), norm(a.vector("norm")), eps(a.number("eps")) {
        if (norm != nullptr && norm->n != y.width) a.fail("needs a weight 'norm' as long as a row");
    }

    void check(const BatchView& b, const Cache&) const override {
        if (b.hidden == nullptr || b.hidden_width != y.width)
            throw std::invalid_argument("the batch has no hidden states of " + std::to_string(y.width) + " columns");
    }

    void run(Worker& w) const override {
        w.share(w.batch.n_rows, [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r) {
                const float* from = w.batch.hidden + r * y.width;
                float* to = y.data + r * y.width;
                if (w.batch.is_hidden_normed || norm == nullptr)
                    std::memcpy(to, from, size_t(y.width) * sizeof(float));
                else
                    w.program.kernels().rms_norm(from, norm->data, eps, y.width, to);
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_hidden(const Arguments& a) { return std::make_unique<Hidden>(a); }

}  // namespace woolly
