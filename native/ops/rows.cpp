// Ops that work row by row or element by element.
#include <cstring>

#include "program/worker.h"
#include "quant/pack.h"

namespace woolly {

void Worker::embed(const Step& step) {
    const Matrix& table = p.matrices_[size_t(step.matrices[0])];
    const Range range = share(batch.n_rows);
    for (int64_t r = range.first; r < range.last; ++r)
        dequantize_row(table.type, table.source + size_t(batch.tokens[r]) * table.stride(), table.columns,
                       out(step) + r * table.columns);
}

void Worker::rms_norm(const Step& step) {
    const Vector& weight = p.vectors_[size_t(step.norm)];
    const int64_t groups = rows(step) * (p.value_width(step.outputs[0]) / weight.n);
    const Range range = share(groups);
    for (int64_t g = range.first; g < range.last; ++g)
        p.kernels_.rms_norm(in(step, 0) + g * weight.n, weight.data, step.eps, weight.n, out(step) + g * weight.n);
}

void Worker::elementwise(const Step& step) {
    const Range range = share(rows(step) * p.value_width(step.outputs[0]));
    const float* a = in(step, 0);
    float* y = out(step);
    switch (step.op) {
        case Op::swiglu:
            // Whole groups of 16 for all workers but the last: a kernel's tail must not depend on the share.
            {
                const int64_t n = rows(step) * p.value_width(step.outputs[0]);
                const Range groups = share((n + 15) / 16);
                const int64_t first = groups.first * 16, last = groups.last * 16 < n ? groups.last * 16 : n;
                if (first < last) p.kernels_.swiglu(a + first, in(step, 1) + first, last - first, y + first);
            }
            return;
        case Op::add: {
            const float* b = in(step, 1);
            for (int64_t i = range.first; i < range.last; ++i) y[i] = a[i] + b[i];
            return;
        }
        default:
            for (int64_t i = range.first; i < range.last; ++i) y[i] = a[i] * step.factor;
    }
}

void Worker::output_rows(const Step& step) {
    const int64_t width = p.value_width(step.outputs[0]);
    const Range range = share(batch.n_output);
    for (int64_t r = range.first; r < range.last; ++r)
        std::memcpy(out(step) + r * width, in(step, 0) + batch.output_rows[r] * width, size_t(width) * 4);
}

}  // namespace woolly
