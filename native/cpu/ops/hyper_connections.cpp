// hyper_connections: coefficients for mixing streams before and after a layer, from a row's logits; the
// stream-to-stream matrix is normalized towards a doubly stochastic one (Sinkhorn).
#include <algorithm>

#include "cpu/ops/functions.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

constexpr int kMaxStreams = 16;

struct HyperConnections final : Step {
    const Value x, y;
    const int n, iterations;
    const float eps;
    const Vector *const scale, *const base;

    explicit HyperConnections(const Arguments& a)
        : x(a.input(0)),
          y(a.output(0)),
          n(a.integer("streams")),
          iterations(a.integer("iterations")),
          eps(a.number("eps")),
          scale(a.vector("scale")),
          base(a.vector("base")) {
        if (n < 1 || n > kMaxStreams) a.fail("takes 1 to " + std::to_string(kMaxStreams) + " streams");
        const bool whole = x.width == int64_t(n) * (n + 2);
        if ((!whole && x.width != n) || y.width != x.width || scale == nullptr || scale->n != (whole ? 3 : 1) ||
            base == nullptr || base->n != x.width || iterations < (whole ? 1 : 0))
            a.fail("has logits, scales and bases that do not fit its streams");
    }

    // Divides the rows, then the columns of `m` by their sums.
    void by_rows(float (*m)[kMaxStreams]) const {
        for (int i = 0; i < n; ++i) {
            float sum = 0;
            for (int j = 0; j < n; ++j) sum += m[i][j];
            for (int j = 0; j < n; ++j) m[i][j] /= sum + eps;
        }
    }
    void by_columns(float (*m)[kMaxStreams]) const {
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int i = 0; i < n; ++i) sum += m[i][j];
            for (int i = 0; i < n; ++i) m[i][j] /= sum + eps;
        }
    }

    void row(const float* from, float* to) const {
        const auto logit = [&](int i, int part) { return from[i] * scale->data[part] + base->data[i]; };
        for (int i = 0; i < n; ++i) to[i] = sigmoid_of(logit(i, 0)) + eps;
        if (x.width == n) return;
        for (int i = 0; i < n; ++i) to[n + i] = 2.0f * sigmoid_of(logit(n + i, 1));
        float m[kMaxStreams][kMaxStreams];
        for (int i = 0; i < n; ++i) {
            for (int j = 0; j < n; ++j) m[i][j] = logit(2 * n + i * n + j, 2);
            const float top = *std::max_element(m[i], m[i] + n);
            float sum = 0;
            for (int j = 0; j < n; ++j) sum += m[i][j] = exp_of(m[i][j] - top);
            for (int j = 0; j < n; ++j) m[i][j] = m[i][j] / sum + eps;
        }
        by_columns(m);
        for (int k = 1; k < iterations; ++k) by_rows(m), by_columns(m);
        for (int j = 0; j < n; ++j)
            for (int i = 0; i < n; ++i) to[2 * n + j * n + i] = m[i][j];
    }

    void run(Worker& w) const override {
        w.share(y.rows(w.batch), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r) row(x.data + r * x.width, y.data + r * y.width);
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_hyper_connections(const Arguments& a) { return std::make_unique<HyperConnections>(a); }

}  // namespace woolly
