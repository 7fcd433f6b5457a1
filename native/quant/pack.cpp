#include "quant/pack.h"

#include <cstring>

#include "quant/fields.h"

namespace woolly {

namespace {

// One stretch of a block: `bytes` of each row from `at`, interleaved in pieces of `piece` bytes.
struct Stretch {
    int at, bytes, piece;
};

// What a packed block is made of, in order. Float scales go value by value, all else in chunks of 4 bytes. Quants of
// odd widths follow as fields.
struct Layout {
    Stretch stretches[4];
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
        case WeightType::q5_0:
            return {{{0, 2, 2}}, 1};
        case WeightType::q5_1:
            return {{{0, 2, 2}, {2, 2, 2}}, 2};
        case WeightType::q8_0:
            return {{{0, 2, 2}, {2, 32, 4}}, 2};
        case WeightType::mxfp4:
            return {{{0, 1, 1}, {1, 16, 4}}, 2};
        case WeightType::q2_k:
            return {{{80, 2, 2}, {82, 2, 2}, {0, 16, 4}}, 3};
        case WeightType::q3_k:
            return {{{108, 2, 2}, {96, 12, 4}}, 2};
        case WeightType::q4_k:
            return {{{0, 2, 2}, {2, 2, 2}, {4, 12, 4}, {16, 128, 4}}, 4};
        case WeightType::q5_k:
            return {{{0, 2, 2}, {2, 2, 2}, {4, 12, 4}}, 3};
        case WeightType::q6_k:
            return {{{208, 2, 2}, {192, 16, 4}}, 2};
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

uint32_t word(const uint8_t* p) {
    uint32_t w;
    std::memcpy(&w, p, 4);
    return w;
}

// Four bits in a row -> the lowest bit of four bytes.
uint32_t spread(uint32_t four) { return ((four & 15) * 0x00204081u) & 0x01010101u; }

// Quants of `unit` columns from column unit * u on, one byte each, in the file's own ways of hiding them in a block.
void quants(WeightType type, const uint8_t* block, int u, uint32_t* w) {
    switch (type) {
        case WeightType::q5_0:
        case WeightType::q5_1: {
            const uint8_t* p = block + (type == WeightType::q5_0 ? 2 : 4);
            const uint32_t fifth = word(p);
            for (int v = 0; v < 8; ++v)
                w[v] = bits(word(p + 4 + 4 * (v % 4)), 4 * (v / 4), 4) | spread(fifth >> (4 * v)) << 4;
            return;
        }
        case WeightType::q2_k: {
            const uint8_t* p = block + 16 + 32 * (u / 8) + 16 * (u % 2);
            for (int v = 0; v < 4; ++v) w[v] = bits(word(p + 4 * v), 2 * (u / 2 % 4), 2);
            return;
        }
        case WeightType::q3_k:
            for (int v = 0; v < 8; ++v)
                w[v] = bits(word(block + 32 + 32 * (u / 4) + 4 * v), 2 * (u % 4), 2) | bits(word(block + 4 * v), u, 1)
                                                                                           << 2;
            return;
        case WeightType::q5_k:
            for (int v = 0; v < 8; ++v)
                w[v] = bits(word(block + 48 + 32 * (u / 2) + 4 * v), 4 * (u % 2), 4) |
                       bits(word(block + 16 + 4 * v), u, 1) << 4;
            return;
        default: {  // q6_k: halves of 128 columns in quarters of 32
            const int half = u / 8, quarter = u % 8 / 2, part = 16 * (u % 2);
            const uint8_t* low = block + 64 * half + 32 * (quarter % 2) + part;
            const uint8_t* high = block + 128 + 32 * half + part;
            for (int v = 0; v < 4; ++v)
                w[v] = bits(word(low + 4 * v), 4 * (quarter / 2), 4) | bits(word(high + 4 * v), 2 * quarter, 2) << 4;
        }
    }
}

// How a type's fields are laid over vectors: units of so many columns, so many vectors each.
struct Fields {
    int unit, vectors;
    void (*put)(const uint32_t* w, uint32_t* out);
};

Fields fields(WeightType type) {
    switch (type) {
        case WeightType::q2_k:
            return {16, 1, two_bits};
        case WeightType::q3_k:
            return {32, 3, three_bits};
        case WeightType::q5_0:
        case WeightType::q5_1:
        case WeightType::q5_k:
            return {32, 5, five_bits};
        case WeightType::q6_k:
            return {16, 3, six_bits};
        default:
            return {0, 0, nullptr};
    }
}

// Quants of Q4_K: groups of 32 columns in 4 vectors; in vector i lanes 0 to 7 are columns 8i to 8i + 3 of rows 0 to 7
// and 8 to 15, lanes 8 to 15 the next four columns.
void pack_pairs(const uint8_t* const* rows, uint8_t* out) {
    for (int g = 0; g < 8; ++g)
        for (int i = 0; i < 4; ++i)
            for (int lane = 0; lane < kPanel; ++lane, out += 4) {
                const int at = 16 + 32 * (g / 2) + 8 * i + 4 * (lane / 8), shift = 4 * (g % 2);
                const uint32_t low = bits(word(rows[lane % 8] + at), shift, 4);
                const uint32_t high = bits(word(rows[lane % 8 + 8] + at), shift, 4) ^ 0x08080808u;
                const uint32_t both = low | high << 4;
                std::memcpy(out, &both, 4);
            }
}

void pack_fields(WeightType type, const Fields& f, const uint8_t* const* rows, int block, uint8_t* out) {
    for (int u = 0; u < block / f.unit; ++u, out += 64 * f.vectors) {
        for (int r = 0; r < kPanel; ++r) {
            uint32_t values[8], packed[5];
            quants(type, rows[r], u, values);
            f.put(values, packed);
            for (int v = 0; v < f.vectors; ++v) std::memcpy(out + 64 * v + 4 * r, &packed[v], 4);
        }
    }
}

}  // namespace

void pack_panel(int ggml_type, const uint8_t* source, size_t stride, int n_rows, int64_t columns, bool pairs,
                uint8_t* panel) {
    static const uint8_t zeros[256] = {};
    const WeightType type = WeightType(ggml_type);
    const TypeInfo info = type_info(ggml_type);
    Layout parts = layout(type);
    pairs = pairs && type == WeightType::q4_k;
    if (pairs) --parts.n;
    const Fields f = fields(type);
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
        if (f.unit != 0) pack_fields(type, f, rows, info.block, out);
        if (pairs) pack_pairs(rows, out);
        panel += info.bytes * kPanel;
    }
}

bool finite_halves(const uint8_t* panel, size_t bytes) {
    uint16_t broken = 0;
    for (size_t i = 0; i < bytes; i += 2) {
        uint16_t half;
        std::memcpy(&half, panel + i, 2);
        broken |= uint16_t((half & 0x7c00) == 0x7c00);
    }
    return broken == 0;
}

}  // namespace woolly
