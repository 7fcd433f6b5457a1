// Opened panels against the dots of one row, bit for bit: every type of a level, random weights, columns and row
// counts. Built with -DTEST_TABLE=k_LEVEL_table and linked with that level's target (CONTRIBUTING.md has the commands).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/table.h"
#include "quant/types.h"

namespace woolly {
extern const KernelTable TEST_TABLE;
}

namespace {

using namespace woolly;

std::mt19937 engine(1);
int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); }

// Any bytes are weights; only the float scales in front of a block must be numbers.
std::vector<uint8_t> random_panel(int type, TypeInfo info, int64_t columns) {
    std::vector<uint8_t> panel(panel_bytes(info, columns));
    for (uint8_t& byte : panel) byte = uint8_t(between(0, 255));
    const WeightType t = WeightType(type);
    if (t == WeightType::f32)
        for (size_t i = 0; i < panel.size(); i += 4) {
            const float value = float(between(-1000, 1000)) * 0.001f;
            std::memcpy(&panel[i], &value, 4);
        }
    if (t == WeightType::f16 || t == WeightType::bf16)
        for (size_t i = 0; i < panel.size(); i += 2) {
            const uint16_t half = uint16_t(between(0x2000, 0x3f80) | (between(0, 1) << 15));
            std::memcpy(&panel[i], &half, 2);
        }
    if (info.activation == Activation::f32) return panel;
    const bool minimum = t == WeightType::q4_1 || t == WeightType::q5_1 || t == WeightType::q2_k ||
                         t == WeightType::q4_k || t == WeightType::q5_k;
    for (int64_t b = 0; b < columns / info.block; ++b) {
        uint8_t* block = panel.data() + b * info.bytes * kPanel;
        if (t == WeightType::mxfp4)
            for (int i = 0; i < 16; ++i) block[i] = uint8_t(between(100, 140));
        else
            for (int i = 0; i < (minimum ? 32 : 16); ++i) {
                const uint16_t half = uint16_t(between(0x1000, 0x3c00) | (between(0, 1) << 15));
                std::memcpy(block + 2 * i, &half, 2);
            }
    }
    return panel;
}

// Rows at equal distances, quantized or not.
struct Rows {
    std::vector<uint8_t> memory;
    std::vector<ActivationRow> rows;

    Rows(const KernelTable& kernels, Activation kind, int64_t columns, int n) : rows(size_t(n)) {
        const size_t c = size_t(columns), stride = c * 8 + 64;
        memory.resize(stride * size_t(n));
        std::vector<float> x(c);
        for (int i = 0; i < n; ++i) {
            for (float& value : x) value = float(between(-1000, 1000)) * 0.01f;
            if (between(0, 9) == 0) std::fill_n(x.begin(), std::min<size_t>(c, 32), 0.0f);
            uint8_t* at = memory.data() + stride * size_t(i);
            if (kind == Activation::f32) {
                // Also very large and very small ones, and those that are said to be ordinary.
                constexpr float factors[] = {1.0f, 1.0f, 0x1p30f, 0x1p-70f, 0x1p-112f, 0x1p-140f};
                const int which = between(0, 5);
                for (float& value : x)
                    if (which < 2 || between(0, 3) == 0) value *= factors[which];
                std::memcpy(at, x.data(), c * 4);
                const float* values = reinterpret_cast<const float*>(at);
                rows[size_t(i)] = {values, nullptr, nullptr, nullptr, nullptr, nullptr, which < 2};
                continue;
            }
            int8_t* q = reinterpret_cast<int8_t*>(at);
            float* scale = reinterpret_cast<float*>(at + c);
            int32_t* sums = reinterpret_cast<int32_t*>(at + 2 * c);
            float* lows = reinterpret_cast<float*>(at + 4 * c);
            int8_t* planes = reinterpret_cast<int8_t*>(at + 6 * c);
            const bool per_32 = kind == Activation::q8_32;
            (per_32 ? kernels.quantize_32 : kernels.quantize_256)(x.data(), columns, q, scale, sums);
            if (per_32) {
                for (size_t b = 0; b < c / 32; ++b) lows[b] = scale[b] * float(sums[b]);
            } else {
                kernels.planes(sums, columns, planes);
            }
            rows[size_t(i)] = {nullptr, q, scale, sums, lows, planes, false};
        }
    }
};

bool same(const KernelTable& kernels, int type, int64_t columns, int n) {
    const TypeInfo info = type_info(type);
    const Wide& wide = kernels.wide[type];
    const std::vector<uint8_t> panel = random_panel(type, info, columns);
    const Rows rows(kernels, info.activation, columns, n);
    std::vector<float> one(size_t(n) * kPanel), many(size_t(n) * kPanel, 0.0f);
    for (int i = 0; i < n; ++i)
        kernels.dot[type](panel.data(), columns, &rows.rows[size_t(i)], 1, &one[size_t(i) * 16]);
    uint8_t* open = static_cast<uint8_t*>(
        std::aligned_alloc(64, (size_t(kWideColumns / wide.block * wide.open_bytes) + 63) / 64 * 64));
    for (int64_t c = 0; c < columns; c += kWideColumns) {
        const int64_t first = c / wide.block, blocks = std::min(kWideColumns, columns - c) / wide.block;
        wide.open(panel.data() + first * wide.bytes, blocks, open);
        Ahead ahead{panel.data(), panel.data() + panel.size()};
        wide.dot(open, blocks, rows.rows.data(), first, n, many.data(), ahead);
    }
    std::free(open);
    // Also by groups of rows in the kernel for few.
    std::vector<float> few(size_t(n) * kPanel);
    for (int i = 0; i < n; i += kDotRows)
        kernels.dot[type](panel.data(), columns, &rows.rows[size_t(i)], std::min(kDotRows, n - i),
                          &few[size_t(i) * 16]);
    return std::memcmp(one.data(), many.data(), one.size() * 4) == 0 &&
           std::memcmp(one.data(), few.data(), one.size() * 4) == 0;
}

}  // namespace

int main() {
    const KernelTable& kernels = TEST_TABLE;
    int different = 0, types = 0;
    for (int type = 0; type < kWeightTypes; ++type) {
        if (kernels.wide[type].dot == nullptr) continue;
        ++types;
        const int block = type_info(type).block;
        for (int round = 0; round < 40; ++round) {
            const int64_t columns = int64_t(block) * between(1, 2560 / block);
            const int n = round < 20 ? round + 1 : between(1, 75);
            if (same(kernels, type, columns, n)) continue;
            ++different;
            std::printf("DIFFERENT: type %d, %d columns, %d rows\n", type, int(columns), n);
        }
    }
    std::printf("%s: %d types, %d different\n", kernels.name, types, different);
    return different == 0 && types > 0 ? 0 : 1;
}
