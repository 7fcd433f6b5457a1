#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "sampling/sampling.h"

namespace woolly {

void mask(std::span<const float> row, std::span<const std::uint32_t> words, std::span<float> out) {
    constexpr auto never = std::bit_cast<std::uint32_t>(-std::numeric_limits<float>::infinity());
    for (std::size_t first = 0; first < row.size(); first += 32) {
        const std::uint32_t word = words[first / 32];
        const auto n = static_cast<std::uint32_t>(std::min(std::size_t{32}, row.size() - first));
        const float* from = row.data() + first;
        float* to = out.data() + first;
        // Branch-free: a random mask would be mispredicted every other time.
        for (std::uint32_t i = 0; i < n; ++i) {
            const std::uint32_t keep = 0u - ((word >> i) & 1u);
            to[i] = std::bit_cast<float>((std::bit_cast<std::uint32_t>(from[i]) & keep) | (never & ~keep));
        }
    }
}

float weigh(std::span<const float> row, float top, std::span<float> out) {
    float sum = 0.0f;
    for (std::size_t i = 0; i < row.size(); ++i) {
        out[i] = std::exp(row[i] - top);
        sum += out[i];
    }
    return sum;
}

std::int64_t draw(std::span<const float> row, float top, double u) {
    std::vector<double> sums(row.size());
    double sum = 0.0;
    for (std::size_t i = 0; i < row.size(); ++i) sums[i] = sum += static_cast<double>(std::exp(row[i] - top));
    return std::lower_bound(sums.begin(), sums.end(), u * sum) - sums.begin();
}

void logs(std::span<const float> values, bool base_2, std::span<float> out) {
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double value = values[i];
        out[i] = static_cast<float>(base_2 ? std::log2(value) : std::log(value));
    }
}

double log_sum_exp(std::span<const float> row) {
    const double top = *std::max_element(row.begin(), row.end());
    double sum = 0.0;
    for (const float value : row) sum += std::exp(static_cast<double>(value) - top);
    return top + std::log(sum);
}

}  // namespace woolly
