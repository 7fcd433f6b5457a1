// A plan compiled for the CPU: an array of steps over one arena. It walks the array; it decides nothing.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/table.h"
#include "program/cache.h"
#include "program/memory.h"
#include "quant/types.h"
#include "threads/pool.h"

namespace woolly {

// A weight matrix. `source` is the mapped file; `packed` is where its panels are kept, or null where the budget has
// no room for them. A panel is packed ahead of its use, or by the thread that first computes with it; after the last
// one the pages of the file are given back (program/weights.cpp).
struct Matrix {
    int type = 0;
    TypeInfo info{};
    int64_t rows = 0, columns = 0;
    const uint8_t* source = nullptr;
    bool mapped = false;  // `source` is a mapped file, whose pages come back when they are read again
    uint8_t* packed = nullptr;
    std::unique_ptr<uint8_t[]> done;  // [n_panels], 1 where the panel is packed
    mutable int64_t left = 0;         // panels that are not; read and counted down as an atomic
    bool whole = false;               // all of them were packed when the present run began
    mutable int wide_from = INT_MAX;  // rows from which its panels are opened (kernels/tune.h); read as an atomic

    int64_t n_panels() const { return (rows + kPanel - 1) / kPanel; }
    size_t stride() const { return row_bytes(info, columns); }
};

struct Vector {
    const float* data = nullptr;
    int64_t n = 0;
};

// A value of the plan: f32 [rows, width] in the arena.
struct ValueSlot {
    size_t offset = 0;
    int64_t width = 0;
    bool output_rows = false;  // one row per wanted logits instead of one per token
};

enum class Op : uint8_t { embed, rms_norm, linears, moe, store, attend, swiglu, add, scale, output_rows };
enum class Epilogue : uint8_t { none, swiglu, residual };

struct Step {
    Op op{};
    Epilogue epilogue{};
    bool barrier_before = false;
    bool adjacent = false;             // rotary pairs side by side
    std::vector<int> inputs, outputs;  // values
    std::vector<int> matrices;         // linears, embed; of moe the router, then gate, up and down of all experts
    std::vector<int> biases;           // a vector for each matrix, -1 for none
    int norm = -1, k_norm = -1;        // vectors
    float eps = 0, factor = 1, softcap = 0;
    int layer = 0, head_dim = 0, n_rot = 0, window = 0;
    int n_experts = 0, n_used = 0;
    bool sigmoid = false, normalize = false;
    float weights_scale = 1;
};

// Where the rows of a moe step go, as each worker has it for itself. A slot is a row in one of its experts; slots lie
// by expert, and within an expert by row.
struct Routes {
    std::vector<int32_t> chosen;                  // [n_used], of a single row
    std::vector<float> shares;                    // [n_used], of a single row
    std::vector<int32_t> first;                   // [n_experts + 1]: an expert's first slot
    std::vector<int32_t> active;                  // experts that have slots, ascending
    std::vector<int32_t> row;                     // [slots]
    std::vector<float> weight;                    // [slots]
    std::vector<ActivationRow> input[3], hidden;  // [n_used], of a single row
    Memory memory;                                // of `hidden`
};

// One step's inputs, as Batch in Python has them, and cos and sin of each row's position.
struct BatchView {
    int64_t n_rows = 0, n_sequences = 0, n_output = 0, max_pages = 0;
    const int32_t* tokens = nullptr;
    const int32_t* positions = nullptr;
    const int32_t* offsets = nullptr;
    const int32_t* pages = nullptr;
    const int32_t* output_rows = nullptr;
    const float* cosines = nullptr;  // [positions, n_rot / 2]
    const float* sines = nullptr;
    int64_t n_turns = 0;  // positions that the tables hold
};

class Program {
  public:
    Program(const KernelTable& kernels, int n_threads, int64_t max_rows, size_t arena_bytes, int64_t max_context);

    ~Program() { stop_preparing(); }
    int add_matrix(int ggml_type, int64_t rows, int64_t columns, const uint8_t* source, bool mapped);
    int add_vector(const float* data, int64_t n);
    int add_value(size_t offset, int64_t width, bool output_rows);
    void add_step(Step step);
    // Called once after the last add: sizes the scratch memory.
    void finish();

    // Gives a matrix room for its packed panels (or takes it away with null).
    void set_packed(int matrix, uint8_t* memory);
    // Panels of a matrix that are packed so far.
    int64_t panels_done(int matrix) const;
    // Packs what has room, in order of use, on a thread of its own, until it is done or a run begins: that packs the
    // rest itself, with all its threads.
    void prepare();
    void stop_preparing();

    // Runs steps [first, last). Throws std::invalid_argument for a batch that does not fit. Returns false where the
    // cancel flag stopped it.
    bool run(const BatchView& batch, Cache& cache, int first, int last);
    void cancel() { cancel_.store(true, std::memory_order_relaxed); }

    float* value(int id) { return reinterpret_cast<float*>(arena_.data() + values_[size_t(id)].offset); }
    int64_t value_width(int id) const { return values_[size_t(id)].width; }
    int64_t value_rows(int id, const BatchView& b) const {
        return values_[size_t(id)].output_rows ? b.n_output : b.n_rows;
    }
    int n_steps() const { return int(steps_.size()); }
    int n_threads() const { return pool_.size(); }
    const char* level() const { return kernels_.name; }

    // Nanoseconds spent in each step by worker 0 since the last reset, barriers included in the step that waits.
    std::vector<int64_t>& times() { return times_; }
    void set_profiling(bool on) { profiling_ = on; }

  private:
    friend struct Worker;
    void check(const BatchView& batch, const Cache& cache, int first, int last) const;
    void work(int worker);
    void pack(Matrix& matrix, int64_t panel, uint8_t* to);
    void finish_moe();

    const KernelTable& kernels_;
    Pool pool_;
    const int64_t max_rows_, max_context_;
    Memory arena_;
    std::vector<Matrix> matrices_;
    std::vector<Vector> vectors_;
    std::vector<ValueSlot> values_;
    std::vector<Step> steps_;

    // Quantized activations of one linears step, shared by all workers; and each worker's own copy for a single row.
    size_t activation_bytes_ = 0, norm_bytes_ = 0, panel_bytes_ = 0, partial_numbers_ = 0, own_bytes_ = 0,
           open_bytes_ = 0;
    size_t attend_numbers_ = 0;  // scratch of the attention kernel
    Memory activations_, partials_;
    std::vector<Memory> own_;
    std::vector<ActivationRow> activation_rows_[3];
    std::unique_ptr<std::atomic<int64_t>[]> next_;      // [2][n_steps]: the next task to take, and of a second round
    std::unique_ptr<std::atomic<int32_t>[]> finished_;  // attention splits that are done, per row and KV head
    std::vector<int32_t> row_sequence_;
    std::vector<int64_t> row_blocks_;  // where blocks of at most kAttendRows rows of one sequence begin, and their end

    // Of one moe step. Prepared inputs of slots make room for prepared hidden rows.
    size_t slot_bytes_ = 0;
    std::vector<Routes> routes_;                             // of each worker
    std::vector<float> logits_;                              // [rows, n_experts]
    std::vector<int32_t> chosen_;                            // [rows, n_used], ascending within a row
    std::vector<float> shares_;                              // [rows, n_used]
    Memory slots_, hidden_;                                  // [slots, slot_bytes_], f32 [slots, ffn]
    std::vector<ActivationRow> slot_rows_[3], hidden_rows_;  // [slots]

    std::thread preparing_;
    std::atomic<bool> stop_preparing_{false};

    // Of the present run.
    const BatchView* batch_ = nullptr;
    Cache* cache_ = nullptr;
    int first_ = 0, last_ = 0;
    std::atomic<bool> cancel_{false};
    // The step that all workers stop before. A flag would not do: worker 0 may set it at its next barrier while a
    // slow worker still looks at it after the last one, and leaves alone.
    std::atomic<int> stop_at_{INT_MAX};
    bool profiling_ = false;
    std::vector<int64_t> times_;
};

}  // namespace woolly
