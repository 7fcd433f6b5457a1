// IQ4_NL and IQ4_XS: four-bit codes of 16 values that are denser around zero.
#include <algorithm>

#include "quant/blocks32.h"
#include "quant/encode.h"
#include "quant/encode_f16.h"
#include "quant/encode_search.h"

namespace woolly {

namespace {

struct Values {
    float of[16];
};
constexpr Values kFloats = [] {
    Values values{};
    for (int i = 0; i < 16; ++i) values.of[i] = float(kIq4Values[i]);
    return values;
}();
constexpr const float* kValues = kFloats.of;
constexpr int kReach = 256;  // the table covers -128 to 128 in steps of 0.5: bounds between values are multiples of 0.5

struct Nearest {
    uint8_t index[2 * kReach + 1];
};

constexpr Nearest kNearest = [] {
    Nearest table{};
    for (int i = 0; i <= 2 * kReach; ++i) {
        int index = 0;
        while (index < 15 && float(i - kReach) >= kValues[index] + kValues[index + 1]) ++index;
        table.index[i] = uint8_t(index);
    }
    return table;
}();

// With this argument order a NaN (whose row is rejected later) maps to the lowest value.
int nearest_index(float scaled) {
    return kNearest.index[int(std::min(std::max(-float(kReach), 2 * scaled), float(kReach)) + float(kReach))];
}

// Scale of 32 numbers, weighted by w (null: by their squares): the best of 15.
float fit_values(const float* x, const float* w) {
    const float top = largest<32>(x);
    if (std::fabs(top) < 1e-15f) return 0;
    float unit[32], weights[32];
    for (int i = 0; i < 32; ++i) unit[i] = x[i] / top, weights[i] = w != nullptr ? w[i] : unit[i] * unit[i];
    float best = 0, best_gain = 0;
    for (int step = -8; step <= 7; ++step) {
        // One attempt with the maximum at 127 instead of -127, then those around -127.
        const float inverse = step == -8 ? -kValues[0] : kValues[0] + float(step);
        float sum_xv = 0, sum_vv = 0;
        for (int i = 0; i < 32; ++i) {
            const float value = kValues[nearest_index(unit[i] * inverse)];
            sum_xv += weights[i] * unit[i] * value, sum_vv += weights[i] * value * value;
        }
        if (sum_vv > 0 && sum_xv * sum_xv > best_gain * sum_vv) {
            best = sum_xv / sum_vv;
            best_gain = sum_xv * best;
        }
    }
    return best * top;
}

void pack_32(const float* x, float scale, uint8_t* out) {
    uint8_t index[32];
    for (int i = 0; i < 32; ++i) index[i] = uint8_t(nearest_index(scale != 0 ? x[i] / scale : 0));
    for (int i = 0; i < 16; ++i) out[i] = uint8_t(index[i] | (index[i + 16] << 4));
}

}  // namespace

void quantize_block_iq4nl(const float* x, Importance importance, uint8_t* out) {
    float weights[32];
    if (importance.columns != nullptr) weigh_columns<32>(x, importance.columns, importance.mean_square, weights);
    const uint16_t d = float_to_half(fit_values(x, importance.columns != nullptr ? weights : nullptr));
    std::memcpy(out, &d, 2);
    pack_32(x, half_to_float(d), out + 2);
}

void quantize_block_iq4xs(const float* x, Importance importance, uint8_t* out) {
    float scales[8], weights[32];
    const float* columns = importance.columns;
    const float mean_square = 2 * mean_square_of<256>(x);
    for (int g = 0; g < 8; ++g) {
        if (columns != nullptr) weigh_columns<32>(x + 32 * g, columns + 32 * g, mean_square, weights);
        scales[g] = fit_values(x + 32 * g, columns != nullptr ? weights : nullptr);
    }
    const uint16_t d = float_to_half(largest<8>(scales) / -32);
    const float step = half_to_float(d);
    uint16_t high = 0;
    std::fill_n(out, 8, uint8_t(0));
    for (int g = 0; g < 8; ++g) {
        const float ratio = step != 0 ? scales[g] / step : 0;
        const int scale = int(nearest(std::min(std::max(-32.0f, ratio), 31.0f)));
        pack_32(x + 32 * g, step * float(scale), out + 8 + 16 * g);
        const int stored = scale + 32;
        out[4 + g / 2] = uint8_t(out[4 + g / 2] | ((stored & 15) << (4 * (g % 2))));
        high = uint16_t(high | ((stored >> 4) << (2 * g)));
    }
    std::memcpy(out, &d, 2);
    std::memcpy(out + 2, &high, 2);
}

}  // namespace woolly
