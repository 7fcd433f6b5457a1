#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <vector>

#include "sampling/sampling.h"

namespace woolly {

namespace {

// Maps a float to an integer of the same order. Adding zero makes both zeros equal.
std::int32_t key_of(float value) {
    const auto bits = std::bit_cast<std::int32_t>(value + 0.0f);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

// Small enough to be rescanned on a hit, large enough for SIMD code. Compilers vectorize counts, but not a maximum of
// floats.
constexpr std::size_t block_size = 64;

std::span<const float> block_at(std::span<const float> row, std::size_t first) {
    return row.subspan(first, std::min(block_size, row.size() - first));
}

struct Look {
    bool sound;  // neither NaN nor plus infinity
    bool above;  // something is above the bound
};

Look look_at(std::span<const float> block, float bound) {
    int sound = 0, above = 0;
    for (const float value : block) {
        sound += value <= std::numeric_limits<float>::max();
        above += value > bound;
    }
    return {sound == static_cast<int>(block.size()), above != 0};
}

// Larger is better; for equal values the lower id is larger.
std::uint64_t pack(std::int32_t key, std::size_t id) {
    const auto high = static_cast<std::uint32_t>(key) ^ 0x80000000u;
    return (static_cast<std::uint64_t>(high) << 32) | (0xffffffffu - static_cast<std::uint32_t>(id));
}

std::int32_t id_of(std::uint64_t packed) {
    return static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(packed));
}

// Small k: skips blocks without a value better than the worst one kept. Returns nothing if the row has NaN or plus
// infinity.
std::vector<std::uint64_t> select(std::span<const float> row, std::size_t k) {
    std::vector<std::uint64_t> kept;
    const std::size_t room = 2 * k + block_size;
    kept.reserve(room + block_size);
    const auto shrink = [&] {
        std::nth_element(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(k) - 1, kept.end(), std::greater<>());
        kept.resize(k);
    };
    bool full = false;
    float worst = -std::numeric_limits<float>::infinity();  // minimum of the values kept, once there are k
    for (std::size_t first = 0; first < row.size(); first += block_size) {
        const auto part = block_at(row, first);
        const Look look = look_at(part, worst);
        if (!look.sound) return {};
        if (full && !look.above) continue;
        for (std::size_t i = 0; i < part.size(); ++i) {
            // An equal value that comes later has the higher id, and loses.
            if (!full || part[i] > worst) kept.push_back(pack(key_of(part[i]), first + i));
        }
        if (kept.size() >= room || (!full && kept.size() >= k)) {
            shrink();
            full = true;
            worst = row[static_cast<std::size_t>(id_of(kept[k - 1]))];
        }
    }
    if (kept.size() > k) shrink();
    std::sort(kept.begin(), kept.end(), std::greater<>());
    return kept;
}

// Large k: a stable radix sort of the upper halves, so that equal values stay in id order.
std::vector<std::uint64_t> sort_all(std::span<const float> row) {
    constexpr int bits = 11;
    constexpr std::size_t buckets = std::size_t{1} << bits;
    std::vector<std::uint64_t> from(row.size()), to(row.size());
    std::array<std::array<std::uint32_t, buckets>, 3> starts{};
    if (!look_at(row, 0.0f).sound) return {};
    for (std::size_t id = 0; id < row.size(); ++id) {
        from[id] = pack(key_of(row[id]), id);
        for (std::size_t pass = 0; pass < 3; ++pass) ++starts[pass][(from[id] >> (32 + bits * pass)) & (buckets - 1)];
    }
    for (std::size_t pass = 0; pass < 3; ++pass) {
        std::uint32_t total = 0;
        for (std::size_t bucket = buckets; bucket-- > 0;) {
            const std::uint32_t count = starts[pass][bucket];
            starts[pass][bucket] = total;
            total += count;
        }
        for (const std::uint64_t item : from) to[starts[pass][(item >> (32 + bits * pass)) & (buckets - 1)]++] = item;
        from.swap(to);
    }
    return from;
}

}  // namespace

bool largest(std::span<const float> row, std::span<std::int32_t> ids, std::span<float> values) {
    if (ids.empty()) return true;
    // With a large k, blocks are rarely skipped.
    const auto kept = ids.size() > row.size() / 16 ? sort_all(row) : select(row, ids.size());
    if (kept.empty()) return false;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = id_of(kept[i]);
        values[i] = row[static_cast<std::size_t>(ids[i])];
    }
    return values[0] != -std::numeric_limits<float>::infinity();
}

}  // namespace woolly
