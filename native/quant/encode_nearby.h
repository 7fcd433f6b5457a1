// Nearest points for each cell of a codebook's grid, to which the search is limited.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "quant/encode_search.h"

namespace woolly {

// Codebook of points of `dims` numbers, each one of `base` values. A cell is the tuple of values nearest to some
// numbers; most cells are not points. Searching the entire codebook would mean up to 2048 points per 8 numbers.
template <int dims, int base>
class Nearby {
  public:
    static constexpr int kNear = 16;

    template <class Word>
    Nearby(const Word* words, int n_points, const int8_t (&values)[base]) : points_(size_t(n_points) * dims) {
        for (int p = 0; p < n_points; ++p)
            for (int i = 0; i < dims; ++i) points_[size_t(p) * dims + size_t(i)] = float(int8_t(words[p] >> (8 * i)));
        for (int i = 0; i < base; ++i) values_[i] = float(values[i]);
        for (int i = 0; i + 1 < base; ++i) bounds_[i] = 0.5f * (values_[i] + values_[i + 1]);
        int n_cells = 1;
        for (int i = 0; i < dims; ++i) n_cells *= base;
        near_.resize(size_t(n_cells) * kNear);
        std::vector<float> distances(static_cast<size_t>(n_points));
        std::vector<uint16_t> order(static_cast<size_t>(n_points));
        for (int cell = 0; cell < n_cells; ++cell) {
            float center[dims];
            for (int i = 0, digits = cell; i < dims; ++i, digits /= base) center[i] = values_[digits % base];
            for (size_t p = 0; p < distances.size(); ++p) {
                float sum = 0;
                for (int i = 0; i < dims; ++i) {
                    const float off = point(int(p))[i] - center[i];
                    sum += off * off;
                }
                distances[p] = sum;
            }
            std::iota(order.begin(), order.end(), uint16_t(0));
            std::partial_sort(order.begin(), order.begin() + kNear, order.end(), [&](uint16_t a, uint16_t b) {
                return distances[a] < distances[b] || (distances[a] == distances[b] && a < b);
            });
            std::copy_n(order.begin(), kNear, near_.begin() + size_t(cell) * kNear);
        }
    }

    const float* point(int rank) const { return points_.data() + size_t(rank) * dims; }

    float value(int digit) const { return values_[digit]; }

    // Rank of the point with the least weighted squared distance to `x`, among the `n_near` nearest to its cell.
    int nearest_point(const float* x, const float* weights, int n_near = kNear) const {
        size_t cell = 0, place = 1;
        for (int i = 0; i < dims; ++i, place *= base) {
            size_t digit = 0;
            for (int b = 0; b + 1 < base; ++b) digit += x[i] > bounds_[b];
            cell += place * digit;
        }
        const uint16_t* near = near_.data() + cell * kNear;
        int best = near[0];
        float least = error_of(point(best), x, weights);
        for (int n = 1; n < n_near; ++n) {
            const float error = error_of(point(near[n]), x, weights);
            if (error < least) least = error, best = near[n];
        }
        return best;
    }

  private:
    static float error_of(const float* point, const float* x, const float* weights) {
        Four sum{};
        for (int i = 0; i < dims; i += 4) {
            const Four off = load4(x + i) - load4(point + i);
            sum += load4(weights + i) * off * off;
        }
        return sum4(sum);
    }

    std::vector<float> points_;
    std::vector<uint16_t> near_;
    float values_[base];
    float bounds_[base - 1];
};

}  // namespace woolly
