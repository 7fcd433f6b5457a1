// mix_streams: linear combinations of streams with coefficients per row.
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct MixStreams final : Step {
    const Value x, coefs, y;
    const int64_t streams;
    const float plus;

    explicit MixStreams(const Arguments& a)
        : x(a.input(0)), coefs(a.input(1)), y(a.output(0)), streams(a.integer("streams")), plus(a.number("plus")) {
        if (streams < 1 || x.width % streams != 0 || coefs.width % streams != 0 ||
            y.width != x.width / streams * (coefs.width / streams))
            a.fail("has streams that do not fit its coefficients");
    }

    void run(Worker& w) const override {
        const int64_t width = x.width / streams, n = coefs.width / streams;
        w.share(y.rows(w.batch) * n, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
                const int64_t row = task / n, j = task % n;
                float* to = y.data + row * y.width + j * width;
                for (int64_t i = 0; i < streams; ++i) {
                    const float factor = coefs.data[row * coefs.width + j * streams + i] + plus;
                    const float* from = x.data + row * x.width + i * width;
                    for (int64_t c = 0; c < width; ++c) to[c] = (i == 0 ? 0.0f : to[c]) + factor * from[c];
                }
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_mix_streams(const Arguments& a) { return std::make_unique<MixStreams>(a); }

}  // namespace woolly
