#include "cpu/kernels/tune.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cpu/weights/pack.h"

namespace woolly {

namespace {

constexpr int64_t kColumns = 1024;
constexpr int kMaxTuned = 16, kPanels = 8, kTries = 5;
constexpr int64_t kLong = 100'000;  // nanoseconds above which one panel is enough for a timing
constexpr int kCounts[] = {2, 3, 4, 6, 8, 12, kMaxTuned};

// Zero activations in every form, and zero panels: timings do not depend on the values.
struct Subject {
    const KernelTable& kernels;
    const int type;
    const TypeInfo info = type_info(type);
    std::vector<uint8_t> weights, open, zeros, tiles;
    std::vector<float> tile, pair;
    std::vector<ActivationRow> rows;
    bool slow = false;

    Subject(const KernelTable& k, int t)
        : kernels(k), type(t), tile(size_t(kMaxTuned) * kPanel), pair(2 * size_t(kTileRows) * kPanel) {
        const Wide& wide = kernels.wide[type];
        weights.resize(panel_bytes(info, kColumns) * kPanels);
        const Grid& grid = kernels.grid[type];
        int64_t opened = kColumns / wide.block * wide.open_bytes;
        if (grid.dot != nullptr) {
            opened = std::max({opened, 2 * kColumns / grid.columns * grid.open_bytes, int64_t{kFewBytes}});
            tiles.resize(size_t(kColumns / grid.columns * tile_bytes(info.activation)));
        }
        open.resize(size_t(opened) + 64);
        zeros.resize(size_t(kColumns) * 4);
        const ActivationRow row = {reinterpret_cast<const float*>(zeros.data()),
                                   reinterpret_cast<const int8_t*>(zeros.data()),
                                   reinterpret_cast<const float*>(zeros.data()),
                                   reinterpret_cast<const int32_t*>(zeros.data()),
                                   reinterpret_cast<const float*>(zeros.data()),
                                   reinterpret_cast<const int8_t*>(zeros.data()),
                                   true};
        rows.assign(kMaxTuned, row);
    }

    void direct(const uint8_t* panel, int n) {
        for (int i = 0; i < n; i += kDotRows)
            kernels.dot[type](panel, kColumns, rows.data() + i, std::min(kDotRows, n - i), tile.data() + i * kPanel);
    }
    uint8_t* memory() {
        return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(open.data()) + 63) & ~uintptr_t{63});
    }
    void opened(const uint8_t* panel, int n) {
        const Wide& wide = kernels.wide[type];
        uint8_t* to = memory();
        std::fill(tile.begin(), tile.end(), 0.0f);
        wide.open(panel, kColumns / wide.block, to);
        Ahead ahead{};
        wide.dot(to, kColumns / wide.block, rows.data(), 0, n, tile.data(), ahead);
    }

    // Alternates between one and two panels, because kernels process them in pairs.
    void tiled(const uint8_t* panel, int n) {
        const Grid& grid = kernels.grid[type];
        const int n_blocks = int(kColumns / grid.columns);
        const size_t bytes = weights.size() / kPanels;
        if (size_t(panel - weights.data()) / bytes % 2 != 0) return;
        uint8_t* to = memory();
        std::fill(pair.begin(), pair.end(), 0.0f);
        const int64_t of_panel = int64_t(kTileRows) * kPanel;
        if (grid.few != nullptr) {
            grid.few({panel, int64_t(bytes), 2, n_blocks, tiles.data(), tile_bytes(info.activation), pair.data(),
                      of_panel, to},
                     n);
            return;
        }
        for (int b = 0; b < 2 * n_blocks; ++b)
            grid.open(panel + b * grid.bytes, grid.columns, to + b * grid.open_bytes);
        grid.dot({to, 2, n_blocks, tiles.data(), tile_bytes(info.activation), pair.data(), of_panel, grid.columns}, n);
    }

    template <class F>
    int64_t once(const F& f, int panels) {
        using Clock = std::chrono::steady_clock;
        const auto start = Clock::now();
        for (int panel = 0; panel < panels; ++panel) f(weights.data() + size_t(panel) * weights.size() / kPanels);
        return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
    }
    // Minimum of several timings, the least disturbed one.
    template <class F>
    int64_t time(const F& f) {
        int64_t best = INT64_MAX;
        for (int i = 0; i < (slow ? 2 : kTries); ++i) best = std::min(best, once(f, slow ? 1 : kPanels));
        return best;
    }
};

// Searches downwards from the maximum row count to the last one at which `another` method was not slower than the best
// one before; at most `most`, from which on it always wins.
template <class Best, class Other>
int crossover(Subject& subject, const Best& best, const Other& another, int most) {
    subject.slow = subject.once([&](const uint8_t* panel) { best(panel, kMaxTuned); }, 1) > kLong;
    int from = INT_MAX;
    for (int i = int(std::size(kCounts)) - 1; i >= 0; --i) {
        const int n = kCounts[i];
        const int64_t before = subject.time([&](const uint8_t* panel) { best(panel, n); });
        const int64_t after = subject.time([&](const uint8_t* panel) { another(panel, n); });
        // With a margin: weights are in the cache here, and opening a panel from memory is slightly slower.
        if (20 * after > 19 * before) break;
        from = n;
    }
    return std::min(from, most);
}

// Calls `measure` once per type of a level, and caches the result.
template <class F>
int remembered(const KernelTable& kernels, int type, const F& measure) {
    static std::mutex mutex;  // taken only with the GIL held, which fork() needs: a child never inherits it locked
    static std::map<std::pair<const KernelTable*, int>, int> known;
    const std::lock_guard lock(mutex);
    const auto key = std::make_pair(&kernels, type);
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
    return known[key] = measure();
}

}  // namespace

int wide_from(const KernelTable& kernels, int type) {
    return remembered(kernels, type, [&] {
        Subject subject(kernels, type);
        return crossover(
            subject, [&](const uint8_t* panel, int n) { subject.direct(panel, n); },
            [&](const uint8_t* panel, int n) { subject.opened(panel, n); },
            4 * kMaxTuned);  // the cost of opened weights is shared by all rows
    });
}

int grid_from(const KernelTable& kernels, int type) {
    const int open_from = wide_from(kernels, type);
    return remembered(kernels, type, [&] {
        Subject subject(kernels, type);
        return crossover(
            subject,
            [&](const uint8_t* panel, int n) { n < open_from ? subject.direct(panel, n) : subject.opened(panel, n); },
            [&](const uint8_t* panel, int n) { subject.tiled(panel, n); },
            // Matrix tiles next to a busy sibling thread look slow at load, but are not when all threads run: 32 rows
            // without them took 1.4 times as long.
            kernels.grid[type].few == nullptr ? 4 * kMaxTuned : kMaxTuned);
    });
}

}  // namespace woolly
