// slice: a slice of the columns of each row, or of each group of columns.
#include <cstring>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct Slice final : Step {
    const Value x, y;
    const int64_t first, groups;  // sliced columns of each of several groups

    explicit Slice(const Arguments& a)
        : x(a.input(0)), y(a.output(0)), first(a.integer("first")), groups(a.integer("groups")) {
        if (groups < 1 || x.width % groups != 0 || y.width % groups != 0) a.fail("takes runs that are not whole");
        const int64_t last = first + y.width / groups;
        if (first < 0 || a.integer("last") != last || last > x.width / groups)
            a.fail("takes columns outside its input");
    }

    void run(Worker& w) const override {
        const int64_t from = x.width / groups, to = y.width / groups;
        w.share(y.rows(w.batch) * groups, [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r)
                std::memcpy(y.data + r * to, x.data + r * from + first, size_t(to) * 4);
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_slice(const Arguments& a) { return std::make_unique<Slice>(a); }

}  // namespace woolly
