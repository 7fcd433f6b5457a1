// One row of any type as f32: what embedding lookups need. The NumPy dequantization is its oracle, bit for bit.
#include <cmath>
#include <cstring>

#include "quant/pack.h"

namespace woolly {

namespace {

float half(const uint8_t* p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    const uint32_t sign = uint32_t(h & 0x8000) << 16, magnitude = h & 0x7fff;
    uint32_t bits;
    if (magnitude >= 0x7c00) {
        bits = 0x7f800000 | ((magnitude & 0x3ff) << 13);
    } else if (magnitude >= 0x0400) {
        bits = (magnitude << 13) + 0x38000000;
    } else {
        const float f = float(magnitude) * 0x1p-24f;
        std::memcpy(&bits, &f, 4);
    }
    bits |= sign;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

int nibble(const uint8_t* q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }

void block_32(WeightType type, const uint8_t* p, float* y) {
    for (int i = 0; i < 32; ++i) {
        uint32_t fifth = 0;
        switch (type) {
            case WeightType::q4_0:
                y[i] = half(p) * float(nibble(p + 2, i) - 8);
                break;
            case WeightType::q4_1:
                y[i] = half(p) * float(nibble(p + 4, i)) + half(p + 2);
                break;
            case WeightType::q5_0:
                std::memcpy(&fifth, p + 2, 4);
                y[i] = half(p) * float((nibble(p + 6, i) | int(((fifth >> i) & 1) << 4)) - 16);
                break;
            case WeightType::q5_1:
                std::memcpy(&fifth, p + 4, 4);
                y[i] = half(p) * float(nibble(p + 8, i) | int(((fifth >> i) & 1) << 4)) + half(p + 2);
                break;
            case WeightType::q8_0:
                y[i] = half(p) * float(int8_t(p[2 + i]));
                break;
            case WeightType::iq4_nl:
                y[i] = half(p) * float(kIq4[nibble(p + 2, i)]);
                break;
            default:  // MXFP4
                y[i] = std::ldexp(1.0f, int(p[0]) - 128) * float(kMxfp4[nibble(p + 1, i)]);
        }
    }
}

// Scale and minimum of group g of Q4_K and Q5_K.
void scale_min(const uint8_t* p, int g, int* scale, int* minimum) {
    if (g < 4) {
        *scale = p[g] & 63, *minimum = p[g + 4] & 63;
    } else {
        *scale = (p[g + 4] & 15) | ((p[g - 4] >> 6) << 4);
        *minimum = (p[g + 4] >> 4) | ((p[g] >> 6) << 4);
    }
}

void block_q45k(bool fifth, const uint8_t* p, float* y) {
    const uint8_t* high = p + 16;
    const uint8_t* quants = fifth ? p + 48 : p + 16;
    for (int i = 0; i < 256; ++i) {
        const int g = i / 32, l = i % 32;
        int scale, minimum;
        scale_min(p + 4, g, &scale, &minimum);
        int q = (quants[32 * (g / 2) + l] >> (4 * (g % 2))) & 15;
        if (fifth) q |= ((high[l] >> g) & 1) << 4;
        y[i] = half(p) * float(scale) * float(q) - half(p + 2) * float(minimum);
    }
}

void block_q6k(const uint8_t* p, float* y) {
    for (int i = 0; i < 256; ++i) {
        const int h = i / 128, quarter = i % 128 / 32, l = i % 32;
        const int low = p[64 * h + l + 32 * (quarter % 2)] >> (4 * (quarter / 2)) & 15;
        const int high = (p[128 + 32 * h + l] >> (2 * quarter)) & 3;
        y[i] = half(p + 208) * float(int8_t(p[192 + i / 16])) * float((low | (high << 4)) - 32);
    }
}

void block_q2k(const uint8_t* p, float* y) {
    for (int i = 0; i < 256; ++i) {
        const int q = (p[16 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
        const int scale = p[i / 16];
        y[i] = half(p + 80) * float(scale & 15) * float(q) - half(p + 82) * float(scale >> 4);
    }
}

void block_q3k(const uint8_t* p, float* y) {
    for (int i = 0; i < 256; ++i) {
        const int s = i / 16, g = i / 32;
        const int low = s < 8 ? p[96 + s] & 15 : p[96 + s - 8] >> 4;
        const int scale = (low | (((p[104 + s % 4] >> (2 * (s / 4))) & 3) << 4)) - 32;
        const int q = (p[32 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
        const int high = (p[i % 32] >> g) & 1;
        y[i] = half(p + 108) * float(scale) * float(q - (high != 0 ? 0 : 4));
    }
}

void block_iq4xs(const uint8_t* p, float* y) {
    uint16_t high;
    std::memcpy(&high, p + 2, 2);
    for (int i = 0; i < 256; ++i) {
        const int g = i / 32;
        const int scale = (((p[4 + g / 2] >> (4 * (g % 2))) & 15) | (((high >> (2 * g)) & 3) << 4)) - 32;
        y[i] = half(p) * float(scale) * float(kIq4[nibble(p + 8 + 16 * g, i % 32)]);
    }
}

}  // namespace

void dequantize_row(int ggml_type, const uint8_t* source, int64_t columns, float* out) {
    const WeightType type = WeightType(ggml_type);
    const TypeInfo info = type_info(ggml_type);
    for (int64_t b = 0; b < columns / info.block; ++b, source += info.bytes, out += info.block) {
        switch (type) {
            case WeightType::f32:
                std::memcpy(out, source, 4);
                break;
            case WeightType::f16:
                *out = half(source);
                break;
            case WeightType::bf16: {
                uint16_t h;
                std::memcpy(&h, source, 2);
                const uint32_t bits = uint32_t(h) << 16;
                std::memcpy(out, &bits, 4);
                break;
            }
            case WeightType::q2_k:
                block_q2k(source, out);
                break;
            case WeightType::q3_k:
                block_q3k(source, out);
                break;
            case WeightType::q4_k:
                block_q45k(false, source, out);
                break;
            case WeightType::q5_k:
                block_q45k(true, source, out);
                break;
            case WeightType::q6_k:
                block_q6k(source, out);
                break;
            case WeightType::iq4_xs:
                block_iq4xs(source, out);
                break;
            default:
                block_32(type, source, out);
        }
    }
}

}  // namespace woolly
