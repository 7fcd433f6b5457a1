// One thread of a run: its share of a step's work, and barriers with the other threads.
#pragma once

#include "cpu/program/program.h"

namespace woolly {

struct Worker {
    Program& program;
    const int id;
    const BatchView& batch;
    Cache& cache;
    mutable int64_t round;  // task round: number of distributions in this run
    int step = 0;           // index of the current one
    int n_barriers = 0;     // inside the current step so far
    int skips = 0;          // barriers inside the step to skip until the phase that this worker joined
    bool is_behind = false;

    using Range = Tasks::Range;
    // Barrier of all workers: earlier writes are visible to all afterwards. Returns false if the others continued
    // without this worker, which must then return from the step immediately.
    [[nodiscard]] bool barrier();
    // Private memory of this worker, with the size requested through Program::need_own. Lost at the end of the step.
    uint8_t* own() const { return program.own_[size_t(id)].data(); }
    int32_t sequence_of(int64_t row) const { return program.row_sequence_[size_t(row)]; }
    // Next task of the current step, starting at 0 in each run, for steps whose order of tasks matters.
    std::atomic<int64_t>& next() const { return program.next_[size_t(step)]; }

    // Calls run(first, last) for pieces of n tasks until none is left; a piece has at most `most` tasks. The assignment
    // to workers is unspecified: all workers must call it, and no task may depend on another.
    template <class F>
    void take_runs(int64_t n, int64_t most, const F& run) const {
        if (skips == 0) program.tasks_.take(++round, id, n, most, run);
    }
    // Calls one(task) for each of n tasks.
    template <class F>
    void take(int64_t n, const F& one) const {
        take_runs(n, 1, [&](int64_t task, int64_t) { one(task); });
    }
    // Calls run(first, last) for equal parts of n items, one part (and task) per thread: for items too small to be
    // distributed one by one.
    template <class F>
    void share(int64_t n, const F& run) const {
        take(program.n_threads(), [&](int64_t part) {
            const Range range = Tasks::share(n, int(part), program.n_threads());
            if (range.first < range.last) run(range.first, range.last);
        });
    }
};

}  // namespace woolly
