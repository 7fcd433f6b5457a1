// Tasks of a step, handed out to the workers of a pool. Each worker has a part of its own, neighbours in memory, and
// takes it from the front, in pieces that shrink towards its end. Who is done takes from the back of the others' parts,
// so that cores may be unequal, and a worker that lost its core keeps from the others only the piece that it is at.
#pragma once

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
        const auto call = [](const void* f, int64_t first, int64_t last) { (*static_cast<const F*>(f))(first, last); };
        hand_out(round, worker, n, most, call, &run);
    }

  private:
    // What is left of a part: the round's lowest 24 bits, then the first unit that is left and the one after the last.
    // It is still that of the round before, with nothing left, if no worker came here in this one.
    struct alignas(64) Part {
        std::atomic<uint64_t> word{0};
    };
    static constexpr int64_t kMaxItems = (1 << 20) - 2;

    // One function for all steps: with a copy of it in each, they took half as long again to compile.
    using Run = void (*)(const void* f, int64_t first, int64_t last);
    void hand_out(int64_t round, int worker, int64_t n, int64_t most, Run run, const void* f);
    bool claim(std::atomic<uint64_t>& word, int64_t round, int64_t n, bool own, int64_t most, Range& to) const;

    const int n_workers_;
    std::unique_ptr<Part[]> parts_;
};

}  // namespace woolly
