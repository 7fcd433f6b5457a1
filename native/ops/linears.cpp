// linears: prepare the input once (norm, quantize), then panels of 16 rows of weights, each for many rows of the batch.
#include <algorithm>
#include <cstring>

#include "kernels/tune.h"
#include "program/worker.h"
#include "quant/pack.h"

namespace woolly {

namespace {

// ActivationRow says what that is. By bits, without a branch: the loop is vectorized.
bool are_ordinary(const float* x, size_t n) {
    constexpr uint32_t least = (127 - 60) << 23, most = (127 + 28) << 23;
    uint32_t others = 0;
    for (size_t i = 0; i < n; ++i) {
        uint32_t bits;
        std::memcpy(&bits, x + i, 4);
        bits &= 0x7fffffffu;
        others |= uint32_t(bits != 0) & uint32_t(bits - least >= most - least);
    }
    return others == 0;
}

}  // namespace

size_t activation_row_bytes(Activation kind, int64_t columns) {
    const size_t n = size_t(columns);
    if (kind == Activation::f32) return aligned(n * 4);
    if (kind == Activation::q8_32) return aligned(n) + 3 * aligned(n / 32 * 4);
    return aligned(n) + aligned(n / 256 * 4) + aligned(n / 16 * 4) + aligned(n / 256 * kPlanes);
}

void Program::finish() {
    size_t columns = 0;
    for (const Matrix& m : matrices_) {
        columns = std::max(columns, size_t(m.columns));
        panel_bytes_ = std::max(panel_bytes_, aligned(woolly::panel_bytes(m.info, m.columns)));
    }
    activation_bytes_ = 0;
    for (const Step& step : steps_) {
        if (step.op != Op::linears && step.op != Op::moe) continue;
        size_t sum = 0;
        for (const Activation kind : {Activation::f32, Activation::q8_32, Activation::q8_256})
            sum += activation_row_bytes(kind, matrices_[size_t(step.matrices[0])].columns);
        activation_bytes_ = std::max(activation_bytes_, sum);
    }
    norm_bytes_ = aligned(columns * 4);
    activations_ = Memory(activation_bytes_ * size_t(max_rows_));
    for (auto& rows : activation_rows_) rows.resize(size_t(max_rows_));
    row_sequence_.resize(size_t(max_rows_));
    row_blocks_.reserve(size_t(max_rows_) + 1);

    size_t group = 0, tile = 0;
    int64_t heads = 0;
    for (const Step& step : steps_) {
        if (step.op != Op::attend) continue;
        const int64_t width = values_[size_t(step.inputs[0])].width;
        group = std::max(group, size_t(width + 2 * (width / step.head_dim)) * 4);
        heads = std::max(heads, width / step.head_dim);
        // Of one block of rows: scratch for the kernel with each query's address and range, then sums of two splits. At
        // most all heads share one KV head.
        const size_t queries = size_t(kAttendRows * (width / step.head_dim));
        attend_numbers_ = std::max(attend_numbers_, size_t(kTileQueries * 16 + 32 * step.head_dim) + 4 * queries);
        tile = std::max(tile, 2 * queries * size_t(step.head_dim + 2));
    }
    // Splits are computed apart only where tasks are few and this has room for them (attend says when).
    const size_t splits = size_t(max_context_ / kSplit + 1),
                 rows = size_t(std::min<int64_t>(4 * pool_.size(), max_rows_));
    partial_numbers_ = std::min(group * splits * rows, kPartialBytes) / 4;
    partials_ = Memory(partial_numbers_ * 4);
    finished_ = std::make_unique<std::atomic<int32_t>[]>(rows * size_t(heads + 1));
    next_ = std::make_unique<std::atomic<int64_t>[]>(2 * steps_.size());
    times_.assign(steps_.size(), 0);
    for (Matrix& m : matrices_) {
        const Wide& wide = kernels_.wide[m.type];
        if (wide.dot == nullptr) continue;
        m.wide_from = wide_from(kernels_, m.type);
        open_bytes_ = std::max(open_bytes_, aligned(size_t(kWideColumns / wide.block * wide.open_bytes)));
    }
    // Each worker: a prepared row, a normed row, two panels (gate and up); then opened weights and sums of two panels
    // for a block of rows, or attention of a block of rows.
    own_bytes_ = aligned(activation_bytes_) + norm_bytes_ + 2 * panel_bytes_;
    for (int i = 0; i < pool_.size(); ++i)
        own_.emplace_back(own_bytes_ + std::max((attend_numbers_ + tile) * 4,
                                                open_bytes_ + 2 * size_t(kernels_.row_block) * kPanel * 4));
    finish_moe();
}

void Worker::prepare_row(const Step& step, Activation kind, int64_t row, uint8_t* memory, float* normed,
                         ActivationRow* to) {
    const int64_t columns = p.matrices_[size_t(step.matrices[0])].columns;
    const float* x = in(step, 0) + row * columns;
    if (step.norm >= 0) {
        float* y = kind == Activation::f32 ? reinterpret_cast<float*>(memory) : normed;
        p.kernels_.rms_norm(x, p.vectors_[size_t(step.norm)].data, step.eps, columns, y);
        x = y;
    }
    quantize_row(kind, x, columns, memory, to);
}

void Worker::quantize_row(Activation kind, const float* x, int64_t columns, uint8_t* memory, ActivationRow* to) {
    const size_t n = size_t(columns);
    *to = {x, nullptr, nullptr, nullptr, nullptr, nullptr, false};
    if (kind == Activation::f32) {
        if (p.kernels_.numbers) to->ordinary = are_ordinary(x, n);
        return;
    }
    int8_t* q = reinterpret_cast<int8_t*>(memory);
    const bool per_32 = kind == Activation::q8_32;
    float* scale = reinterpret_cast<float*>(memory + aligned(n));
    int32_t* sums = reinterpret_cast<int32_t*>(memory + aligned(n) + aligned(n / (per_32 ? 32 : 256) * 4));
    (per_32 ? p.kernels_.quantize_32 : p.kernels_.quantize_256)(x, columns, q, scale, sums);
    *to = {nullptr, q, scale, sums, nullptr, nullptr, false};
    if (per_32) {
        float* lows = reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(sums) + aligned(n / 32 * 4));
        for (size_t b = 0; b < n / 32; ++b) lows[b] = scale[b] * float(sums[b]);
        to->lows = lows;
        return;
    }
    int8_t* planes = reinterpret_cast<int8_t*>(sums) + aligned(n / 16 * 4);
    p.kernels_.planes(sums, columns, planes);
    to->planes = planes;
}

// The input of a step in one of the three forms, for all rows. `own`: by this worker alone, in its own memory.
const ActivationRow* Worker::prepare(const Step& step, Activation kind, int64_t n_rows, bool own) {
    const int64_t columns = p.matrices_[size_t(step.matrices[0])].columns;
    uint8_t* mine = p.own_[size_t(id)].data();
    float* normed = reinterpret_cast<float*>(mine + aligned(p.activation_bytes_));
    size_t at = 0;  // of this form within a prepared row
    for (int k = 0; k < int(kind); ++k) at += activation_row_bytes(Activation(k), columns);
    if (own) {
        static thread_local ActivationRow row[3];
        prepare_row(step, kind, 0, mine + at, normed, &row[int(kind)]);
        return &row[int(kind)];
    }
    ActivationRow* rows = p.activation_rows_[int(kind)].data();
    const Range range = share(n_rows);
    for (int64_t r = range.first; r < range.last; ++r)
        prepare_row(step, kind, r, p.activations_.data() + size_t(r) * p.activation_bytes_ + at, normed, rows + r);
    return rows;
}

// The panel in packed form: where it is kept, or made in this worker's own memory. `slot` 0 or 1.
const uint8_t* Worker::packed(Matrix& matrix, int64_t panel, int slot) {
    const size_t bytes = woolly::panel_bytes(matrix.info, matrix.columns);
    const bool kept = matrix.packed != nullptr;
    uint8_t* to =
        kept ? matrix.packed + size_t(panel) * bytes
             : p.own_[size_t(id)].data() + aligned(p.activation_bytes_) + p.norm_bytes_ + size_t(slot) * p.panel_bytes_;
    if (kept && matrix.done[size_t(panel)] != 0) return to;
    p.pack(matrix, panel, to);
    return to;
}

void Worker::finish_tile(const Step& step, size_t m, const float* tile, int64_t row, int n, int64_t column,
                         int64_t n_columns) {
    const int64_t width = p.value_width(step.outputs[m]);
    const float* bias = step.biases[m] < 0 ? nullptr : p.vectors_[size_t(step.biases[m])].data + column;
    for (int i = 0; i < n; ++i) {
        float* y = out(step, int(m)) + (row + i) * width + column;
        const float* residual =
            step.epilogue == Epilogue::residual ? in(step, 1) + (row + i) * width + column : nullptr;
        for (int64_t c = 0; c < n_columns; ++c) {
            float v = tile[i * kPanel + c];
            if (bias != nullptr) v += bias[c];
            v *= step.factor;
            y[c] = residual != nullptr ? residual[c] + v : v;
        }
    }
}

// tile[i * kPanel + row] = dot(panel row, activation i), for i < n, at most a block of rows.
void Worker::dot(const Matrix& matrix, const uint8_t* weights, const ActivationRow* rows, int n, float* tile) {
    const Wide& wide = p.kernels_.wide[matrix.type];
    if (n < std::atomic_ref(matrix.wide_from).load(std::memory_order_relaxed)) {
        for (int i = 0; i < n; i += kDotRows)
            p.kernels_.dot[matrix.type](weights, matrix.columns, rows + i, std::min(kDotRows, n - i),
                                        tile + i * kPanel);
        return;
    }
    uint8_t* open = p.own_[size_t(id)].data() + p.own_bytes_;
    std::memset(tile, 0, size_t(n) * kPanel * 4);
    for (int64_t c = 0; c < matrix.columns; c += kWideColumns) {
        const int64_t first = c / wide.block, blocks = std::min(kWideColumns, matrix.columns - c) / wide.block;
        wide.open(weights + first * wide.bytes, blocks, open);
        // What comes next in memory is what is opened next: the rest of this panel, or the next one.
        const uint8_t* next = weights + (first + blocks) * wide.bytes;
        Ahead ahead{next, next + kWideColumns / wide.block * wide.bytes};
        wide.dot(open, blocks, rows, first, n, tile, ahead);
    }
}

void Worker::panel(const Step& step, size_t m, int64_t panel, const ActivationRow* const* prepared, int64_t first,
                   int64_t last) {
    Matrix& matrix = p.matrices_[size_t(step.matrices[m])];
    if (step.epilogue == Epilogue::swiglu) {
        gated(matrix, p.matrices_[size_t(step.matrices[1])], panel, prepared, first, last, step.biases[0],
              step.biases[1], out(step));
        return;
    }
    const ActivationRow* rows = prepared[int(matrix.info.activation)];
    const int64_t column = panel * kPanel, block = p.kernels_.row_block;
    const int64_t n_columns = std::min<int64_t>(kPanel, matrix.rows - column);
    const uint8_t* weights = packed(matrix, panel, 0);
    for (int64_t r = first; r < last; r += block) {
        const int n = int(std::min(block, last - r));
        dot(matrix, weights, rows + r, n, tile());
        finish_tile(step, m, tile(), r, n, column, n_columns);
    }
}

// Gate and up: the same panel of both, then silu(gate) * up. Up may be of another type, with other activations.
void Worker::gated(Matrix& gate, Matrix& up, int64_t panel, const ActivationRow* const* prepared, int64_t first,
                   int64_t last, int gate_bias, int up_bias, float* to) {
    const ActivationRow* gate_rows = prepared[int(gate.info.activation)];
    const ActivationRow* up_rows = prepared[int(up.info.activation)];
    const int64_t column = panel * kPanel, block = p.kernels_.row_block;
    const int64_t n_columns = std::min<int64_t>(kPanel, gate.rows - column);
    const uint8_t* gate_weights = packed(gate, panel, 0);
    const uint8_t* up_weights = packed(up, panel, 1);
    float *y = tile(), *second = y + block * kPanel;
    const auto add_bias = [&](float* t, int n, int bias) {
        if (bias < 0) return;
        for (int i = 0; i < n; ++i)
            for (int64_t c = 0; c < n_columns; ++c) t[i * kPanel + c] += p.vectors_[size_t(bias)].data[column + c];
    };
    for (int64_t r = first; r < last; r += block) {
        const int n = int(std::min(block, last - r));
        dot(gate, gate_weights, gate_rows + r, n, y);
        dot(up, up_weights, up_rows + r, n, second);
        add_bias(y, n, gate_bias);
        add_bias(second, n, up_bias);
        p.kernels_.swiglu(y, second, n * kPanel, y);
        for (int i = 0; i < n; ++i)
            std::memcpy(to + (r + i) * gate.rows + column, y + i * kPanel, size_t(n_columns) * 4);
    }
}

// Tasks are panels by blocks of rows: few enough rows that their activations stay in the cache from panel to panel, and
// enough tasks for all threads. All rows at once where panels have still to be packed, each by one thread.
int64_t Worker::rows_per_task(bool whole, int64_t n_panels, int64_t n_rows) const {
    if (!whole) return n_rows;
    int64_t each = p.kernels_.row_block;
    while (each > 16 && n_panels * ((n_rows + each - 1) / each) < 8 * p.pool_.size()) each /= 2;
    return std::min(each, n_rows);
}

void Worker::linears(const Step& step, int index) {
    const int64_t n_rows = rows(step);
    if (n_rows == 0) return;
    const size_t n_matrices = step.epilogue == Epilogue::swiglu ? 1 : step.matrices.size();
    bool needed[3] = {};
    for (const int m : step.matrices) needed[int(p.matrices_[size_t(m)].info.activation)] = true;
    // A single row is prepared by every worker for itself: cheaper than waiting for one to do it.
    const bool own = n_rows == 1;
    const ActivationRow* prepared[3] = {};
    for (int k = 0; k < 3; ++k)
        if (needed[k]) prepared[k] = prepare(step, Activation(k), n_rows, own);
    if (!own) p.pool_.barrier();

    int64_t n_panels = 0;
    bool whole = true;
    for (const int m : step.matrices) whole = whole && p.matrices_[size_t(m)].whole;
    for (size_t m = 0; m < n_matrices; ++m) n_panels += p.matrices_[size_t(step.matrices[m])].n_panels();
    const int64_t rows_each = rows_per_task(whole, n_panels, n_rows);
    const int64_t n_tasks = n_panels * ((n_rows + rows_each - 1) / rows_each);
    const auto one = [&](int64_t task) {
        const int64_t first = task / n_panels * rows_each;
        task %= n_panels;
        size_t m = 0;
        while (task >= p.matrices_[size_t(step.matrices[m])].n_panels())
            task -= p.matrices_[size_t(step.matrices[m++])].n_panels();
        panel(step, m, task, prepared, first, std::min(first + rows_each, n_rows));
    };
    take(p.next_[size_t(index)], n_tasks * 3 / 4, n_tasks, one);
}

}  // namespace woolly
