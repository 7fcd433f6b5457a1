// Ternary blocks and E2M1 blocks (MXFP4, NVFP4): one scale, and each number rounded to the nearest value.
#include <algorithm>

#include "quant/encode.h"
#include "quant/encode_f16.h"
#include "quant/encode_search.h"
#include "quant/k_quants.h"

namespace woolly {

namespace {

// -1, 0 or 1, plus 1, for each of 256 columns, with the maximum magnitude as the scale: exact for ternary models.
uint16_t ternary(const float* x, uint8_t* levels) {
    const uint16_t d = float_to_half(std::fabs(largest<256>(x)));
    const float top = half_to_float(d);
    for (int i = 0; i < 256; ++i) {
        const float ratio = top > 0 ? x[i] / top : 0;
        levels[i] = uint8_t(1 + (ratio >= 0.5f ? 1 : ratio <= -0.5f ? -1 : 0));
    }
    return d;
}

// `n_digits` base-3 digits as a fraction of 256, rounded up so that decoding returns the same digits.
uint8_t fraction_of(const uint8_t* levels, int stride, int n_digits) {
    int number = 0;
    for (int i = 0; i < 5; ++i) number = 3 * number + (i < n_digits ? levels[stride * i] : 0);
    return uint8_t((number * 256 + 242) / 243);
}

int nearest_e2m1(float scaled) {
    // Twice the values 0, 0.5, 1, 1.5, 2, 3, 4 and 6; bounds are the midpoints.
    constexpr float bounds[7] = {0.5f, 1.5f, 2.5f, 3.5f, 5, 7, 10};
    const float magnitude = std::fabs(scaled);
    int index = 0;
    for (const float bound : bounds) index += magnitude > bound;
    return scaled < 0 ? index | 8 : index;
}

// Weighted error of `n` numbers at a scale, in units of the maximum; writes their codes if `codes` is not null.
float e2m1_error(const float* x, const float* columns, int n, float most, float scale, uint8_t* codes) {
    float error = 0;
    for (int i = 0; i < n; ++i) {
        const int code = nearest_e2m1(scale > 0 ? x[i] / scale : 0);
        if (codes != nullptr) codes[i] = uint8_t(code);
        const float off = most > 0 ? (x[i] - scale * float(kMxfp4Values[code])) / most : 0;
        error += (columns != nullptr ? columns[i] : 1) * off * off;
    }
    return error;
}

// Code of least error from `first` to `last`, with scales from `scale_of`.
template <class ScaleOf>
int best_scale(const float* x, const float* columns, int n, float most, int first, int last, ScaleOf scale_of) {
    int best = first;
    float least = e2m1_error(x, columns, n, most, scale_of(first), nullptr);
    for (int code = first + 1; code <= last; ++code) {
        const float error = e2m1_error(x, columns, n, most, scale_of(code), nullptr);
        if (error < least) least = error, best = code;
    }
    return best;
}

}  // namespace

void quantize_block_tq1(const float* x, Importance, uint8_t* out) {
    uint8_t levels[256];
    const uint16_t d = ternary(x, levels);
    for (int i = 0; i < 32; ++i) out[i] = fraction_of(levels + i, 32, 5);
    for (int i = 0; i < 16; ++i) out[32 + i] = fraction_of(levels + 160 + i, 16, 5);
    for (int i = 0; i < 4; ++i) out[48 + i] = fraction_of(levels + 240 + i, 4, 4);
    std::memcpy(out + 52, &d, 2);
}

void quantize_block_tq2(const float* x, Importance, uint8_t* out) {
    uint8_t levels[256];
    const uint16_t d = ternary(x, levels);
    for (int h = 0; h < 2; ++h) {
        const uint8_t* l = levels + 128 * h;
        for (int i = 0; i < 32; ++i) out[32 * h + i] = uint8_t(l[i] | l[i + 32] << 2 | l[i + 64] << 4 | l[i + 96] << 6);
    }
    std::memcpy(out + 64, &d, 2);
}

void quantize_block_mxfp4(const float* x, Importance importance, uint8_t* out) {
    const float most = std::fabs(largest<32>(x));
    int exponent = 0;
    if (most > 0) {
        // 2^(e - 127) * 4 is the largest power of two in the block, which leaves the values 4 and 6 for it.
        const int usual = std::ilogb(most) - 2 + 127;
        const auto scale_of = [](int e) { return BlockMXFP4::scale(e); };
        exponent = best_scale(x, importance.columns, 32, most, std::clamp(usual - 1, 0, 254),
                              std::clamp(usual + 1, 0, 254), scale_of);
    }
    uint8_t codes[32];
    e2m1_error(x, nullptr, 32, most, BlockMXFP4::scale(exponent), codes);
    out[0] = uint8_t(exponent);
    for (int i = 0; i < 16; ++i) out[1 + i] = uint8_t(codes[i] | codes[i + 16] << 4);
}

void quantize_block_nvfp4(const float* x, Importance importance, uint8_t* out) {
    const auto scale_of = [](int code) { return float_of(kUe4m3.halves[code]); };
    for (int g = 0; g < 4; ++g) {
        const float* group = x + 16 * g;
        const float most = std::fabs(largest<16>(group));
        int code = 0;
        while (code < 126 && 12 * scale_of(code) < most) ++code;
        // More than half a step above the maximum scale: encoded as NaN.
        if (most > 14 * scale_of(126)) {
            out[g] = 127;
            std::fill_n(out + 4 + 8 * g, 8, uint8_t(0));
            continue;
        }
        const float* columns = importance.columns != nullptr ? importance.columns + 16 * g : nullptr;
        code = best_scale(group, columns, 16, most, std::max(code - 6, 0), std::min(code + 4, 126), scale_of);
        uint8_t codes[16];
        e2m1_error(group, nullptr, 16, most, scale_of(code), codes);
        out[g] = uint8_t(code);
        for (int i = 0; i < 8; ++i) out[4 + 8 * g + i] = uint8_t(codes[i] | codes[i + 8] << 4);
    }
}

}  // namespace woolly
