// Shared code of linears and moe: the input of a step, normed and quantized, times panels of 16 weight rows.
#pragma once

#include <vector>

#include "cpu/ops/activations.h"
#include "cpu/program/arguments.h"
#include "cpu/program/worker.h"

namespace woolly {

constexpr Activation kActivations[] = {Activation::f32, Activation::q8_32, Activation::q8_256};

// Bytes of one prepared row: f32; or quants, scales, sums (and data for minima).
size_t activation_row_bytes(Activation kind, int64_t columns);

// Prepared inputs of one step, shared by all workers.
struct Activations final : Scratch {
    size_t row_bytes = 0, parts = 1;  // maximum over all steps
    Memory memory;
    std::vector<ActivationRow> rows[3];  // per kind
    // Row that a worker prepares for itself, in a separate cache line. Not thread_local: first use of such a variable
    // in a thread allocates.
    struct alignas(64) Own {
        ActivationRow of[3];
    };
    std::vector<Own> own;

    void allocate(const Program& program) override;
};

class Panels {
  public:
    // Reads input 0, and the step's norm and eps; other inputs are not normed. `matrices`: all matrices of the step, at
    // least one; the columns of the first divide the input width.
    Panels(const Arguments& arguments, const std::vector<Matrix*>& matrices, size_t input = 0);

    // Input in one of the three forms, for n rows from `first` on. If the input is a multiple of the matrices' columns,
    // it is split into parts of that width: the first part of all rows comes first. `own`: a single row of one part,
    // prepared by this worker in its own memory.
    const ActivationRow* prepare(const Worker& w, Activation kind, int64_t n_rows, bool own, int64_t first = 0) const;
    // One row of the input in one of the forms, without planes, in this worker's memory: valid until the next call.
    ActivationRow prepare_own(const Worker& w, Activation kind, int64_t row) const;
    // x in one of the three forms, in `memory`; f32 is not copied. Tiles need no planes.
    void quantize_row(Activation kind, const float* x, int64_t columns, uint8_t* memory, ActivationRow* to,
                      bool planes = true) const;
    // Packed panel: as stored, or packed into this worker's memory. `slot` 0 or 1.
    const uint8_t* packed(const Worker& w, Matrix& matrix, int64_t panel, int slot) const;
    // to[i * kPanel + row] = dot(panel row, activation i), for i < n, at most a block of rows.
    void dot(const Worker& w, const Matrix& matrix, const uint8_t* weights, const ActivationRow* rows, int n,
             float* to) const;
    // Epilogue of a product: times the scale, plus the bias of its row, plus an addend per activation (null: none).
    struct After {
        const float* bias = nullptr;
        float scale = 1.0f;
        const float* each = nullptr;  // [activations, rows of the matrix]

        // Same epilogue for activations from `first` on, for a matrix with this many rows.
        After from(int64_t first, int64_t rows) const {
            return {bias, scale, each == nullptr ? nullptr : each + first * rows};
        }
    };
    // act(gate) * up of rows [first, last), or act(up) if gate is null, written to their rows of `to`, whose width is
    // the matrices' row count. `prepared` is the input in each form that the two matrices need.
    void gated(const Worker& w, Matrix* gate, Matrix& up, int64_t panel, const ActivationRow* const* prepared,
               int64_t first, int64_t last, Gate how, After after_gate, After after_up, float* to) const;
    // Epilogue for sums of one panel with n rows, overwritten by it: act(gate) * up, written to `column` of rows of
    // `width`.
    void finish_gated(float* gate, float* up, int n, int64_t column, int64_t n_columns, Gate how, After after_gate,
                      After after_up, float* to, int64_t width) const;
    // Rows per task. Tasks are panels by blocks of rows: few enough rows that their activations stay in the cache from
    // panel to panel, and enough tasks for all threads. All rows in one task if panels are not packed yet, so that one
    // thread packs each.
    int64_t rows_per_task(bool whole, int64_t n_panels, int64_t n_rows) const;
    int64_t row_block() const { return kernels_.row_block; }
    int64_t columns() const { return columns_; }
    // Input from row `first` on, with a row stride of `width` numbers, if the f32 form is needed; else null.
    const float* plain(Activation kind, int64_t first) const {
        return kind == Activation::f32 && norm_ == nullptr && parts_ == 1 ? x_.data + first * x_.width : nullptr;
    }
    int64_t width() const { return x_.width; }
    // Bytes that this needs in a worker's memory.
    size_t own_bytes() const { return aligned(tile_at_ + 2 * size_t(kernels_.row_block) * kPanel * 4); }
    // Sums of two panels with a block of rows, in this worker's memory.
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
    bool floats_ = false;  // a matrix takes f32 input
    // Layout of a worker's memory: prepared row, normed row, two panels (gate and up), opened weights, tile.
    size_t row_bytes_ = 0, panel_bytes_ = 0, normed_at_ = 0, panels_at_ = 0, open_at_ = 0, tile_at_ = 0;
};

}  // namespace woolly
