// Compares opened panels with the dots of one row, bit for bit: every type of a level, random weights, columns and row
// counts. Built with -DTEST_LEVEL=k_LEVEL_level and linked with that level's target (CONTRIBUTING.md has the commands).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <vector>

#include "cpu/kernels/isa_tables.h"
#include "cpu/kernels/tile_row.h"
#include "cpu/weights/pack.h"
#ifdef TEST_TILES
#include "machine/system.h"
#endif
// Maximum columns of a case: more than the 1024 opened together, fewer for unoptimized code.
#ifndef TEST_COLUMNS
#define TEST_COLUMNS 2560
#endif

namespace woolly {
extern const KernelTable k_tiles_table;  // defined in native/tests/tiles.cpp
inline constexpr Level k_tiles_level{"tiles", {&k_tiles_table}};
}  // namespace woolly

namespace {

using namespace woolly;

std::mt19937 engine(1);
int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); }

// float16 scales of a type's blocks, which come first when packed: their number, and whether there is an exponent.
struct Scales {
    int halves;
    bool exponent;
};
template <class Block>
Scales scales() {
    Scales s{0, false};
    constexpr Layout layout = Block::layout();
    for (const Part& part : layout.parts) s.halves += part.piece == Piece::half ? 1 : 0;
    s.exponent = layout.parts[0].piece == Piece::one;
    return s;
}
Scales scales_of(int type) {
    switch (WeightType(type)) {
#define WOOLLY_ROW(name, id, columns, bytes, activation, kernel) \
    case WeightType::name:                                       \
        return scales<Block##name>();
        WOOLLY_WEIGHT_TYPES(WOOLLY_ROW)
#undef WOOLLY_ROW
    }
    return {};
}

// Any bytes are valid weights; only the float scales at the start of a block must be finite.
std::vector<uint8_t> random_panel(int type, TypeInfo info, int64_t columns) {
    std::vector<uint8_t> panel(panel_bytes(info, columns));
    for (uint8_t& byte : panel) byte = uint8_t(between(0, 255));
    const WeightType t = WeightType(type);
    if (t == WeightType::F32)
        for (size_t i = 0; i < panel.size(); i += 4) {
            const float value = float(between(-1000, 1000)) * 0.001f;
            std::memcpy(&panel[i], &value, 4);
        }
    if (t == WeightType::F16 || t == WeightType::BF16)
        for (size_t i = 0; i < panel.size(); i += 2) {
            const uint16_t half = uint16_t(between(0x2000, 0x3f80) | (between(0, 1) << 15));
            std::memcpy(&panel[i], &half, 2);
        }
    if (info.activation == Activation::f32) return panel;
    const Scales scales = scales_of(type);
    for (int64_t b = 0; b < columns / info.block; ++b) {
        uint8_t* block = panel.data() + b * info.bytes * kPanel;
        if (scales.exponent)
            for (int i = 0; i < kPanel; ++i) block[i] = uint8_t(between(100, 140));
        // Nibbles of the last four half words: a quarter of 1, with any lower digits.
        if (t == WeightType::IQ1_M)
            for (int r = 0; r < kPanel; ++r) {
                uint8_t& top = block[kPanel * 48 + 64 + 4 * r + 3];
                top = uint8_t((top & 15) | 0x30);
            }
        for (int i = 0; i < kPanel * scales.halves; ++i) {
            const uint16_t half = uint16_t(between(0x1000, 0x3c00) | (between(0, 1) << 15));
            std::memcpy(block + 2 * i, &half, 2);
        }
    }
    return panel;
}

// Rows with a constant stride, quantized or not.
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
                // Includes very large and very small factors, and rows marked as ordinary.
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

// Allocates memory aligned to 64 bytes. The C library of Windows has no aligned_alloc.
uint8_t* take(int64_t bytes) { return static_cast<uint8_t*>(::operator new(size_t(bytes), std::align_val_t{64})); }
void drop(void* memory) { ::operator delete(memory, std::align_val_t{64}); }

bool same(const KernelTable& kernels, int type, int64_t columns, int n) {
    const TypeInfo info = type_info(type);
    const Wide& wide = kernels.wide[type];
    const std::vector<uint8_t> panel = random_panel(type, info, columns);
    const Rows rows(kernels, info.activation, columns, n);
    std::vector<float> one(size_t(n) * kPanel), many(size_t(n) * kPanel, 0.0f);
    for (int i = 0; i < n; ++i)
        kernels.dot[type](panel.data(), columns, &rows.rows[size_t(i)], 1, &one[size_t(i) * 16]);
    uint8_t* open = take(kWideColumns / wide.block * wide.open_bytes);
    for (int64_t c = 0; c < columns; c += kWideColumns) {
        const int64_t first = c / wide.block, blocks = std::min(kWideColumns, columns - c) / wide.block;
        wide.open(panel.data() + first * wide.bytes, blocks, open);
        Ahead ahead{panel.data(), panel.data() + panel.size()};
        wide.dot(open, blocks, rows.rows.data(), first, n, many.data(), ahead);
    }
    drop(open);
    // Also in groups of rows, with the kernel for few rows.
    std::vector<float> few(size_t(n) * kPanel);
    for (int i = 0; i < n; i += kDotRows)
        kernels.dot[type](panel.data(), columns, &rows.rows[size_t(i)], std::min(kDotRows, n - i),
                          &few[size_t(i) * 16]);
    return std::memcmp(one.data(), many.data(), one.size() * 4) == 0 &&
           std::memcmp(one.data(), few.data(), one.size() * 4) == 0;
}

// Same with tile kernels, if the type has them: several panels and blocks together.
bool same_by_tiles(const KernelTable& kernels, int type, int64_t columns, int n) {
    const Grid& grid = kernels.grid[type];
    if (grid.dot == nullptr) return true;
    const TypeInfo info = type_info(type);
    if (info.block < 4) columns = (columns + 3) / 4 * 4;
    const Rows rows(kernels, info.activation, columns, n);
    const int panels = between(1, 5), each = between(1, 4), tiles = (n + kTileRows - 1) / kTileRows;
    const int64_t blocks = (columns + grid.columns - 1) / grid.columns, bytes = tile_bytes(info.activation),
                  step = tiles * bytes;
    const int64_t sums_step = tiles * 256;
    uint8_t *a = take(blocks * step), *open = take(panels * each * grid.open_bytes);
    std::memset(a, 255, size_t(blocks * step));  // NaN in rows of tiles that are not used
    for (int m = 0; m < n; ++m)
        write_tile_row(info.activation, rows.rows[size_t(m)], columns, m % kTileRows, a + m / kTileRows * bytes, step);
    std::vector<std::vector<uint8_t>> weights;
    for (int p = 0; p < panels; ++p) weights.push_back(random_panel(type, info, columns));
    std::vector<float> sums(size_t(panels * sums_step), 0.0f);
    const auto of = [&](int64_t block) { return int(std::min<int64_t>(grid.columns, columns - block * grid.columns)); };
    for (int64_t b = 0; b < blocks; b += each) {
        const int count = int(std::min<int64_t>(each, blocks - b));
        for (int p = 0; p < panels; ++p)
            for (int k = 0; k < count; ++k)
                grid.open(weights[size_t(p)].data() + (b + k) * grid.bytes, of(b + k),
                          open + (p * count + k) * grid.open_bytes);
        grid.dot({open, panels, count, a + b * step, step, sums.data(), sums_step, of(b + count - 1)}, n);
    }
    // Also with the kernel for few rows, on adjacent panels.
    std::vector<float> few(size_t(panels * sums_step), 0.0f);
    if (grid.few != nullptr && n <= kFewRows) {
        const int64_t panel_step = blocks * grid.bytes;
        uint8_t *packed = take(panels * panel_step), *memory = take(kFewBytes);
        for (int p = 0; p < panels; ++p)
            std::memcpy(packed + p * panel_step, weights[size_t(p)].data(), size_t(panel_step));
        grid.few({packed, panel_step, panels, int(blocks), a, step, few.data(), sums_step, memory}, n);
        drop(packed);
        drop(memory);
    } else {
        few = sums;
    }
    bool same = true;
    for (int p = 0; p < panels; ++p)
        for (int m = 0; m < n; ++m) {
            float one[kPanel];
            const size_t at = size_t(p * sums_step + kPanel * m);
            kernels.dot[type](weights[size_t(p)].data(), columns, &rows.rows[size_t(m)], 1, one);
            same = same && std::memcmp(one, &sums[at], sizeof one) == 0 && std::memcmp(one, &few[at], sizeof one) == 0;
        }
    drop(a);
    drop(open);
    return same;
}

}  // namespace

int main() {
    const KernelTable kernels = joined(TEST_LEVEL);
#ifdef TEST_TILES
    // The system kills a process that uses a tile register without requesting it first.
    if (!tiles_allowed()) {
        std::printf("the system grants no tile registers\n");
        return 1;
    }
#endif
    int different = 0, types = 0;
    for (int type = 0; type < kWeightTypes; ++type) {
        const bool wide = kernels.wide[type].dot != nullptr;
        if (!wide && kernels.grid[type].dot == nullptr) continue;
        ++types;
        const int block = type_info(type).block;
        for (int round = 0; round < 40; ++round) {
            const int64_t columns = int64_t(block) * between(1, TEST_COLUMNS / block);
            const int n = round < 20 ? round + 1 : between(1, 75);
            if ((!wide || same(kernels, type, columns, n)) && same_by_tiles(kernels, type, columns, n)) continue;
            ++different;
            std::printf("DIFFERENT: type %d, %d columns, %d rows\n", type, int(columns), n);
        }
    }
    std::printf("%s: %d types, %d different\n", kernels.name, types, different);
    return different == 0 && types > 0 ? 0 : 1;
}
