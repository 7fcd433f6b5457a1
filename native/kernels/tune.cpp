#include "kernels/tune.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "quant/types.h"

namespace woolly {

namespace {

constexpr int64_t kColumns = 1024;
constexpr int kMost = 16, kPanels = 8, kTries = 5;
constexpr int64_t kLong = 100'000;  // nanoseconds after which one panel is enough to be timed
constexpr int kCounts[] = {2, 3, 4, 6, 8, 12, kMost};

// Zeros in every form of activations, and panels of zeros: the time does not depend on the values.
struct Subject {
    const KernelTable& kernels;
    const int type;
    const TypeInfo info = type_info(type);
    std::vector<uint8_t> weights, open, zeros;
    std::vector<float> tile;
    std::vector<ActivationRow> rows;
    bool slow = false;

    Subject(const KernelTable& k, int t) : kernels(k), type(t), tile(size_t(kMost) * kPanel) {
        const Wide& wide = kernels.wide[type];
        weights.resize(panel_bytes(info, kColumns) * kPanels);
        open.resize(size_t(kColumns / wide.block * wide.open_bytes) + 64);
        zeros.resize(size_t(kColumns) * 4);
        const ActivationRow row = {reinterpret_cast<const float*>(zeros.data()),
                                   reinterpret_cast<const int8_t*>(zeros.data()),
                                   reinterpret_cast<const float*>(zeros.data()),
                                   reinterpret_cast<const int32_t*>(zeros.data()),
                                   reinterpret_cast<const float*>(zeros.data()),
                                   reinterpret_cast<const int8_t*>(zeros.data()),
                                   true};
        rows.assign(kMost, row);
    }

    void direct(const uint8_t* panel, int n) {
        for (int i = 0; i < n; i += kDotRows)
            kernels.dot[type](panel, kColumns, rows.data() + i, std::min(kDotRows, n - i), tile.data() + i * kPanel);
    }
    void opened(const uint8_t* panel, int n) {
        const Wide& wide = kernels.wide[type];
        uint8_t* to = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(open.data()) + 63) & ~uintptr_t{63});
        std::fill(tile.begin(), tile.end(), 0.0f);
        wide.open(panel, kColumns / wide.block, to);
        Ahead ahead{};
        wide.dot(to, kColumns / wide.block, rows.data(), 0, n, tile.data(), ahead);
    }

    template <class F>
    int64_t once(const F& f, int panels) {
        using Clock = std::chrono::steady_clock;
        const auto start = Clock::now();
        for (int panel = 0; panel < panels; ++panel) f(weights.data() + size_t(panel) * weights.size() / kPanels);
        return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
    }
    // The least of several times, in which nothing disturbed it.
    template <class F>
    int64_t time(const F& f) {
        int64_t best = INT64_MAX;
        for (int i = 0; i < (slow ? 2 : kTries); ++i) best = std::min(best, once(f, slow ? 1 : kPanels));
        return best;
    }
};

int measure(const KernelTable& kernels, int type) {
    Subject subject(kernels, type);
    subject.slow = subject.once([&](const uint8_t* panel) { subject.direct(panel, kMost); }, 1) > kLong;
    int from = INT_MAX;
    // From the most rows down, to the last count at which opening was not slower.
    for (int i = int(std::size(kCounts)) - 1; i >= 0; --i) {
        const int n = kCounts[i];
        const int64_t direct = subject.time([&](const uint8_t* panel) { subject.direct(panel, n); });
        const int64_t opened = subject.time([&](const uint8_t* panel) { subject.opened(panel, n); });
        // By a margin: here the weights are in the cache, and a panel that comes from memory is opened a little slower.
        if (20 * opened > 19 * direct) break;
        from = n;
    }
    // Much later the opened weights win in any case: their cost is shared by all rows.
    return std::min(from, 4 * kMost);
}

}  // namespace

int wide_from(const KernelTable& kernels, int type) {
    static std::mutex mutex;
    static std::map<std::pair<const KernelTable*, int>, int> known;
    const std::lock_guard lock(mutex);
    const auto key = std::make_pair(&kernels, type);
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
    return known[key] = measure(kernels, type);
}

}  // namespace woolly
