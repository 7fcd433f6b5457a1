// One thread of a run: which part of a step's work it does, and where it meets the others.
#pragma once

#include <algorithm>

#include "cpu/program/program.h"

namespace woolly {

struct Worker {
    Program& program;
    const int id;
    const BatchView& batch;
    Cache& cache;
    int step = 0;  // index of the current one

    // This worker's share of n things: [first, last).
    struct Range {
        int64_t first, last;
    };
    Range share(int64_t n) const {
        const int64_t threads = program.n_threads();
        return {n * id / threads, n * (id + 1) / threads};
    }
    // All workers meet here; what was written before is seen by all after.
    void barrier() const { program.pool_.barrier(); }
    // Memory of this worker alone, as much as the step asked for by Program::need_own. Lost at the end of the step.
    uint8_t* own() const { return program.own_[size_t(id)].data(); }
    int32_t sequence_of(int64_t row) const { return program.row_sequence_[size_t(row)]; }
    // Counters of the current step that all workers share, 0 when a run begins: the next task of round 0 or 1.
    std::atomic<int64_t>& next(int round = 0) const { return program.next_[size_t(round * program.n_steps() + step)]; }

    // Tasks [0, fixed) are split evenly; [fixed, n) are claimed dynamically in small pieces.
    template <class F>
    void take(int round, int64_t fixed, int64_t n, const F& one) const {
        const Range range = share(fixed);
        for (int64_t task = range.first; task < range.last; ++task) one(task);
        const int64_t piece = std::max<int64_t>(1, (n - fixed) / (8 * program.n_threads()));
        for (;;) {
            const int64_t task = fixed + next(round).fetch_add(piece, std::memory_order_relaxed);
            if (task >= n) break;
            for (int64_t t = task; t < std::min(task + piece, n); ++t) one(t);
        }
    }
};

}  // namespace woolly
