// Work-stealing distribution of a step's tasks. Each worker has its own contiguous part and takes it from the front, in
// shrinking pieces. Idle workers steal from the back of other parts, so that cores may differ in speed, and a preempted
// worker delays only its current piece.
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

    // Part of [0, n) of a worker.
    static Range share(int64_t n, int worker, int n_workers) {
        return {n * worker / n_workers, n * (worker + 1) / n_workers};
    }

    // Called before a run, by one thread: the next round is 1. A forked child may have parts of unfinished rounds.
    void begin() {
        for (int i = 0; i < n_workers_; ++i) parts_[size_t(i)].word.store(0, std::memory_order_relaxed);
    }

    // Calls run(first, last) for pieces of at most `most` tasks of [0, n) until none is left. Workers call it for the
    // same rounds, numbered without gaps, in order: a round begins with the first call. A worker that was left behind
    // (cpu/threads/pool.h) may miss rounds, from one barrier to another.
    template <class F>
    void take(int64_t round, int worker, int64_t n, int64_t most, const F& run) {
        const auto call = [](const void* f, int64_t first, int64_t last) { (*static_cast<const F*>(f))(first, last); };
        hand_out(round, worker, n, most, call, &run);
    }

  private:
    // Remainder of a part: the round's lowest 24 bits, then the first remaining unit and the end. If no worker has come
    // here in this round, it is the empty remainder of the previous one.
    struct alignas(64) Part {
        std::atomic<uint64_t> word{0};
    };
    static constexpr int64_t kMaxItems = (1 << 20) - 2;

    // A single function for all steps, because a copy in each step increased compile time by half.
    using Run = void (*)(const void* f, int64_t first, int64_t last);
    void hand_out(int64_t round, int worker, int64_t n, int64_t most, Run run, const void* f);
    bool claim(std::atomic<uint64_t>& word, int64_t round, int64_t n, bool own, int64_t most, Range& to) const;

    const int n_workers_;
    std::unique_ptr<Part[]> parts_;
};

}  // namespace woolly
