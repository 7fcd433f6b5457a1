// Base of elementwise ops.
#pragma once

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

// `Op` is constructed from the step's arguments. op(w, x, n, y) computes n elements.
template <class Op>
struct EachElement final : Step {
    const Value x, y;
    const Op op;

    explicit EachElement(const Arguments& a) : x(a.input(0)), y(a.output(0)), op(a) {}

    void run(Worker& w) const override {
        w.share(y.rows(w.batch) * y.width,
                [&](int64_t begin, int64_t end) { op(w, x.data + begin, end - begin, y.data + begin); });
    }
};

}  // namespace woolly
