// What linears and moe share: the input of a step, normed and quantized, times panels of 16 rows of weights.
#pragma once

#include <vector>

#include "cpu/ops/activations.h"
#include "cpu/program/arguments.h"
#include "cpu/program/worker.h"

namespace woolly {

constexpr Activation kActivations[] = {Activation::f32, Activation::q8_32, Activation::q8_256};

// Bytes of one prepared row: f32, or quants, then scales, then sums (and what minima need of them).
size_t activation_row_bytes(Activation kind, int64_t columns);

// Prepared inputs of one step, shared by all workers.
struct Activations final : Scratch {
    size_t row_bytes = 0, parts = 1;  // most that a step needs of each row
    Memory memory;
    std::vector<ActivationRow> rows[3];  // of each kind
    // The row that a worker prepares for itself, in a cache line of its own. Not thread_local: a thread's first use of
    // such a variable asks for memory.
    struct alignas(64) Own {
        ActivationRow of[3];
    };
    std::vector<Own> own;

    void allocate(const Program& program) override;
};

class Panels {
  public:
    // Reads input 0, and the step's norm and eps; another input is read as it is. `matrices` are all that the step
    // multiplies with, at least one; the first one's columns divide the width of the input.
    Panels(const Arguments& arguments, const std::vector<Matrix*>& matrices, size_t input = 0);

    // The input in one of the three forms, for n rows from `first` on. An input that is a multiple as wide as the
    // matrices have columns is cut into parts of that width: first those of the first part, for all rows. `own`: one
    // row of one part, by this worker alone, in its own memory.
    const ActivationRow* prepare(const Worker& w, Activation kind, int64_t n_rows, bool own, int64_t first = 0) const;
    // One row of the input in one of the forms, without planes, in this worker's own memory: until the next call.
    ActivationRow prepare_own(const Worker& w, Activation kind, int64_t row) const;
    // x in one of the three forms, in `memory`; as f32 it stays where it is. Tiles need no planes.
    void quantize_row(Activation kind, const float* x, int64_t columns, uint8_t* memory, ActivationRow* to,
                      bool planes = true) const;
    // The panel in packed form: as it is kept, or packed into this worker's own memory. `slot` 0 or 1.
    const uint8_t* packed(const Worker& w, Matrix& matrix, int64_t panel, int slot) const;
    // to[i * kPanel + row] = dot(panel row, activation i), for i < n, at most a block of rows.
    void dot(const Worker& w, const Matrix& matrix, const uint8_t* weights, const ActivationRow* rows, int n,
             float* to) const;
    // What becomes of a product: times the scale, plus the bias of its row, plus what its activation has of its own
    // (null for none).
    struct After {
        const float* bias = nullptr;
        float scale = 1.0f;
        const float* each = nullptr;  // [activations, rows of the matrix]

        // The same for activations from `first` on, if the matrix has this many rows.
        After from(int64_t first, int64_t rows) const {
            return {bias, scale, each == nullptr ? nullptr : each + first * rows};
        }
    };
    // act(gate) * up of rows [first, last), or act(up) if gate is null, to their rows of `to`, which are as wide as the
    // matrices have rows. `prepared` is the input in each form that the two need.
    void gated(const Worker& w, Matrix* gate, Matrix& up, int64_t panel, const ActivationRow* const* prepared,
               int64_t first, int64_t last, Gate how, After after_gate, After after_up, float* to) const;
    // The end of it for sums of one panel with n rows, which it overwrites: act(gate) * up to `column` of rows that are
    // `width` wide.
    void finish_gated(float* gate, float* up, int n, int64_t column, int64_t n_columns, Gate how, After after_gate,
                      After after_up, float* to, int64_t width) const;
    // Rows of a task. Tasks are panels by blocks of rows: few enough rows that their activations stay in the cache from
    // panel to panel, and enough tasks for all threads. All rows at once if panels are still to be packed, each by one
    // thread.
    int64_t rows_per_task(bool whole, int64_t n_panels, int64_t n_rows) const;
    int64_t row_block() const { return kernels_.row_block; }
    int64_t columns() const { return columns_; }
    // The input from row `first` on, whose rows are `width` numbers apart, if it is needed as it is; else null.
    const float* plain(Activation kind, int64_t first) const {
        return kind == Activation::f32 && norm_ == nullptr && parts_ == 1 ? x_.data + first * x_.width : nullptr;
    }
    int64_t width() const { return x_.width; }
    // What it takes of a worker's own memory.
    size_t own_bytes() const { return aligned(tile_at_ + 2 * size_t(kernels_.row_block) * kPanel * 4); }
    // Sums of two panels with a block of rows, in this worker's own memory.
    float* tile(const Worker& w) const { return reinterpret_cast<float*>(w.own() + tile_at_); }

  private:
    void prepare_row(Activation kind, const float* x, uint8_t* memory, float* normed, ActivationRow* to,
                     bool planes) const;

    Program& program_;
    const KernelTable& kernels_;
    const Value x_;
    const int64_t columns_, parts_;
    const Vector* const norm_;
    const float eps_;
    Activations& activations_;
    bool floats_ = false;  // whether a matrix takes the input as f32
    // Layout of a worker's own memory: a prepared row, a normed row, two panels (gate and up), opened weights, the
    // tile.
    size_t row_bytes_ = 0, panel_bytes_ = 0, normed_at_ = 0, panels_at_ = 0, open_at_ = 0, tile_at_ = 0;
};

}  // namespace woolly
