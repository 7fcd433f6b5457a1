// What one thread does with one step. Each op is a member; ops/ holds their bodies.
#pragma once

#include <algorithm>

#include "program/program.h"

namespace woolly {

constexpr int kAttendRows = 8;  // rows of a sequence that look at the past together
constexpr int kSplit = 128;     // positions of one attention task: fixed, so that results do not depend on the threads
constexpr size_t kPartialBytes = size_t{256} << 20;  // most for the sums of splits that are computed apart

constexpr size_t aligned(size_t n) { return (n + 63) & ~size_t{63}; }

// Bytes of one prepared row: f32, or quants, then scales, then sums (and what minima need of them).
size_t activation_row_bytes(Activation kind, int64_t columns);

// Attention in progress: for each query the sum of exp(score - max) * v, the maximum, and the sum of exp(score - max).
struct Softmax {
    float *out, *max, *sum;

    // The i-th in an array of such, for n queries each.
    Softmax(float* base, int64_t i, int n, int head_dim)
        : out(base + i * n * (head_dim + 2)), max(out + n * head_dim), sum(max + n) {}
    // Without the first n queries.
    Softmax from(int n, int head_dim) const {
        Softmax rest = *this;
        rest.out += n * head_dim, rest.max += n, rest.sum += n;
        return rest;
    }
};

struct Worker {
    Program& p;
    const int id;
    const BatchView& batch;
    Cache& cache;

    void run(const Step& step, int index);

    void embed(const Step& step);
    void rms_norm(const Step& step);
    void linears(const Step& step, int index);
    void moe(const Step& step, int index);
    void store(const Step& step);
    void attend(const Step& step, int index);
    void elementwise(const Step& step);
    void output_rows(const Step& step);

    // This worker's share of n things: [first, last).
    struct Range {
        int64_t first, last;
    };
    Range share(int64_t n) const {
        const int64_t threads = p.pool_.size();
        return {n * id / threads, n * (id + 1) / threads};
    }
    const float* in(const Step& step, int i) const { return p.value(step.inputs[size_t(i)]); }
    float* out(const Step& step, int i = 0) const { return p.value(step.outputs[size_t(i)]); }
    int64_t rows(const Step& step) const { return p.value_rows(step.outputs[0], batch); }

  private:
    const ActivationRow* prepare(const Step& step, Activation kind, int64_t n_rows, bool own);
    void prepare_row(const Step& step, Activation kind, int64_t row, uint8_t* memory, float* normed, ActivationRow* to);
    // x in one of the three forms, in `memory`; as f32 it stays where it is.
    void quantize_row(Activation kind, const float* x, int64_t columns, uint8_t* memory, ActivationRow* to);
    // `prepared`: the input of the step in each of the forms that its matrices need.
    void panel(const Step& step, size_t m, int64_t panel, const ActivationRow* const* prepared, int64_t first,
               int64_t last);
    // silu(gate) * up of rows [first, last), to their rows of `to`, which are as wide as the matrices have rows.
    void gated(Matrix& gate, Matrix& up, int64_t panel, const ActivationRow* const* prepared, int64_t first,
               int64_t last, int gate_bias, int up_bias, float* to);
    void dot(const Matrix& matrix, const uint8_t* weights, const ActivationRow* rows, int n, float* tile);
    int64_t rows_per_task(bool whole, int64_t n_panels, int64_t n_rows) const;
    const uint8_t* packed(Matrix& matrix, int64_t panel, int slot);
    void finish_tile(const Step& step, size_t m, const float* tile, int64_t row, int n, int64_t column,
                     int64_t n_columns);
    // Sums of a block of rows with a panel, in this worker's own memory.
    float* tile() const { return reinterpret_cast<float*>(p.own_[size_t(id)].data() + p.own_bytes_ + p.open_bytes_); }

    // One of gate (0), up (1) and down (2) of an expert.
    Matrix& expert(const Step& step, int part, int64_t e) {
        return p.matrices_[size_t(step.matrices[size_t(1 + part * step.n_experts + e)])];
    }
    void score_experts(const Step& step, const ActivationRow* rows, int64_t n_rows);
    void choose_experts(const Step& step, int64_t row, int32_t* chosen, float* shares) const;
    void group_rows(const Step& step, int64_t n_rows, const int32_t* chosen, const float* shares);
    void down_panel(const Step& step, int64_t panel, const ActivationRow* hidden, int64_t n_rows);

    // Tasks 0 to n: of the first `fixed` a run for each worker, the rest taken in small pieces by whoever is free.
    template <class F>
    void take(std::atomic<int64_t>& next, int64_t fixed, int64_t n, const F& one) {
        const Range range = share(fixed);
        for (int64_t task = range.first; task < range.last; ++task) one(task);
        const int64_t piece = std::max<int64_t>(1, (n - fixed) / (8 * p.pool_.size()));
        for (;;) {
            const int64_t task = fixed + next.fetch_add(piece, std::memory_order_relaxed);
            if (task >= n) break;
            for (int64_t t = task; t < std::min(task + piece, n); ++t) one(t);
        }
    }
    void attend_blocks(const Step& step, int index);
    void attend_split(const Step& step, int64_t row, int n_rows, int kv_head, int split, float* memory,
                      const Softmax& to);
    void write_attention(const Step& step, int64_t row, int kv_head, const Softmax& from);
    // The first position that a row sees.
    int seen_from(const Step& step, int64_t row) const {
        return step.window > 0 ? std::max(0, batch.positions[row] - step.window + 1) : 0;
    }
};

}  // namespace woolly
