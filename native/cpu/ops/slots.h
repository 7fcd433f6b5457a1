// Shared code of ops with recurrent state: the slots of sequences, and runs of rows between which the state is saved.
#pragma once

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cpu/program/arguments.h"
#include "cpu/program/worker.h"

namespace woolly {

struct SlotEntry {
    const int entry;
    const int64_t numbers;  // of one slot

    void check(const Cache& cache) const {
        if (cache.slot_numbers(entry) != numbers) throw std::invalid_argument("the cache was made for another plan");
    }
    // State to start a sequence from, and state to write. They never share memory.
    const float* before(const Worker& w, int64_t sequence) const {
        return w.cache.slot(entry, w.batch.slots_in[sequence]);
    }
    float* after(const Worker& w, int64_t sequence) const { return w.cache.slot(entry, w.batch.slots_out[sequence]); }

    // Calls leave(sequence, row, slot) for each row of the batch after which the state is saved: the last row of a
    // sequence, and rows with a checkpoint.
    template <class F>
    static void leave_states(const Worker& w, const F& leave) {
        const BatchView& b = w.batch;
        w.share(b.n_sequences + b.n_snapshots, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                if (i < b.n_sequences) {
                    leave(i, b.offsets[i + 1] - 1, b.slots_out[i]);
                } else {
                    const int32_t* keep = b.snapshots + 2 * (i - b.n_sequences);
                    leave(w.sequence_of(keep[0]), keep[0], keep[1]);
                }
            }
        });
    }

    // Calls one(first row, last row exclusive, slot) for the runs of a sequence's rows, in order; the state after the
    // run is saved to the slot, -1: none.
    template <class F>
    static void runs(const BatchView& b, int64_t sequence, const F& one) {
        const int64_t end = b.offsets[sequence + 1];
        for (int64_t first = b.offsets[sequence]; first < end;) {
            int64_t last = end;
            int32_t slot = -1;
            for (int64_t i = 0; i < b.n_snapshots; ++i) {
                const int64_t row = b.snapshots[2 * i];
                if (row >= first && row < last) last = row + 1, slot = b.snapshots[2 * i + 1];
            }
            one(first, last, slot);
            first = last;
        }
    }
};

}  // namespace woolly
