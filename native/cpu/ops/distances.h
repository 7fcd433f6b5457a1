// Relative position bias of attention scores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/kernels/table.h"
#include "cpu/ops/f64_math.h"
#include "cpu/weights/matrix.h"

namespace woolly {

// Bias table of attention scores by distance between row and position: the distance selects a bucket of a learned
// table, as in T5. Each head has a number per distance.
struct ByDistance {
    static constexpr int64_t kFarthest = 128;  // distances from here on share a bucket
    static constexpr double kSlack = 1e-9;     // tolerance, as a fraction of a bucket
    int64_t before, length;                    // maximum distance back, and table entries per head
    std::vector<float> numbers;

    // `longest`: maximum positions visible before and after a row; 0: none after it, any number before. Reading 16
    // entries from any index is in bounds.
    ByDistance(const Vector& table, int n_heads, int64_t longest)
        : before(longest > 0 ? longest + 16 : kFarthest + kSplit + 16),
          length(before + longest + 17),
          numbers(size_t(n_heads * length)) {
        const int64_t n_buckets = table.n / n_heads;
        for (int h = 0; h < n_heads; ++h)
            for (int64_t i = 0; i < length; ++i)
                numbers[size_t(h * length + i)] = table.data[bucket(i - before, n_buckets, longest > 0) * n_heads + h];
    }

    // Half of the buckets are for later positions, if any are visible. Half of each half are single distances; the
    // others grow up to the farthest. A distance at a bucket boundary is an integer except for f64 rounding: kSlack.
    static int64_t bucket(int64_t distance, int64_t n_buckets, bool sees_later) {
        const int64_t side = sees_later ? n_buckets / 2 : n_buckets, single = side / 2;
        const int64_t far = distance < 0 ? -distance : sees_later ? distance : 0;
        const int64_t first = sees_later && distance > 0 ? side : 0;
        if (far < single) return first + far;
        if (far >= kFarthest) return first + side - 1;
        const double share = (log_double(double(far)) - log_double(double(single))) /
                             (log_double(double(kFarthest)) - log_double(double(single)));
        return first + std::min(side - 1, single + int64_t(share * double(side - single) + kSlack));
    }

    // Bias of a row for a head, by position of the split that begins at `first`. Splits that begin beyond the table lie
    // past the farthest bucket, like the first split of the table.
    const float* of(int head, int position, int first) const {
        return numbers.data() + head * length + before + std::max<int64_t>(first - position, -before) - first;
    }
};

// ALiBi slopes: decrease of each head's scores per position of distance; `most` is the maximum exponent.
inline std::vector<float> slopes_of(float most, int n_heads) {
    int powers = 1;  // number of heads rounded down to a power of two; slopes of the others are interleaved
    while (powers * 2 <= n_heads) powers *= 2;
    std::vector<float> slopes;
    for (int h = 0; h < n_heads; ++h) {
        const double exponent = h < powers ? double(h + 1) / powers : (2.0 * (h - powers) + 1) / (2.0 * powers);
        slopes.push_back(float(exp2_double(-double(most) * exponent)));
    }
    return slopes;
}

}  // namespace woolly
