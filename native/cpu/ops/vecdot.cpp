// vecdot: dot product of two values over each group of columns.
#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct VecDot final : Step {
    const Value a, b, y;
    const int64_t group;

    explicit VecDot(const Arguments& from)
        : a(from.input(0)), b(from.input(1)), y(from.output(0)), group(from.integer("group")) {
        if (group < 1 || a.width != y.width * group || b.width != a.width) from.fail("takes groups that are not whole");
    }

    void run(Worker& w) const override {
        w.share(y.rows(w.batch) * y.width, [&](int64_t begin, int64_t end) {
            for (int64_t g = begin; g < end; ++g) {
                float sum = 0.0f;
                for (int64_t i = g * group; i < (g + 1) * group; ++i) sum += a.data[i] * b.data[i];
                y.data[g] = sum;
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_vecdot(const Arguments& a) { return std::make_unique<VecDot>(a); }

}  // namespace woolly
