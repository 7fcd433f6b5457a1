// IQ types of one to three bits: groups of columns with their own scale, whose quants are points of a codebook.
#include <algorithm>

#include "quant/codebooks.h"
#include "quant/encode.h"
#include "quant/encode_f16.h"
#include "quant/encode_nearby.h"
#include "quant/encode_search.h"

namespace woolly {

namespace {

// Tables are built at first use: that of IQ1 takes 0.1 s.
template <class Word, int n_points, int base>
const Nearby<int(sizeof(Word)), base>& nearby(const Codebook<Word, n_points>& book, const int8_t (&values)[base]) {
    static const Nearby<int(sizeof(Word)), base> table(book.words, n_points, values);
    return table;
}

// A block normalized to its maximum, which avoids overflow and underflow of products, and the weights of its columns:
// importance, or squares.
struct Unit {
    float top, x[256], weights[256];

    Unit(const float* numbers, Importance importance) : top(std::fabs(largest<256>(numbers))) {
        for (int i = 0; i < 256; ++i) x[i] = top > 0 ? numbers[i] / top : 0;
        const float mean = mean_square_of<256>(x);
        if (importance.columns != nullptr) {
            weigh_columns<256>(x, importance.columns, 2 * mean, weights);
        } else {
            for (int i = 0; i < 256; ++i) weights[i] = 0.25f * mean + x[i] * x[i];
        }
    }
};

// Sums over one group and one choice of points, which determine the best scale and its gain.
struct Fit {
    float scale = 0, gain = 0, sum_vv = 0;
    int ranks[8] = {};

    void close(float sum_xv, float sum_of_squares) {
        sum_vv = sum_of_squares;
        scale = sum_vv > 0 && sum_xv > 0 ? sum_xv / sum_vv : 0;
        gain = sum_xv * scale;
    }
};

// Nearest points to `n` numbers in units of `scale`; `shift(i)` is added to the points of piece i.
template <int dims, int base, class Shift>
Fit fit_at(const Nearby<dims, base>& book, const float* x, const float* weights, int n, float scale, int n_near,
           Shift shift) {
    Fit fit;
    float sum_xv = 0, sum_vv = 0;
    for (int i = 0; i < n / dims; ++i) {
        float scaled[dims];
        for (int k = 0; k < dims; ++k) scaled[k] = scale > 0 ? x[dims * i + k] / scale - shift(i) : 0;
        fit.ranks[i] = book.nearest_point(scaled, weights + dims * i, n_near);
        const float* point = book.point(fit.ranks[i]);
        for (int k = 0; k < dims; ++k) {
            const float v = point[k] + shift(i), w = weights[dims * i + k];
            sum_xv += w * x[dims * i + k] * v, sum_vv += w * v * v;
        }
    }
    fit.close(sum_xv, sum_vv);
    return fit;
}

// Best of `n_steps` scales from `first` on, each `ratio` times the one before, then refined twice.
template <int dims, int base, class Shift>
Fit search(const Nearby<dims, base>& book, const float* x, const float* weights, int n, float first, float ratio,
           int n_steps, Shift shift) {
    Fit best;
    float scale = first;
    for (int step = 0; step < n_steps; ++step, scale *= ratio) {
        const Fit fit = fit_at(book, x, weights, n, scale, 8, shift);
        if (fit.gain > best.gain) best = fit;
    }
    for (int round = 0; round < 2; ++round) {
        const Fit fit = fit_at(book, x, weights, n, best.scale, Nearby<dims, base>::kNear, shift);
        if (!(fit.gain > best.gain)) break;
        best = fit;
    }
    return best;
}

// Step of which the group scales are odd multiples, 1 to 2 * top + 1: the candidate of least error. Returned as float16
// of the step over `unit`, with `step` set to the stored value; scales are in units of `top_number`.
struct OddStep {
    uint16_t half = 0;
    float step = 0;
};

OddStep odd_step(const Fit* fits, int n_groups, int top, float unit, float top_number) {
    float most = 0;
    for (int g = 0; g < n_groups; ++g) most = std::max(most, fits[g].scale);
    float best_error = -1;
    OddStep best;
    for (int candidate = -8; candidate <= 8; ++candidate) {
        const float exact = most / (float(2 * top + 1) + 0.25f * float(candidate));
        const uint16_t half = float_to_half(exact / unit * top_number);
        const float step = top_number > 0 ? half_to_float(half) * unit / top_number : 0;
        float error = 0;
        for (int g = 0; g < n_groups; ++g) {
            const float ratio = step > 0 ? (fits[g].scale / step - 1) / 2 : 0;
            const float factor = 2 * nearest(std::min(std::max(ratio, 0.0f), float(top))) + 1;
            error += fits[g].sum_vv * (fits[g].scale - step * factor) * (fits[g].scale - step * factor);
        }
        if (best_error < 0 || error < best_error) best_error = error, best = {half, step};
    }
    return best;
}

int odd_level(float scale, float step, int top) {
    const float ratio = step > 0 ? (scale / step - 1) / 2 : 0;
    return int(nearest(std::min(std::max(ratio, 0.0f), float(top))));
}

constexpr auto kUnshifted = [](int) { return 0.0f; };

// An encoded block of ranks and signs, packed by each type in its own order.
template <int n_groups, int n_points>
struct Encoded {
    uint16_t d;
    int levels[n_groups];
    int ranks[n_points];
    uint8_t signs[32];
};

// `parity`: the number of negative columns in eight is even; the column of least weight is flipped.
template <int n_groups, int dims, int base>
Encoded<n_groups, 256 / dims> encode(const Nearby<dims, base>& book, const float* numbers, Importance importance,
                                     float unit, bool parity) {
    constexpr int n = 256 / n_groups, per_group = n / dims;
    Encoded<n_groups, 256 / dims> out{};
    const Unit block(numbers, importance);
    const float *x = block.x, *weights = block.weights;
    float magnitudes[256];
    for (int i = 0; i < 32; ++i) {
        uint32_t signs = 0;
        int least = 8 * i;
        for (int c = 8 * i; c < 8 * i + 8; ++c) {
            magnitudes[c] = std::fabs(x[c]);
            signs |= uint32_t(x[c] < 0) << (c % 8);
            if (weights[c] * x[c] * x[c] < weights[least] * x[least] * x[least]) least = c;
        }
        if (parity && __builtin_parity(signs)) {
            signs ^= 1u << (least % 8);
            magnitudes[least] = -magnitudes[least];
        }
        out.signs[i] = uint8_t(signs);
    }
    Fit fits[n_groups];
    for (int g = 0; g < n_groups; ++g) {
        const float *own = magnitudes + n * g, *w = weights + n * g;
        const float most = std::fabs(largest<n>(own));
        if (!(most > 1e-12f)) continue;
        // From scales that leave headroom above the maximum to those that clip a third of it.
        fits[g] = search(book, own, w, n, most / book.value(base - 1) * 1.2f, 0.965f, 18, kUnshifted);
        // Numbers of similar magnitude may fit points below the largest.
        float sum = 0;
        for (int i = 0; i < n; ++i) sum += std::fabs(own[i]);
        for (int i = 0; sum > 0.75f * most * float(n) && i < base - 1; ++i) {
            const Fit fit = fit_at(book, own, w, n, most / book.value(i), Nearby<dims, base>::kNear, kUnshifted);
            if (fit.gain > fits[g].gain) fits[g] = fit;
        }
    }
    const OddStep stored = odd_step(fits, n_groups, 15, unit, block.top);
    out.d = stored.half;
    for (int g = 0; g < n_groups; ++g) {
        out.levels[g] = odd_level(fits[g].scale, stored.step, 15);
        const float scale = stored.step * float(2 * out.levels[g] + 1);
        const Fit fit =
            fit_at(book, magnitudes + n * g, weights + n * g, n, scale, Nearby<dims, base>::kNear, kUnshifted);
        std::copy_n(fit.ranks, per_group, out.ranks + per_group * g);
    }
    return out;
}

void put_two(uint8_t* out, uint32_t value) {
    out[0] = uint8_t(value & 255);
    out[1] = uint8_t(value >> 8);
}

// Four times seven bits of signs, and four of the scale.
void put_group_word(uint8_t* out, const uint8_t* signs, int level) {
    uint32_t word = uint32_t(level) << 28;
    for (int i = 0; i < 4; ++i) word |= uint32_t(signs[i] & 127) << (7 * i);
    std::memcpy(out, &word, 4);
}

template <int n>
void put_nibbles(uint8_t* out, const int* levels) {
    for (int i = 0; i < n; i += 2) out[i / 2] = uint8_t(levels[i] | levels[i + 1] << 4);
}

}  // namespace

void quantize_block_iq2xxs(const float* x, Importance importance, uint8_t* out) {
    const auto block = encode<8>(nearby(kIq2Xxs, kIq2Values), x, importance, 0.125f, true);
    put_two(out, block.d);
    for (int g = 0; g < 8; ++g) {
        for (int i = 0; i < 4; ++i) out[2 + 8 * g + i] = uint8_t(block.ranks[4 * g + i]);
        put_group_word(out + 6 + 8 * g, block.signs + 4 * g, block.levels[g]);
    }
}

void quantize_block_iq2xs(const float* x, Importance importance, uint8_t* out) {
    const auto block = encode<16>(nearby(kIq2Xs, kIq2Values), x, importance, 0.125f, true);
    put_two(out, block.d);
    for (int i = 0; i < 32; ++i)
        put_two(out + 2 + 2 * i, uint32_t(block.ranks[i]) | uint32_t(block.signs[i] & 127) << 9);
    put_nibbles<16>(out + 66, block.levels);
}

void quantize_block_iq2s(const float* x, Importance importance, uint8_t* out) {
    const auto block = encode<16>(nearby(kIq2S, kIq2Values), x, importance, 0.125f, false);
    put_two(out, block.d);
    std::fill_n(out + 66, 8, uint8_t(0));
    for (int i = 0; i < 32; ++i) {
        out[2 + i] = uint8_t(block.ranks[i] & 255);
        out[34 + i] = block.signs[i];
        out[66 + i / 4] = uint8_t(out[66 + i / 4] | block.ranks[i] >> 8 << (2 * (i % 4)));
    }
    put_nibbles<16>(out + 74, block.levels);
}

void quantize_block_iq3xxs(const float* x, Importance importance, uint8_t* out) {
    const auto block = encode<8>(nearby(kIq3Xxs, kIq3XxsValues), x, importance, 0.25f, true);
    put_two(out, block.d);
    for (int i = 0; i < 64; ++i) out[2 + i] = uint8_t(block.ranks[i]);
    for (int g = 0; g < 8; ++g) put_group_word(out + 66 + 4 * g, block.signs + 4 * g, block.levels[g]);
}

void quantize_block_iq3s(const float* x, Importance importance, uint8_t* out) {
    const auto block = encode<8>(nearby(kIq3S, kIq3SValues), x, importance, 1, false);
    put_two(out, block.d);
    std::fill_n(out + 66, 8, uint8_t(0));
    for (int i = 0; i < 64; ++i) {
        out[2 + i] = uint8_t(block.ranks[i] & 255);
        out[66 + i / 8] = uint8_t(out[66 + i / 8] | block.ranks[i] >> 8 << (i % 8));
    }
    std::copy_n(block.signs, 32, out + 74);
    put_nibbles<8>(out + 106, block.levels);
}

namespace {

// Ternary points plus or minus an eighth: best scale of n numbers, with a sign per eight or one for all.
struct Shifted {
    Fit fit;
    uint32_t downs = 0;  // one bit per eight columns
};

using Ternary = Nearby<8, 3>;

Shifted search_shifted(const Ternary& book, const float* x, const float* weights, int n, bool one_sign) {
    float sum_w = 0, sum_xx = 0;
    for (int i = 0; i < n; ++i) sum_w += weights[i], sum_xx += weights[i] * x[i] * x[i];
    Shifted best;
    if (!(sum_xx > 0)) return best;
    // The three optimal levels of a normal distribution are at 0 and ±1.2 times its RMS; a point of value 8 stands for
    // the outer level.
    const float first = std::sqrt(sum_xx / sum_w) / 8 * 2.2f;
    const uint32_t all = (1u << (n / 8)) - 1;
    for (uint32_t downs = 0; downs <= all; downs += one_sign ? all : 1) {
        const auto shift = [downs](int i) { return (downs >> i & 1) != 0 ? -1.0f : 1.0f; };
        const Fit fit = search(book, x, weights, n, first, 0.93f, 16, shift);
        if (fit.gain > best.fit.gain) best = {fit, downs};
    }
    return best;
}

// Ranks of a group at its stored scale, and the signs of least error.
Shifted settle_shifted(const Ternary& book, const float* x, const float* weights, int n, float scale, bool one_sign) {
    Shifted best;
    float least = -1;
    const uint32_t all = (1u << (n / 8)) - 1;
    for (uint32_t downs = 0; downs <= all; downs += one_sign ? all : 1) {
        const auto shift = [downs](int i) { return (downs >> i & 1) != 0 ? -1.0f : 1.0f; };
        const Fit fit = fit_at(book, x, weights, n, scale, Ternary::kNear, shift);
        float error = 0;
        for (int i = 0; i < n; ++i) {
            const float off = x[i] - scale * (book.point(fit.ranks[i / 8])[i % 8] + shift(i / 8));
            error += weights[i] * off * off;
        }
        if (least < 0 || error < least) least = error, best = {fit, downs};
    }
    return best;
}

}  // namespace

void quantize_block_iq1s(const float* numbers, Importance importance, uint8_t* out) {
    const Ternary& book = nearby(kIq1, kIq1Values);
    const Unit block(numbers, importance);
    const float *x = block.x, *weights = block.weights;
    Fit fits[8];
    for (int g = 0; g < 8; ++g) fits[g] = search_shifted(book, x + 32 * g, weights + 32 * g, 32, true).fit;
    const auto [d, step] = odd_step(fits, 8, 7, 0.125f, block.top);
    put_two(out, d);
    for (int g = 0; g < 8; ++g) {
        const int level = odd_level(fits[g].scale, step, 7);
        const Shifted found = settle_shifted(book, x + 32 * g, weights + 32 * g, 32, step * float(2 * level + 1), true);
        uint32_t head = uint32_t(level) << 12 | (found.downs != 0 ? 1u : 0u) << 15;
        for (int i = 0; i < 4; ++i) {
            out[2 + 4 * g + i] = uint8_t(found.fit.ranks[i] & 255);
            head |= uint32_t(found.fit.ranks[i] >> 8) << (3 * i);
        }
        put_two(out + 34 + 2 * g, head);
    }
}

void quantize_block_iq1m(const float* numbers, Importance importance, uint8_t* out) {
    const Ternary& book = nearby(kIq1, kIq1Values);
    const Unit block(numbers, importance);
    const float *x = block.x, *weights = block.weights;
    Fit fits[16];
    for (int g = 0; g < 16; ++g) fits[g] = search_shifted(book, x + 16 * g, weights + 16 * g, 16, false).fit;
    const auto [d, step] = odd_step(fits, 16, 7, 0.125f, block.top);
    uint32_t heads[4];
    for (int i = 0; i < 4; ++i) heads[i] = uint32_t(d >> (4 * i) & 15) << 12;
    for (int g = 0; g < 16; ++g) {
        const int level = odd_level(fits[g].scale, step, 7);
        const Shifted found =
            settle_shifted(book, x + 16 * g, weights + 16 * g, 16, step * float(2 * level + 1), false);
        heads[g / 4] |= uint32_t(level) << (3 * (g % 4));
        int high = 0;
        for (int i = 0; i < 2; ++i) {
            out[2 * g + i] = uint8_t(found.fit.ranks[i] & 255);
            high |= (found.fit.ranks[i] >> 8 | int(found.downs >> i & 1) << 3) << (4 * i);
        }
        out[32 + g] = uint8_t(high);
    }
    for (int i = 0; i < 4; ++i) put_two(out + 48 + 2 * i, heads[i]);
}

}  // namespace woolly
