// Scale searches: candidates around the initial scale, each refined by weighted least squares; the best is kept.
#pragma once

#include <cmath>
#include <cstring>

namespace woolly {

// Vector of four floats on every target CPU; the order of sums does not depend on the compiler.
using Four = float __attribute__((vector_size(16)));

inline Four load4(const float* p) {
    Four v;
    std::memcpy(&v, p, 16);
    return v;
}
inline void store4(float* p, Four v) { std::memcpy(p, &v, 16); }
inline Four all4(float f) { return Four{f, f, f, f}; }
inline Four at_most(Four v, Four most) { return v < most ? v : most; }
inline Four at_least(Four v, Four least) { return v > least ? v : least; }
inline float sum4(Four v) { return (v[0] + v[2]) + (v[1] + v[3]); }

// Rounds to the nearest integer, ties to even, for magnitudes below 2^22.
inline Four nearest4(Four v) { return (v + all4(12582912.0f)) - all4(12582912.0f); }
inline float nearest(float v) { return (v + 12582912.0f) - 12582912.0f; }

// Element of maximum magnitude, the first of several.
template <int N>
float largest(const float* x) {
    float best = x[0];
    for (int i = 1; i < N; ++i) {
        if (std::fabs(x[i]) > std::fabs(best)) best = x[i];
    }
    return best;
}

struct Affine {
    float scale;
    float offset;  // at least 0: a number is scale * level - offset
};

// Sums over N numbers and their levels, which determine the best line and its error.
struct Moments {
    double l, ll, xl;
};

template <int N>
Moments moments(const float* shifted, const float* w, const float* wx, float inverse, float top) {
    Four sums_l{}, sums_ll{}, sums_xl{};
    for (int i = 0; i < N; i += 4) {
        const Four scaled = load4(shifted + i) * all4(inverse);
        const Four level = nearest4(at_least(at_most(scaled, all4(top)), all4(0))), weighted = load4(w + i) * level;
        sums_l += weighted, sums_ll += weighted * level, sums_xl += load4(wx + i) * level;
    }
    return {double(sum4(sums_l)), double(sum4(sums_ll)), double(sum4(sums_xl))};
}

// Error weights of N numbers with known column importance: higher for large numbers, whose share of a dot product is
// larger, but bounded.
template <int N>
void weigh_columns(const float* x, const float* columns, float mean_square, float* weights) {
    for (int i = 0; i < N; ++i) weights[i] = columns[i] * std::sqrt(mean_square + x[i] * x[i]);
}

template <int N>
float mean_square_of(const float* x) {
    float sum = 0;
    for (int i = 0; i < N; ++i) sum += x[i] * x[i];
    return sum / float(N);
}

// Levels 0..top for N numbers x with weights w: the weighted least-squares line. Tries `n_steps` ranges, of top + first
// + delta * step levels each. A range better than all before moves the offset from which the next ones count levels,
// which finds lines that no range from the minimum gives.
template <int N>
Affine fit_affine(const float* x, const float* w, float top, float first, int n_steps, float delta = 0.1f) {
    float low = 0, high = x[0];
    for (int i = 0; i < N; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    const float span = high - low;
    if (!(span > 0)) return {0, -low};
    if (!std::isfinite(2 * top / span)) return {span / top, -low};

    alignas(16) float shifted[N], wx[N];
    Four sums_w{}, sums_x{}, sums_xx{};
    for (int i = 0; i < N; i += 4) {
        const Four v = load4(x + i), weight = load4(w + i), product = weight * v;
        store4(shifted + i, v - all4(low));
        store4(wx + i, product);
        sums_w += weight, sums_x += product, sums_xx += product * v;
    }
    const double sum_w = double(sum4(sums_w)), sum_x = double(sum4(sums_x)), sum_xx = double(sum4(sums_xx));
    // The square multiplied out: no second pass over the numbers.
    const auto error_of = [&](const Moments& m, double scale, double shift) {
        return scale * (scale * m.ll + 2 * (shift * m.l - m.xl)) + shift * (shift * sum_w - 2 * sum_x) + sum_xx;
    };
    Affine best{span / top, -low};
    double best_error = error_of(moments<N>(shifted, w, wx, top / span, top), double(best.scale), double(low));
    for (int step = 0; step < n_steps; ++step) {
        const Moments m = moments<N>(shifted, w, wx, (top + first + delta * float(step)) / (high + best.offset), top);
        const double determinant = sum_w * m.ll - m.l * m.l;
        if (!(determinant > 0)) continue;
        double scale = (sum_w * m.xl - sum_x * m.l) / determinant, shift = (m.ll * sum_x - m.l * m.xl) / determinant;
        if (shift > 0) {  // the format stores no positive offset: use the best line through zero
            shift = 0;
            scale = m.xl / m.ll;
        }
        const double error = error_of(m, scale, shift);
        if (scale > 0 && error < best_error) {
            best_error = error;
            best = {float(scale), float(-shift)};
            for (int i = 0; i < N; i += 4) store4(shifted + i, load4(x + i) + all4(best.offset));
        }
    }
    return best;
}

// Levels -half..half-1 for N numbers, weighted by w (null: by their squares): best of 19 scales.
template <int N>
float fit_symmetric(const float* x, float half, const float* w = nullptr) {
    const float top = largest<N>(x);
    if (std::fabs(top) < 1e-15f) return 0;
    alignas(16) float unit[N], weights[N];
    // In units of the maximum, so that squares of tiny numbers do not underflow.
    for (int i = 0; i < N; ++i) unit[i] = x[i] / top, weights[i] = w != nullptr ? w[i] : unit[i] * unit[i];
    float best = 0, best_gain = 0;
    for (int n = 0; n < 19; ++n) {
        const int step = n == 0 ? 0 : n <= 9 ? n - 10 : n - 9;  // the obvious one first, so that it wins a tie
        const Four inverse = all4(-(half + 0.1f * float(step)));
        Four sums_xl{}, sums_ll{};
        for (int i = 0; i < N; i += 4) {
            const Four scaled = at_least(at_most(load4(unit + i) * inverse, all4(half - 1)), all4(-half));
            const Four level = nearest4(scaled), weighted = load4(weights + i) * level;
            sums_xl += weighted * load4(unit + i), sums_ll += weighted * level;
        }
        const float sum_xl = sum4(sums_xl), sum_ll = sum4(sums_ll);
        if (sum_ll > 0 && sum_xl * sum_xl > best_gain * sum_ll) {
            best = sum_xl / sum_ll;
            best_gain = sum_xl * best;
        }
    }
    return best * top;
}

// As fit_symmetric, for few levels: single levels are moved while that reduces the error.
template <int N>
float fit_few(const float* x, float half) {
    const float top = largest<N>(x);
    if (std::fabs(top) < 1e-15f) return 0;
    float unit[N], weights[N], levels[N], sum_xl = 0, sum_ll = 0;
    for (int i = 0; i < N; ++i) {
        // Negated, so that scales are positive.
        unit[i] = -x[i] / top, weights[i] = unit[i] * unit[i];
        levels[i] = nearest(std::fmin(unit[i] * half, half - 1));
        sum_xl += weights[i] * unit[i] * levels[i], sum_ll += weights[i] * levels[i] * levels[i];
    }
    for (int round = 0; round < 5; ++round) {
        bool moved = false;
        for (int i = 0; i < N; ++i) {
            float xl = sum_xl - weights[i] * unit[i] * levels[i], ll = sum_ll - weights[i] * levels[i] * levels[i];
            if (!(xl > 0)) continue;
            const float level = nearest(std::fmin(std::fmax(unit[i] * ll / xl, -half), half - 1));
            if (level == levels[i]) continue;
            xl += weights[i] * unit[i] * level, ll += weights[i] * level * level;
            if (ll > 0 && xl * xl * sum_ll > sum_xl * sum_xl * ll) {
                levels[i] = level, sum_xl = xl, sum_ll = ll;
                moved = true;
            }
        }
        if (!moved) break;
    }
    return sum_ll > 0 ? -sum_xl / sum_ll * top : 0;
}

// Levels 0..top for N non-negative numbers, weighted by w: best of 21 scales.
template <int N>
float fit_positive(const float* x, const float* w, float top) {
    const float most = largest<N>(x);
    if (!(most > 1e-15f)) return 0;
    float best = most / top, best_gain = 0;
    for (int n = 0; n < 21; ++n) {
        const int step = n == 0 ? 0 : n <= 10 ? n - 11 : n - 10;
        const float inverse = (top + 0.1f * float(step)) / most;
        float sum_xl = 0, sum_ll = 0;
        for (int i = 0; i < N; ++i) {
            const float level = nearest(std::fmin(x[i] * inverse, top));
            sum_xl += w[i] * x[i] * level, sum_ll += w[i] * level * level;
        }
        if (sum_ll > 0 && sum_xl * sum_xl > best_gain * sum_ll) {
            best = sum_xl / sum_ll;
            best_gain = sum_xl * best;
        }
    }
    return best;
}

}  // namespace woolly
