// K-quants: blocks of 256 columns; group scales are integer multiples of one float16.
#include <algorithm>

#include "quant/encode.h"
#include "quant/encode_f16.h"
#include "quant/encode_search.h"

namespace woolly {

namespace {

void put_half(uint8_t* out, uint16_t half) { std::memcpy(out, &half, 2); }

// Returns largest / most as float16, such that `most` steps reach the largest value. The nearest subnormal float16 may
// be too small by more than half a step, or 0; rounding up then has a smaller error.
uint16_t step_of(float largest, float most) {
    const uint16_t half = float_to_half(largest / most);
    const float reach = (std::fabs(most) + 0.5f) * std::fabs(half_to_float(half));
    if (std::fabs(largest) <= std::max(reach, 0x1p-25f)) return half;
    return uint16_t((half & 0x7fffu) == 0 ? (std::signbit(largest / most) ? 0x8001u : 0x0001u) : half + 1u);
}

uint8_t whole(float value, float step, float least, float most) {
    const float ratio = step != 0 ? value / step : 0;
    return uint8_t(int(nearest(std::min(std::max(ratio, least), most))));
}

// Levels of one group for its stored scale and offset.
template <int N>
void levels_affine(const float* x, float scale, float offset, float top, uint8_t* levels) {
    for (int i = 0; i < N; ++i) levels[i] = whole(x[i] + offset, scale, 0, top);
}

template <int N>
void levels_symmetric(const float* x, float scale, float half, uint8_t* levels) {
    for (int i = 0; i < N; ++i) levels[i] = uint8_t(int(int8_t(whole(x[i], scale, -half, half - 1))) + int(half));
}

// Large numbers weigh more, as they do in a dot product.
template <int N>
void weigh(const float* x, float* weights) {
    float sum = 0;
    for (int i = 0; i < N; ++i) sum += x[i] * x[i];
    const float mean = std::sqrt(sum / float(N));
    for (int i = 0; i < N; ++i) weights[i] = mean + std::fabs(x[i]);
}

// Scale and offset of each group of a block, and their encoding in integer steps of at most `top`.
template <int N>
struct Lines {
    Affine of[N];
    float weights[N];  // of each group in the choice of the steps
    float scales[N], offsets[N];

    void set(int g, Affine line, const float* w, int n) {
        of[g] = line, scales[g] = line.scale, offsets[g] = line.offset, weights[g] = 0;
        for (int i = 0; i < n; ++i) weights[g] += w[i];
    }
    // With importance, the steps of least error; else those that reach the maximum.
    uint16_t scale_step(float top, bool is_weighted) const { return step(scales, top, is_weighted); }
    uint16_t offset_step(float top, bool is_weighted) const { return step(offsets, top, is_weighted); }

  private:
    uint16_t step(const float* values, float top, bool is_weighted) const {
        const float most = std::max(0.0f, *std::max_element(values, values + N));
        const uint16_t reaching = step_of(most, top);
        if (!is_weighted || most < 0x1p-10f) return reaching;  // steps of subnormal float16 cannot be refined
        return float_to_half(fit_positive<N>(values, weights, top));
    }
};

// Eight groups of 32 with 6-bit scales and minimums: the header of Q4_K and Q5_K (16 bytes), and the levels.
void quantize_q45k(const float* x, Importance importance, float top, float first, int n_steps, uint8_t* out,
                   uint8_t* levels) {
    Lines<8> fits;
    const float* columns = importance.columns;
    const float mean_square = 2 * mean_square_of<256>(x);
    for (int g = 0; g < 8; ++g) {
        float weights[32];
        if (columns == nullptr) {
            weigh<32>(x + 32 * g, weights);
            fits.set(g, fit_affine<32>(x + 32 * g, weights, top, first, n_steps), weights, 32);
        } else {
            weigh_columns<32>(x + 32 * g, columns + 32 * g, mean_square, weights);
            fits.set(g, fit_affine<32>(x + 32 * g, weights, top, -0.9f, 36, 0.05f), weights, 32);
        }
    }
    const uint16_t d = fits.scale_step(63, columns != nullptr), dmin = fits.offset_step(63, columns != nullptr);
    const float step = half_to_float(d), step_min = half_to_float(dmin);
    put_half(out, d);
    put_half(out + 2, dmin);
    uint8_t* packed = out + 4;
    std::fill_n(packed, 12, uint8_t(0));
    for (int g = 0; g < 8; ++g) {
        // Relative to the stored float16 steps, so that rounding errors do not add up.
        const uint8_t scale = whole(fits.scales[g], step, 0, 63), offset = whole(fits.offsets[g], step_min, 0, 63);
        levels_affine<32>(x + 32 * g, step * float(scale), step_min * float(offset), top, levels + 32 * g);
        if (g < 4) {
            packed[g] = scale;
            packed[g + 4] = offset;
        } else {
            packed[g + 4] = uint8_t((scale & 15) | (offset << 4));
            packed[g - 4] = uint8_t(packed[g - 4] | (scale >> 4 << 6));
            packed[g] = uint8_t(packed[g] | (offset >> 4 << 6));
        }
    }
}

// Low nibbles of 32 columns and high nibbles of the next 32, four times.
void pack_nibble_groups(const uint8_t* levels, uint8_t* out) {
    for (int pair = 0; pair < 4; ++pair) {
        for (int i = 0; i < 32; ++i) {
            out[32 * pair + i] = uint8_t((levels[64 * pair + i] & 15) | (levels[64 * pair + 32 + i] << 4));
        }
    }
}

// Two bits of each of 256 levels: column i of 128 shares its byte with i + 32, i + 64 and i + 96.
void pack_pairs(const uint8_t* levels, uint8_t* out) {
    for (int h = 0; h < 2; ++h) {
        const uint8_t* l = levels + 128 * h;
        for (int i = 0; i < 32; ++i) {
            out[32 * h + i] = uint8_t((l[i] & 3) | (l[i + 32] & 3) << 2 | (l[i + 64] & 3) << 4 | (l[i + 96] & 3) << 6);
        }
    }
}

}  // namespace

void quantize_block_q2k(const float* x, Importance importance, uint8_t* out) {
    Lines<16> fits;
    const float* columns = importance.columns;
    const float mean_square = mean_square_of<256>(x);
    for (int g = 0; g < 16; ++g) {
        float weights[16];
        if (columns == nullptr) {
            for (int i = 0; i < 16; ++i) weights[i] = std::fabs(x[16 * g + i]);
            fits.set(g, fit_affine<16>(x + 16 * g, weights, 3, -0.5f, 16), weights, 16);
        } else {
            weigh_columns<16>(x + 16 * g, columns + 16 * g, mean_square, weights);
            fits.set(g, fit_affine<16>(x + 16 * g, weights, 3, -0.9f, 36, 0.05f), weights, 16);
        }
    }
    const uint16_t d = fits.scale_step(15, columns != nullptr), dmin = fits.offset_step(15, columns != nullptr);
    const float step = half_to_float(d), step_min = half_to_float(dmin);
    uint8_t levels[256];
    for (int g = 0; g < 16; ++g) {
        const uint8_t scale = whole(fits.scales[g], step, 0, 15), offset = whole(fits.offsets[g], step_min, 0, 15);
        out[g] = uint8_t(scale | (offset << 4));
        levels_affine<16>(x + 16 * g, step * float(scale), step_min * float(offset), 3, levels + 16 * g);
    }
    pack_pairs(levels, out + 16);
    put_half(out + 80, d);
    put_half(out + 82, dmin);
}

void quantize_block_q3k(const float* x, Importance importance, uint8_t* out) {
    float scales[16], sums[16];
    const float* columns = importance.columns;
    const float mean_square = 2 * mean_square_of<256>(x);
    for (int g = 0; g < 16; ++g) {
        float weights[16];
        if (columns != nullptr) weigh_columns<16>(x + 16 * g, columns + 16 * g, mean_square, weights);
        // With importance, 19 scales beat moving single levels: 2 % less error.
        scales[g] = columns != nullptr ? fit_symmetric<16>(x + 16 * g, 4, weights) : fit_few<16>(x + 16 * g, 4);
        sums[g] = 0;
        for (int i = 0; columns != nullptr && i < 16; ++i) sums[g] += weights[i];
    }
    const float most = largest<16>(scales);
    uint16_t d = step_of(most, -32);
    if (columns != nullptr && std::fabs(most) >= 0x1p-10f) d = float_to_half(fit_symmetric<16>(scales, 32, sums));
    const float step = half_to_float(d);
    uint8_t levels[256];
    uint8_t* packed = out + 96;
    std::fill_n(packed, 12, uint8_t(0));
    for (int g = 0; g < 16; ++g) {
        const int scale = int8_t(whole(scales[g], step, -32, 31));
        levels_symmetric<16>(x + 16 * g, step * float(scale), 4, levels + 16 * g);
        const int stored = scale + 32;
        packed[g % 8] = uint8_t(packed[g % 8] | ((stored & 15) << (4 * (g / 8))));
        packed[8 + g % 4] = uint8_t(packed[8 + g % 4] | ((stored >> 4) << (2 * (g / 4))));
    }
    for (int i = 0; i < 32; ++i) {
        int high = 0;
        for (int g = 0; g < 8; ++g) high |= (levels[32 * g + i] >> 2) << g;
        out[i] = uint8_t(high);
    }
    pack_pairs(levels, out + 32);
    put_half(out + 108, d);
}

void quantize_block_q4k(const float* x, Importance importance, uint8_t* out) {
    uint8_t levels[256];
    quantize_q45k(x, importance, 15, -1, 21, out, levels);
    pack_nibble_groups(levels, out + 16);
}

void quantize_block_q5k(const float* x, Importance importance, uint8_t* out) {
    uint8_t levels[256];
    quantize_q45k(x, importance, 31, -0.5f, 16, out, levels);
    for (int i = 0; i < 32; ++i) {
        int high = 0;
        for (int g = 0; g < 8; ++g) high |= (levels[32 * g + i] >> 4) << g;
        out[16 + i] = uint8_t(high);
    }
    pack_nibble_groups(levels, out + 48);
}

void quantize_block_q6k(const float* x, Importance importance, uint8_t* out) {
    float scales[16];
    const float* columns = importance.columns;
    for (int g = 0; g < 16; ++g)
        scales[g] = fit_symmetric<16>(x + 16 * g, 32, columns != nullptr ? columns + 16 * g : nullptr);
    const uint16_t d = step_of(largest<16>(scales), -128);
    const float step = half_to_float(d);
    uint8_t levels[256];
    for (int g = 0; g < 16; ++g) {
        out[192 + g] = whole(scales[g], step, -128, 127);
        levels_symmetric<16>(x + 16 * g, step * float(int8_t(out[192 + g])), 32, levels + 16 * g);
    }
    for (int h = 0; h < 2; ++h) {
        const uint8_t* l = levels + 128 * h;
        for (int i = 0; i < 64; ++i) out[64 * h + i] = uint8_t((l[i] & 15) | (l[i + 64] << 4));
    }
    uint8_t high[256];
    for (int i = 0; i < 256; ++i) high[i] = levels[i] >> 4;
    pack_pairs(high, out + 128);
    put_half(out + 208, d);
}

}  // namespace woolly
