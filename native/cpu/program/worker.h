// One thread of a run: which part of a step's work it does, and where it meets the others.
#pragma once

#include "cpu/program/program.h"

namespace woolly {

struct Worker {
    Program& program;
    const int id;
    const BatchView& batch;
    Cache& cache;
    mutable int64_t round;  // how often this worker took tasks, in this run and those before
    int step = 0;           // index of the current one

    using Range = Tasks::Range;
    // This worker's share of n things that are not worth handing out.
    Range share(int64_t n) const { return Tasks::share(n, id, program.n_threads()); }
    // All workers meet here; what was written before is seen by all after.
    void barrier() const { program.pool_.barrier(); }
    // Memory of this worker alone, as much as the step asked for by Program::need_own. Lost at the end of the step.
    uint8_t* own() const { return program.own_[size_t(id)].data(); }
    int32_t sequence_of(int64_t row) const { return program.row_sequence_[size_t(row)]; }
    // The next task of the current step, 0 when a run begins, for steps whose order of tasks matters.
    std::atomic<int64_t>& next() const { return program.next_[size_t(step)]; }

    // Calls run(first, last) for pieces of n tasks until none is left; a piece has at most `most` tasks. Who does what
    // is open: all workers must call it, and no task may depend on another.
    template <class F>
    void take_runs(int64_t n, int64_t most, const F& run) const {
        program.tasks_.take(++round, id, n, most, run);
    }
    // Calls one(task) for each of n tasks.
    template <class F>
    void take(int64_t n, const F& one) const {
        take_runs(n, 1, [&](int64_t task, int64_t) { one(task); });
    }
};

}  // namespace woolly
