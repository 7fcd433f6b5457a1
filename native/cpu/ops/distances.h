// What is added to scores of attention by the distance from a row to a position.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/kernels/table.h"
#include "cpu/ops/doubles.h"
#include "cpu/weights/matrix.h"

namespace woolly {

// What is added to scores by the distance from a row to a position: the distance chooses a bucket of a learned table.
// Every head has a number for every distance.
struct ByDistance {
    static constexpr int64_t kFarthest = 128;  // from here on distances share a bucket
    static constexpr double kSlack = 1e-9;     // of a share of the buckets
    int64_t before, length;                    // the longest distance back, and the numbers of a head
    std::vector<float> numbers;

    // `longest`: positions that a row may see before its own, and after it; 0: rows see none after their own, and any
    // number before. There is room to read 16 positions from any.
    ByDistance(const Vector& table, int n_heads, int64_t longest)
        : before(longest > 0 ? longest + 16 : kFarthest + kSplit + 16),
          length(before + longest + 17),
          numbers(size_t(n_heads * length)) {
        const int64_t n_buckets = table.n / n_heads;
        for (int h = 0; h < n_heads; ++h)
            for (int64_t i = 0; i < length; ++i)
                numbers[size_t(h * length + i)] = table.data[bucket(i - before, n_buckets, longest > 0) * n_heads + h];
    }

    // Half of the buckets are for later positions, if rows see any. Half of each half are single distances, the others
    // grow up to the farthest. A distance where one begins is a whole number of them but for what f64 rounds: kSlack.
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

    // What a row adds to the scores of a head, by position: of those of the split that begins at `first`. All of a
    // split that begins beyond the table are farther than the farthest, as the first split of the table are.
    const float* of(int head, int position, int first) const {
        return numbers.data() + head * length + before + std::max<int64_t>(first - position, -before) - first;
    }
};

// How much scores of each head fall with each position of distance (ALiBi); `most` is the largest exponent.
inline std::vector<float> slopes_of(float most, int n_heads) {
    int powers = 1;  // heads up to the largest power of two; slopes of the others are between theirs
    while (powers * 2 <= n_heads) powers *= 2;
    std::vector<float> slopes;
    for (int h = 0; h < n_heads; ++h) {
        const double exponent = h < powers ? double(h + 1) / powers : (2.0 * (h - powers) + 1) / (2.0 * powers);
        slopes.push_back(float(exp2_double(-double(most) * exponent)));
    }
    return slopes;
}

}  // namespace woolly
