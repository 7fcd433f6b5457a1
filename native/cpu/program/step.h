// A step of a compiled plan. Each op is a subclass in ops/NAME.cpp, whose members are the op's parameters.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/program/batch.h"
#include "cpu/state/pages.h"
#include "cpu/weights/matrix.h"

namespace woolly {

struct Worker;
class Program;

// A value of the plan: f32 [rows, width] in the arena.
struct Value {
    float* data = nullptr;
    int64_t width = 0;
    bool output_rows = false;  // one row per wanted logits instead of one per token

    int64_t rows(const BatchView& batch) const { return output_rows ? batch.n_output : batch.n_rows; }
    // The first of the rows that a run computes, and how many they are.
    int64_t first(const BatchView& batch) const { return batch.is_part() ? batch.part_first : 0; }
    int64_t computed(const BatchView& batch) const {
        return batch.is_part() ? batch.part_last - batch.part_first : rows(batch);
    }
};

class Step {
  public:
    virtual ~Step() = default;
    // Throws std::invalid_argument if the step cannot compute the batch. Called before every run.
    virtual void check(const BatchView&, const Cache&) const {}
    // Rows of which it can compute a part (BatchView::part_first); 0: it computes all rows, or none.
    virtual int64_t rows_to_cut(const BatchView&) const { return 0; }
    // Called by all workers that came in time, at once. Hands the work out to them, and may let them meet at
    // Worker::barrier. A worker that comes late runs it from its beginning, but takes no tasks before the barrier after
    // which it joined.
    virtual void run(Worker& worker) const = 0;

    std::vector<Matrix*> panels;  // matrices that it multiplies with: their panels are packed ahead, in this order
    bool barrier_before = true;   // all workers must have finished the steps before it
};

// Memory that all steps of one kind share: while they are made, each asks for what it needs, and the largest counts.
struct Scratch {
    virtual ~Scratch() = default;
    // Called once after the last step was made.
    virtual void allocate(const Program& program) = 0;
    // Called before every run, by one thread. Must not allocate.
    virtual void begin(const BatchView&) {}
};

}  // namespace woolly
