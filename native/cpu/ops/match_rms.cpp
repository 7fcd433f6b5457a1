// match_rms: scales each stream to the mean square of another.
#include <algorithm>
#include <cmath>

#include "cpu/ops/functions.h"
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

float mean_square(const float* x, int64_t n) {
    return sum_of(n, [&](int64_t i) { return x[i] * x[i]; }) / float(n);
}

struct MatchRms final : Step {
    const Value x, like, y;
    const float least;

    explicit MatchRms(const Arguments& a) : x(a.input(0)), like(a.input(1)), y(a.output(0)), least(a.number("least")) {
        if (like.width < 1 || x.width % like.width != 0) a.fail("has streams of another width than it is to match");
    }

    void run(Worker& w) const override {
        const int64_t width = like.width, n = x.width / width;
        w.share(y.rows(w.batch) * n, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
                const float* from = x.data + task * width;
                const float wanted = mean_square(like.data + task / n * width, width);
                const float factor = std::sqrt(wanted / std::max(mean_square(from, width), least));
                for (int64_t c = 0; c < width; ++c) y.data[task * width + c] = from[c] * factor;
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_match_rms(const Arguments& a) { return std::make_unique<MatchRms>(a); }

}  // namespace woolly
