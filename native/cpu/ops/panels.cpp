#include "cpu/ops/panels.h"

#include <algorithm>
#include <cstring>

#include "cpu/kernels/tune.h"
#include "cpu/weights/pack.h"

namespace woolly {

namespace {

constexpr int64_t kFloatBytes = 1 << 20;  // maximum size of a task's f32 rows

// Computes ActivationRow::ordinary. Tests bits without a branch, so that the loop is vectorized.
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

void Activations::allocate(const Program& program) {
    memory = Memory(row_bytes * size_t(program.max_rows()));
    for (auto& all : rows) all.resize(parts * size_t(program.max_rows()));
    own.resize(size_t(program.n_threads()));
}

Panels::Panels(const Arguments& a, const std::vector<Matrix*>& matrices, size_t input)
    : program_(*a.program),
      kernels_(a.program->kernels()),
      x_(a.input(input)),
      columns_(matrices[0]->columns),
      parts_(std::max<int64_t>(1, x_.width / columns_)),
      norm_(input == 0 ? a.vector("norm") : nullptr),
      eps_(a.attributes.contains("eps") ? a.number("eps") : 0.0f),
      activations_(a.program->scratch<Activations>()) {
    for (const Activation kind : kActivations) row_bytes_ += activation_row_bytes(kind, columns_);
    activations_.row_bytes = std::max(activations_.row_bytes, row_bytes_ * size_t(parts_));
    activations_.parts = std::max(activations_.parts, size_t(parts_));
    size_t open_bytes = 0;
    for (Matrix* m : matrices) {
        panel_bytes_ = std::max(panel_bytes_, aligned(panel_bytes(m->info, m->columns)));
        floats_ = floats_ || m->info.activation == Activation::f32;
        const Wide& wide = kernels_.wide[m->type];
        if (wide.dot == nullptr) continue;
        m->wide_from = wide_from(kernels_, m->type);
        open_bytes = std::max(open_bytes, aligned(size_t(kWideColumns / wide.block * wide.open_bytes)));
    }
    normed_at_ = aligned(row_bytes_);
    panels_at_ = normed_at_ + aligned(size_t(columns_) * 4);
    open_at_ = panels_at_ + 2 * panel_bytes_;
    tile_at_ = open_at_ + open_bytes;
    a.program->need_own(own_bytes());
}

void Panels::prepare_row(Activation kind, const float* x, uint8_t* memory, float* normed, ActivationRow* to,
                         bool planes) const {
    if (norm_ != nullptr) {
        float* y = kind == Activation::f32 ? reinterpret_cast<float*>(memory) : normed;
        kernels_.rms_norm(x, norm_->data, eps_, columns_, y);
        x = y;
    }
    quantize_row(kind, x, columns_, memory, to, planes);
}

void Panels::quantize_row(Activation kind, const float* x, int64_t columns, uint8_t* memory, ActivationRow* to,
                          bool planes) const {
    const size_t n = size_t(columns);
    *to = {x, nullptr, nullptr, nullptr, nullptr, nullptr, false};
    if (kind == Activation::f32) {
        if (kernels_.f16_must_be_finite) to->ordinary = are_ordinary(x, n);
        return;
    }
    int8_t* q = reinterpret_cast<int8_t*>(memory);
    const bool per_32 = kind == Activation::q8_32;
    float* scale = reinterpret_cast<float*>(memory + aligned(n));
    int32_t* sums = reinterpret_cast<int32_t*>(memory + aligned(n) + aligned(n / (per_32 ? 32 : 256) * 4));
    (per_32 ? kernels_.quantize_32 : kernels_.quantize_256)(x, columns, q, scale, sums);
    *to = {nullptr, q, scale, sums, nullptr, nullptr, false};
    if (per_32) {
        float* lows = reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(sums) + aligned(n / 32 * 4));
        for (size_t b = 0; b < n / 32; ++b) lows[b] = scale[b] * float(sums[b]);
        to->lows = lows;
        return;
    }
    if (!planes) return;
    int8_t* at = reinterpret_cast<int8_t*>(sums) + aligned(n / 16 * 4);
    kernels_.planes(sums, columns, at);
    to->planes = at;
}

const ActivationRow* Panels::prepare(const Worker& w, Activation kind, int64_t n_rows, bool own, int64_t first) const {
    float* normed = reinterpret_cast<float*>(w.own() + normed_at_);
    size_t at = 0;  // offset of this form within a prepared row
    for (int k = 0; k < int(kind); ++k) at += activation_row_bytes(Activation(k), columns_);
    if (own) {
        ActivationRow* row = &activations_.own[size_t(w.id)].of[int(kind)];
        prepare_row(kind, x_.data + first * x_.width, w.own() + at, normed, row, true);
        return row;
    }
    ActivationRow* rows = activations_.rows[int(kind)].data();
    w.take(n_rows * parts_, [&](int64_t i) {
        const float* x = x_.data + (first + i % n_rows) * x_.width + i / n_rows * columns_;
        prepare_row(kind, x, activations_.memory.data() + size_t(i) * row_bytes_ + at, normed, rows + i, true);
    });
    return rows;
}

ActivationRow Panels::prepare_own(const Worker& w, Activation kind, int64_t row) const {
    ActivationRow to;
    prepare_row(kind, x_.data + row * x_.width, w.own(), reinterpret_cast<float*>(w.own() + normed_at_), &to, false);
    return to;
}

const uint8_t* Panels::packed(const Worker& w, Matrix& matrix, int64_t panel, int slot) const {
    const size_t bytes = panel_bytes(matrix.info, matrix.columns);
    const bool kept = matrix.packed != nullptr;
    uint8_t* to = kept ? matrix.packed + size_t(panel) * bytes : w.own() + panels_at_ + size_t(slot) * panel_bytes_;
    if (kept && matrix.done[size_t(panel)] != 0) return to;
    program_.pack(matrix, panel, to);
    return to;
}

void Panels::dot(const Worker& w, const Matrix& matrix, const uint8_t* weights, const ActivationRow* rows, int n,
                 float* to) const {
    const Wide& wide = kernels_.wide[matrix.type];
    if (n < std::atomic_ref(matrix.wide_from).load(std::memory_order_relaxed)) {
        for (int i = 0; i < n; i += kDotRows)
            kernels_.dot[matrix.type](weights, matrix.columns, rows + i, std::min(kDotRows, n - i), to + i * kPanel);
        return;
    }
    uint8_t* open = w.own() + open_at_;
    std::memset(to, 0, size_t(n) * kPanel * 4);
    for (int64_t c = 0; c < matrix.columns; c += kWideColumns) {
        const int64_t first = c / wide.block, blocks = std::min(kWideColumns, matrix.columns - c) / wide.block;
        wide.open(weights + first * wide.bytes, blocks, open);
        // Weights opened next are the next in memory: the rest of this panel, or the next panel.
        const uint8_t* next = weights + (first + blocks) * wide.bytes;
        Ahead ahead{next, next + kWideColumns / wide.block * wide.bytes};
        wide.dot(open, blocks, rows, first, n, to, ahead);
    }
}

void Panels::finish_gated(float* gate, float* up, int n, int64_t column, int64_t n_columns, Gate how, After after_gate,
                          After after_up, float* to, int64_t width) const {
    const auto finish = [&](float* t, After after) {
        if (after.scale != 1.0f)
            for (int i = 0; i < n * kPanel; ++i) t[i] *= after.scale;
        if (after.bias != nullptr)
            for (int i = 0; i < n; ++i)
                for (int64_t c = 0; c < n_columns; ++c) t[i * kPanel + c] += after.bias[column + c];
        if (after.each != nullptr)
            for (int i = 0; i < n; ++i)
                for (int64_t c = 0; c < n_columns; ++c) t[i * kPanel + c] += after.each[i * width + column + c];
    };
    finish(up, after_up);
    if (gate != nullptr) {
        finish(gate, after_gate);
        gate_with(kernels_, how, gate, up, n * kPanel, up);
    } else {
        activate(kernels_, how.act, up, n * kPanel, up);
    }
    to += column;
    if (n_columns == kPanel) {  // inlined copy
        for (int i = 0; i < n; ++i) std::memcpy(to + i * width, up + i * kPanel, kPanel * 4);
    } else {
        for (int i = 0; i < n; ++i) std::memcpy(to + i * width, up + i * kPanel, size_t(n_columns) * 4);
    }
}

// Same panel of gate and up. Up may have another type, with other activations.
void Panels::gated(const Worker& w, Matrix* gate, Matrix& up, int64_t panel, const ActivationRow* const* prepared,
                   int64_t first, int64_t last, Gate how, After after_gate, After after_up, float* to) const {
    const int64_t column = panel * kPanel, block = row_block();
    const int64_t n_columns = std::min<int64_t>(kPanel, up.rows - column);
    const uint8_t* gate_weights = gate == nullptr ? nullptr : packed(w, *gate, panel, 0);
    const uint8_t* up_weights = packed(w, up, panel, 1);
    float *sums = tile(w), *gates = gate == nullptr ? nullptr : sums + block * kPanel;
    for (int64_t r = first; r < last; r += block) {
        const int n = int(std::min(block, last - r));
        if (gate != nullptr) dot(w, *gate, gate_weights, prepared[int(gate->info.activation)] + r, n, gates);
        dot(w, up, up_weights, prepared[int(up.info.activation)] + r, n, sums);
        finish_gated(gates, sums, n, column, n_columns, how, after_gate.from(r, up.rows), after_up.from(r, up.rows),
                     to + r * up.rows, up.rows);
    }
}

int64_t Panels::rows_per_task(bool whole, int64_t n_panels, int64_t n_rows) const {
    if (!whole) return n_rows;
    int64_t each = row_block();
    // Rows of f32 are four times as long as quants, and must still fit the cache.
    while (floats_ && each > 16 && each * columns_ * 4 > kFloatBytes) each /= 2;
    while (each > 16 && n_panels * ((n_rows + each - 1) / each) < 8 * program_.n_threads()) each /= 2;
    return std::min(each, n_rows);
}

}  // namespace woolly
