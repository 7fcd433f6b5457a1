// rope: rotates each head by its token's position, for models where store does not.
#include <cstring>

#include "cpu/ops/rotate.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct RotateHeads final : Step {
    const Value x, y;
    const int head_dim;
    const Rotate rotate;

    explicit RotateHeads(const Arguments& a)
        : x(a.input(0)), y(a.output(0)), head_dim(a.integer("head_dim")), rotate(a) {
        if (head_dim < 1 || x.width % head_dim != 0) a.fail("has no heads of " + std::to_string(head_dim));
    }

    void run(Worker& w) const override {
        const int64_t n_heads = x.width / head_dim;
        w.share(w.batch.n_rows * n_heads, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
                float* head = y.data + task * head_dim;
                std::memcpy(head, x.data + task * head_dim, size_t(head_dim) * 4);
                rotate(w.batch, task / n_heads, head);
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_rope(const Arguments& a) { return std::make_unique<RotateHeads>(a); }

}  // namespace woolly
