#include "cpu/threads/tasks.h"

#include <algorithm>

namespace woolly {

bool Tasks::claim(std::atomic<uint64_t>& word, int64_t round, int64_t n, bool own, int64_t most, Range& to) const {
    const uint64_t tag = uint64_t(round) & 0xffffff;
    uint64_t seen = word.load(std::memory_order_relaxed);
    for (;;) {
        const bool begun = seen >> 40 == tag;
        // Others are in the next round already: nothing was left of this one.
        if (!begun && seen >> 40 != ((tag - 1) & 0xffffff)) return false;
        const int64_t first = begun ? int64_t(seen >> 20 & 0xfffff) : 0, last = begun ? int64_t(seen & 0xfffff) : n;
        if (first == last && begun) return false;
        // Large pieces first. Small ones from another worker's part: many workers may help.
        const int64_t share = (last - first) / (own ? 4 : n_workers_);
        const int64_t count = std::min(last - first, std::clamp<int64_t>(share, 1, most));
        to = own ? Range{first, first + count} : Range{last - count, last};
        const uint64_t left =
            own ? uint64_t(to.last) << 20 | uint64_t(last) : uint64_t(first) << 20 | uint64_t(to.first);
        if (word.compare_exchange_weak(seen, tag << 40 | left, std::memory_order_relaxed)) return count > 0;
    }
}

void Tasks::hand_out(int64_t round, int worker, int64_t n, int64_t most, Run run, const void* f) {
    if (n_workers_ == 1) {
        for (int64_t first = 0; first < n; first += most) run(f, first, std::min(first + most, n));
        return;
    }
    // Parts are counted in units: single tasks, or several if they exceed a word.
    const int64_t unit = n / (int64_t{n_workers_} * kMaxItems) + 1, n_units = (n + unit - 1) / unit;
    for (int i = 0; i < n_workers_; ++i) {
        const int from = (worker + i) % n_workers_;
        const Range part = share(n_units, from, n_workers_);
        Range piece;
        while (claim(parts_[size_t(from)].word, round, part.last - part.first, i == 0, most, piece)) {
            const int64_t last = std::min(n, (part.first + piece.last) * unit);
            for (int64_t first = (part.first + piece.first) * unit; first < last; first += most)
                run(f, first, std::min(first + most, last));
        }
    }
}

}  // namespace woolly
