#include "cpu/program/rope_tables.h"

#include <cmath>

namespace woolly {

namespace {

struct CosSin {
    double cosine, sine;
};

// pi / 2 in three parts: 33 bits, 33 bits, the rest. The product of a 20-bit quotient and one of the first two is
// exact.
constexpr double part_1 = 0x1.921fb544p+0, part_2 = 0x1.0b4611a6p-34, part_3 = 0x1.3198a2e037073p-69;
constexpr double per_quarter = 0x1.45f306dc9c883p-1;  // 2 / pi

// Taylor series: for up to pi / 4 the first omitted term is below 1e-19 of the result.
constexpr double sine_terms[] = {-1.0 / 6,
                                 1.0 / 120,
                                 -1.0 / 5040,
                                 1.0 / 362880,
                                 -1.0 / 39916800.0,
                                 1.0 / 6227020800.0,
                                 -1.0 / 1307674368000.0,
                                 1.0 / 355687428096000.0};
constexpr double cosine_terms[] = {1.0 / 24,
                                   -1.0 / 720,
                                   1.0 / 40320,
                                   -1.0 / 3628800,
                                   1.0 / 479001600.0,
                                   -1.0 / 87178291200.0,
                                   1.0 / 20922789888000.0,
                                   -1.0 / 6402373705728000.0};

template <size_t n>
double series(const double (&terms)[n], double square) {
    double sum = terms[n - 1];
    for (size_t i = n - 1; i-- > 0;) sum = sum * square + terms[i];
    return sum;
}

// Error below one unit in the last place for angles up to 2^20. Angles are positions times frequencies of at most 1.
CosSin cos_sin(double angle) {
    if (!std::isfinite(angle)) return {angle - angle, angle - angle};
    const double quarters = std::nearbyint(angle * per_quarter);
    const double near = angle - quarters * part_1;  // exact
    const double step = quarters * part_2;          // exact
    const double x = near - step;
    const double rest = ((near - x) - step) - quarters * part_3;  // rounding error of x
    const double square = x * x;
    double sine = x + (x * square * series(sine_terms, square) + rest);
    double cosine = (1.0 - 0.5 * square) + (square * square * series(cosine_terms, square) - x * rest);
    const auto quadrant = static_cast<int64_t>(quarters) & 3;
    if (quadrant & 1) {
        const double other = cosine;
        cosine = -sine;
        sine = other;
    }
    return quadrant & 2 ? CosSin{-cosine, -sine} : CosSin{cosine, sine};
}

}  // namespace

void rope_tables(std::span<const double> frequencies, std::span<const double> magnitudes, std::span<float> cosines,
                 std::span<float> sines) {
    const size_t n = frequencies.size();
    for (size_t at = 0, position = 0; at + n <= cosines.size(); ++position) {
        for (size_t i = 0; i < n; ++i, ++at) {
            const CosSin t = cos_sin(static_cast<double>(position) * frequencies[i]);
            cosines[at] = static_cast<float>(t.cosine * magnitudes[i]);
            sines[at] = static_cast<float>(t.sine * magnitudes[i]);
        }
    }
}

}  // namespace woolly
