#include "quant/pack.h"

#include <cstring>

namespace woolly {

namespace {

// One stretch of a block: `bytes` of each row from `at`, interleaved in pieces of `piece` bytes.
struct Stretch {
    int at, bytes, piece;
};

// What a packed block is made of, in order. Scales go value by value, quants in chunks of 4 columns.
struct Layout {
    Stretch stretches[5];
    int n;
};

Layout layout(WeightType type) {
    switch (type) {
        case WeightType::f32:
            return {{{0, 4, 4}}, 1};
        case WeightType::f16:
        case WeightType::bf16:
            return {{{0, 2, 2}}, 1};
        case WeightType::q4_0:
        case WeightType::iq4_nl:
            return {{{0, 2, 2}, {2, 16, 4}}, 2};
        case WeightType::q4_1:
            return {{{0, 2, 2}, {2, 2, 2}, {4, 16, 4}}, 3};
        case WeightType::q5_0:  // the bits in between are planes, made by pack_bit_planes
            return {{{0, 2, 2}, {2, 4, 4}, {6, 16, 4}}, 3};
        case WeightType::q5_1:
            return {{{0, 2, 2}, {2, 2, 2}, {4, 4, 4}, {8, 16, 4}}, 4};
        case WeightType::q8_0:
            return {{{0, 2, 2}, {2, 32, 4}}, 2};
        case WeightType::mxfp4:
            return {{{0, 1, 1}, {1, 16, 4}}, 2};
        case WeightType::q2_k:
            return {{{80, 2, 2}, {82, 2, 2}, {0, 16, 1}, {16, 64, 4}}, 4};
        case WeightType::q3_k:
            return {{{108, 2, 2}, {96, 12, 1}, {0, 32, 4}, {32, 64, 4}}, 4};
        case WeightType::q4_k:
            return {{{0, 2, 2}, {2, 2, 2}, {4, 12, 1}, {16, 128, 4}}, 4};
        case WeightType::q5_k:
            return {{{0, 2, 2}, {2, 2, 2}, {4, 12, 1}, {16, 32, 4}, {48, 128, 4}}, 5};
        case WeightType::q6_k:
            return {{{208, 2, 2}, {192, 16, 1}, {128, 64, 4}, {0, 128, 4}}, 4};
        case WeightType::iq4_xs:
            return {{{0, 2, 2}, {2, 2, 2}, {4, 4, 1}, {8, 128, 4}}, 4};
    }
    return {{}, 0};
}

template <int piece>
void interleave(const uint8_t* const* rows, int at, int bytes, uint8_t* out) {
    for (int i = 0; i < bytes; i += piece)
        for (int r = 0; r < kPanel; ++r, out += piece) std::memcpy(out, rows[r] + at + i, piece);
}

// Fifth bits: byte 4 * row + j holds, in bit v, the bit of column 4 * v + j. In the file bit c of a word is column c.
void pack_bit_planes(uint8_t* plane) {
    uint8_t packed[64];
    for (int r = 0; r < kPanel; ++r) {
        uint32_t bits;
        std::memcpy(&bits, plane + 4 * r, 4);
        for (int j = 0; j < 4; ++j) {
            unsigned byte = 0;
            for (int v = 0; v < 8; ++v) byte |= ((bits >> (4 * v + j)) & 1u) << v;
            packed[4 * r + j] = uint8_t(byte);
        }
    }
    std::memcpy(plane, packed, 64);
}

}  // namespace

void pack_panel(int ggml_type, const uint8_t* source, size_t stride, int n_rows, int64_t columns, uint8_t* panel) {
    static const uint8_t zeros[256] = {};
    const WeightType type = WeightType(ggml_type);
    const TypeInfo info = type_info(ggml_type);
    const Layout parts = layout(type);
    for (int64_t b = 0; b < columns / info.block; ++b) {
        const uint8_t* rows[kPanel];
        for (int r = 0; r < kPanel; ++r) rows[r] = r < n_rows ? source + size_t(r) * stride + b * info.bytes : zeros;
        uint8_t* out = panel;
        for (int i = 0; i < parts.n; ++i) {
            const Stretch s = parts.stretches[i];
            switch (s.piece) {
                case 1:
                    interleave<1>(rows, s.at, s.bytes, out);
                    break;
                case 2:
                    interleave<2>(rows, s.at, s.bytes, out);
                    break;
                default:
                    interleave<4>(rows, s.at, s.bytes, out);
            }
            out += s.bytes * kPanel;
        }
        if (type == WeightType::q5_0) pack_bit_planes(panel + 32);
        if (type == WeightType::q5_1) pack_bit_planes(panel + 64);
        panel += info.bytes * kPanel;
    }
}

}  // namespace woolly
