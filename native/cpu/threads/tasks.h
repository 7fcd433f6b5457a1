// Tasks of a step, handed out to the workers of a pool. Each worker has a part of its own, neighbours in memory, and
// takes it from the front, in pieces that shrink towards its end. Who is done takes from the back of the others' parts,
// so that cores may be unequal, and a worker that lost its core keeps from the others only the piece that it is at.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace woolly {

class Tasks {
  public:
    struct Range {
        int64_t first, last;
    };

    explicit Tasks(int n_workers) : n_workers_(n_workers), parts_(std::make_unique<Part[]>(size_t(n_workers))) {}

    // The part of [0, n) that is a worker's own.
    static Range share(int64_t n, int worker, int n_workers) {
        return {n * worker / n_workers, n * (worker + 1) / n_workers};
    }

    // Before a run, by one thread: the next round is 1. A forked child may have parts of rounds that it never saw the
    // end of.
    void begin() {
        for (int i = 0; i < n_workers_; ++i) parts_[size_t(i)].word.store(0, std::memory_order_relaxed);
    }

    // Calls run(first, last) for pieces of at most `most` tasks of [0, n) until none is left. Workers call it for the
    // same rounds, numbered without gaps, in order: a round begins when a worker is the first to call it. A worker that
    // was left behind (cpu/threads/pool.h) may miss rounds, from one barrier to another.
    template <class F>
    void take(int64_t round, int worker, int64_t n, int64_t most, const F& run) {
        if (n_workers_ == 1) {
            for (int64_t first = 0; first < n; first += most) run(first, std::min(first + most, n));
            return;
        }
        // A part is counted in units, which are single tasks unless they are too many for a word.
        const int64_t unit = n / (int64_t{n_workers_} * kMost) + 1, n_units = (n + unit - 1) / unit;
        for (int i = 0; i < n_workers_; ++i) {
            const int from = (worker + i) % n_workers_;
            const Range part = share(n_units, from, n_workers_);
            Range piece;
            while (claim(parts_[size_t(from)].word, round, part.last - part.first, i == 0, most, piece)) {
                const int64_t last = std::min(n, (part.first + piece.last) * unit);
                for (int64_t first = (part.first + piece.first) * unit; first < last; first += most)
                    run(first, std::min(first + most, last));
            }
        }
    }

  private:
    // What is left of a part: the round's lowest 24 bits, then the first unit that is left and the one after the last.
    // It is still that of the round before, with nothing left, if no worker came here in this one.
    struct alignas(64) Part {
        std::atomic<uint64_t> word{0};
    };
    static constexpr int64_t kMost = (1 << 20) - 2;

    bool claim(std::atomic<uint64_t>& word, int64_t round, int64_t n, bool own, int64_t most, Range& to) const {
        const uint64_t tag = uint64_t(round) & 0xffffff;
        uint64_t seen = word.load(std::memory_order_relaxed);
        for (;;) {
            const bool begun = seen >> 40 == tag;
            // Others are at the next round already: of this one nothing was left.
            if (!begun && seen >> 40 != ((tag - 1) & 0xffffff)) return false;
            const int64_t first = begun ? int64_t(seen >> 20 & 0xfffff) : 0, last = begun ? int64_t(seen & 0xfffff) : n;
            if (first == last && begun) return false;
            // Large pieces first. Of another's part a little: many may come to help.
            const int64_t share = (last - first) / (own ? 4 : n_workers_);
            const int64_t count = std::min(last - first, std::clamp<int64_t>(share, 1, most));
            to = own ? Range{first, first + count} : Range{last - count, last};
            const uint64_t left =
                own ? uint64_t(to.last) << 20 | uint64_t(last) : uint64_t(first) << 20 | uint64_t(to.first);
            if (word.compare_exchange_weak(seen, tag << 40 | left, std::memory_order_relaxed)) return count > 0;
        }
    }

    const int n_workers_;
    std::unique_ptr<Part[]> parts_;
};

}  // namespace woolly
