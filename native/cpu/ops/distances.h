// What is added to scores of attention by the distance from a row to a position.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cpu/weights/matrix.h"

namespace woolly {

// What is added to scores by the distance from a row to a position: the distance chooses a bucket of a learned table.
// Every head has a number for every distance.
struct ByDistance {
    int64_t most;  // the longest distance, with room to read 16 positions from any
    std::vector<float> numbers;

    // `longest`: positions that a row may see before its own, and after it.
    ByDistance(const Vector& table, int n_heads, int64_t longest)
        : most(longest + 16), numbers(size_t(n_heads * (2 * most + 1))) {
        for (int h = 0; h < n_heads; ++h)
            for (int64_t d = -most; d <= most; ++d)
                numbers[size_t(h * (2 * most + 1) + most + d)] = table.data[bucket(d, table.n / n_heads) * n_heads + h];
    }

    // Half of the buckets are for later positions. Half of each half are single distances, the others grow up to 128.
    static int64_t bucket(int64_t distance, int64_t n_buckets) {
        const int64_t half = n_buckets / 2, single = half / 2, far = distance < 0 ? -distance : distance;
        const int64_t first = distance > 0 ? half : 0;
        if (far < single) return first + far;
        const float share = std::log(float(far) / float(single)) / std::log(128.0f / float(single));
        return first + std::min(half - 1, single + int64_t(share * float(half - single)));
    }

    // The number of a head for distance 0; those of others are before and after it.
    const float* of(int head) const { return numbers.data() + head * (2 * most + 1) + most; }
};

// How much scores of each head fall with each position of distance (ALiBi); `most` is the largest exponent.
inline std::vector<float> slopes_of(float most, int n_heads) {
    int powers = 1;  // heads up to the largest power of two; slopes of the others are between theirs
    while (powers * 2 <= n_heads) powers *= 2;
    std::vector<float> slopes;
    for (int h = 0; h < n_heads; ++h) {
        const double exponent = h < powers ? double(h + 1) / powers : (2.0 * (h - powers) + 1) / (2.0 * powers);
        slopes.push_back(float(std::exp2(-double(most) * exponent)));
    }
    return slopes;
}

}  // namespace woolly
