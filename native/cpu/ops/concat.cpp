// concat: concatenates each head of a with the same head of b, or with all of b.
#include <cstring>

#include "cpu/ops/table.h"
#include "cpu/program/worker.h"

namespace woolly {

namespace {

struct Concat final : Step {
    const Value a, b, y;
    const int64_t heads;
    const bool shared;

    explicit Concat(const Arguments& from)
        : a(from.input(0)),
          b(from.input(1)),
          y(from.output(0)),
          heads(from.integer("heads")),
          shared(from.integer("shared") != 0) {
        if (heads < 1 || a.width % heads != 0 || b.width % (shared ? 1 : heads) != 0 ||
            y.width != a.width + (shared ? b.width * heads : b.width))
            from.fail("has inputs that do not fit its heads");
    }

    void run(Worker& w) const override {
        const int64_t left = a.width / heads, right = shared ? b.width : b.width / heads, next = shared ? 0 : right;
        w.share(y.rows(w.batch), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r)
                for (int64_t h = 0; h < heads; ++h) {
                    float* to = y.data + r * y.width + h * (left + right);
                    std::memcpy(to, a.data + r * a.width + h * left, size_t(left) * 4);
                    std::memcpy(to + left, b.data + r * b.width + h * next, size_t(right) * 4);
                }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_concat(const Arguments& a) { return std::make_unique<Concat>(a); }

}  // namespace woolly
