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
    bool output_rows = false;  // one row per requested logits instead of one per token

    int64_t rows(const BatchView& batch) const { return output_rows ? batch.n_output : batch.n_rows; }
    // First row computed by a run, and the row count.
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
    // Rows of which the step can compute a part (BatchView::part_first); 0: it computes all rows or none.
    virtual int64_t rows_to_cut(const BatchView&) const { return 0; }
    // Called concurrently by all workers that are on time. Distributes the work among them; barriers are
    // Worker::barrier. A late worker runs it from the start, but takes no tasks before the barrier at which it joined.
    virtual void run(Worker& worker) const = 0;

    std::vector<Matrix*> panels;  // matrices of the step: their panels are packed ahead, in this order
    bool barrier_before = true;   // all workers must have finished the earlier steps
};

// Memory shared by all steps of one kind: each step requests its size while it is constructed, and the maximum is
// allocated.
struct Scratch {
    virtual ~Scratch() = default;
    // Called once after the last step is constructed.
    virtual void allocate(const Program& program) = 0;
    // Called before every run, by one thread. Must not allocate.
    virtual void begin(const BatchView&) {}
};

}  // namespace woolly
