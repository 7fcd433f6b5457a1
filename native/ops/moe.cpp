// moe: the router scores all experts, each row goes to the best, and rows are computed together expert by expert.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "program/worker.h"

namespace woolly {

namespace {

// Added to the sum that weights are divided by: all sigmoids of a row may be 0.
constexpr float kLeast = 1e-20f;

// A prepared row once more, in other memory: rows of one expert must lie at equal distances (kernels/table.h).
ActivationRow copied(const ActivationRow& from, Activation kind, int64_t columns, uint8_t* to) {
    const bool whole = kind == Activation::f32;
    const uint8_t* base = whole ? reinterpret_cast<const uint8_t*>(from.x) : reinterpret_cast<const uint8_t*>(from.q);
    std::memcpy(to, base, whole ? size_t(columns) * 4 : activation_row_bytes(kind, columns));
    const auto moved = [&]<class T>(const T* part) -> const T* {
        if (part == nullptr) return nullptr;
        return reinterpret_cast<const T*>(to + (reinterpret_cast<const uint8_t*>(part) - base));
    };
    return {moved(from.x),    moved(from.q),      moved(from.scale), moved(from.sums),
            moved(from.lows), moved(from.planes), from.ordinary};
}

}  // namespace

// Scratch of the largest moe step; nothing where there is none.
void Program::finish_moe() {
    size_t n_experts = 0, n_used = 0, ffn = 0;
    for (const Step& step : steps_) {
        if (step.op != Op::moe) continue;
        const auto kind = [&](int part) {
            return matrices_[size_t(step.matrices[size_t(1 + part * step.n_experts)])].info.activation;
        };
        const Matrix& gate = matrices_[size_t(step.matrices[1])];
        size_t input = activation_row_bytes(kind(0), gate.columns);
        if (kind(1) != kind(0)) input += activation_row_bytes(kind(1), gate.columns);
        slot_bytes_ = std::max({slot_bytes_, input, activation_row_bytes(kind(2), gate.rows)});
        n_experts = std::max(n_experts, size_t(step.n_experts));
        n_used = std::max(n_used, size_t(step.n_used));
        ffn = std::max(ffn, size_t(gate.rows));
    }
    if (n_used == 0) return;
    const size_t n_rows = size_t(max_rows_), n_slots = n_rows * n_used;
    logits_.resize(n_rows * n_experts);
    chosen_.resize(n_slots);
    shares_.resize(n_slots);
    slots_ = Memory(n_slots * slot_bytes_);
    hidden_ = Memory(n_slots * ffn * 4);
    for (auto& rows : slot_rows_) rows.resize(n_slots);
    hidden_rows_.resize(n_slots);
    routes_.resize(size_t(pool_.size()));
    for (Routes& routes : routes_) {
        routes.chosen.resize(n_used);
        routes.shares.resize(n_used);
        routes.first.resize(n_experts + 1);
        routes.active.reserve(n_experts);
        routes.row.resize(n_slots);
        routes.weight.resize(n_slots);
        for (auto& rows : routes.input) rows.resize(n_used);
        routes.hidden.resize(n_used);
        routes.memory = Memory(n_used * slot_bytes_);
    }
}

// Logits of all experts for all rows.
void Worker::score_experts(const Step& step, const ActivationRow* rows, int64_t n_rows) {
    Matrix& router = p.matrices_[size_t(step.matrices[0])];
    const float* bias = step.biases[0] < 0 ? nullptr : p.vectors_[size_t(step.biases[0])].data;
    const int64_t n_panels = router.n_panels(), block = p.kernels_.row_block;
    const int64_t rows_each = rows_per_task(router.whole, n_panels, n_rows);
    const Range range = share(n_panels * ((n_rows + rows_each - 1) / rows_each));
    for (int64_t task = range.first; task < range.last; ++task) {
        const int64_t first = task / n_panels * rows_each, last = std::min(first + rows_each, n_rows);
        const int64_t panel = task % n_panels, column = panel * kPanel;
        const int64_t n_columns = std::min<int64_t>(kPanel, router.rows - column);
        const uint8_t* weights = packed(router, panel, 0);
        for (int64_t r = first; r < last; r += block) {
            const int n = int(std::min(block, last - r));
            dot(router, weights, rows + r, n, tile());
            for (int i = 0; i < n; ++i)
                for (int64_t c = 0; c < n_columns; ++c)
                    p.logits_[size_t((r + i) * router.rows + column + c)] =
                        tile()[i * kPanel + c] + (bias == nullptr ? 0.0f : bias[column + c]);
        }
    }
}

// The experts of one row in ascending order, and their weights. By logits, in whose order the scores are: two of them
// are equal more rarely. Of equal ones the lower index is chosen.
void Worker::choose_experts(const Step& step, int64_t row, int32_t* chosen, float* shares) const {
    const float* logits = p.logits_.data() + row * step.n_experts;
    const int k = step.n_used;
    for (int32_t e = 0; e < step.n_experts; ++e) {
        int at = std::min(int(e), k);
        if (at == k && !(logits[e] > logits[chosen[--at]])) continue;
        for (; at > 0 && logits[e] > logits[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
        chosen[at] = e;
    }
    const float top = logits[chosen[0]];
    std::sort(chosen, chosen + k);
    const auto score = [&](int32_t e) {
        return step.sigmoid ? 1.0f / (1.0f + std::exp(-logits[e])) : std::exp(logits[e] - top);
    };
    float sum = 0;
    for (int j = 0; j < k; ++j) sum += shares[j] = score(chosen[j]);
    if (step.normalize)
        sum += kLeast;
    else if (step.sigmoid)
        sum = 1;
    else {
        sum = 0;
        for (int32_t e = 0; e < step.n_experts; ++e) sum += score(e);
    }
    for (int j = 0; j < k; ++j) shares[j] = shares[j] / sum * step.weights_scale;
}

// Slots by expert, within an expert by row. Each worker for itself: less work than a barrier.
void Worker::group_rows(const Step& step, int64_t n_rows, const int32_t* chosen, const float* shares) {
    Routes& routes = p.routes_[size_t(id)];
    const int64_t n_slots = n_rows * step.n_used;
    std::fill_n(routes.first.begin(), step.n_experts + 1, 0);
    for (int64_t i = 0; i < n_slots; ++i) ++routes.first[size_t(chosen[i])];
    routes.active.clear();
    int32_t end = 0;
    for (int32_t e = 0; e < step.n_experts; ++e) {
        if (routes.first[size_t(e)] > 0) routes.active.push_back(e);
        routes.first[size_t(e)] = end += routes.first[size_t(e)];
    }
    routes.first[size_t(step.n_experts)] = end;
    // Backwards, from each expert's end to its beginning.
    for (int64_t i = n_slots - 1; i >= 0; --i) {
        const size_t slot = size_t(--routes.first[size_t(chosen[i])]);
        routes.row[slot] = int32_t(i / step.n_used);
        routes.weight[slot] = shares[i];
    }
}

// 16 columns of the result, for all rows. A row's experts are added in ascending order, from zero: by one worker, so
// that neither threads nor other rows decide the order.
void Worker::down_panel(const Step& step, int64_t panel, const ActivationRow* hidden, int64_t n_rows) {
    const Routes& routes = p.routes_[size_t(id)];
    const int64_t width = p.value_width(step.outputs[0]), column = panel * kPanel, block = p.kernels_.row_block;
    const int64_t n_columns = std::min<int64_t>(kPanel, width - column);
    float* y = out(step) + column;
    for (int64_t r = 0; r < n_rows; ++r) std::fill_n(y + r * width, n_columns, 0.0f);
    for (const int32_t e : routes.active) {
        Matrix& down = expert(step, 2, e);
        const uint8_t* weights = packed(down, panel, 0);
        const int64_t last = routes.first[size_t(e) + 1];
        for (int64_t s = routes.first[size_t(e)]; s < last; s += block) {
            const int n = int(std::min(block, last - s));
            dot(down, weights, hidden + s, n, tile());
            for (int i = 0; i < n; ++i) {
                const float weight = routes.weight[size_t(s + i)];
                float* to = y + routes.row[size_t(s + i)] * width;
                for (int64_t c = 0; c < n_columns; ++c) to[c] += weight * tile()[i * kPanel + c];
            }
        }
    }
    const float* residual = step.epilogue == Epilogue::residual ? in(step, 1) + column : nullptr;
    for (int64_t r = 0; r < n_rows; ++r)
        for (int64_t c = r * width; c < r * width + n_columns; ++c) {
            const float v = y[c] * step.factor;
            y[c] = residual != nullptr ? residual[c] + v : v;
        }
}

void Worker::moe(const Step& step, int index) {
    const int64_t n_rows = rows(step), n_slots = n_rows * step.n_used;
    if (n_rows == 0) return;
    // A single row is prepared and routed by every worker for itself: cheaper than waiting for one to do it.
    const bool own = n_rows == 1;
    Routes& routes = p.routes_[size_t(id)];
    const Matrix& gate = expert(step, 0, 0);
    const Activation router_kind = p.matrices_[size_t(step.matrices[0])].info.activation;
    bool needed[3] = {};
    for (const int part : {0, 1}) needed[int(expert(step, part, 0).info.activation)] = true;
    const ActivationRow* prepared[3] = {};
    for (const Activation kind : {Activation::f32, Activation::q8_32, Activation::q8_256})
        if (needed[int(kind)] || kind == router_kind) prepared[int(kind)] = prepare(step, kind, n_rows, own);
    if (!own) p.pool_.barrier();
    score_experts(step, prepared[int(router_kind)], n_rows);
    p.pool_.barrier();

    int32_t* chosen = own ? routes.chosen.data() : p.chosen_.data();
    float* shares = own ? routes.shares.data() : p.shares_.data();
    const Range some = own ? Range{0, 1} : share(n_rows);
    for (int64_t r = some.first; r < some.last; ++r)
        choose_experts(step, r, chosen + r * step.n_used, shares + r * step.n_used);
    if (!own) p.pool_.barrier();
    group_rows(step, n_rows, chosen, shares);

    const Range slots = own ? Range{0, n_slots} : share(n_slots);
    const ActivationRow* input[3] = {};
    size_t at = 0;  // of this form within a slot
    for (const Activation kind : {Activation::f32, Activation::q8_32, Activation::q8_256}) {
        if (!needed[int(kind)]) continue;
        ActivationRow* to = own ? routes.input[int(kind)].data() : p.slot_rows_[int(kind)].data();
        for (int64_t s = slots.first; s < slots.last; ++s) {
            const ActivationRow& row = prepared[int(kind)][routes.row[size_t(s)]];
            to[s] = own ? row : copied(row, kind, gate.columns, p.slots_.data() + size_t(s) * p.slot_bytes_ + at);
        }
        at += activation_row_bytes(kind, gate.columns);
        input[int(kind)] = to;
    }
    if (!own) p.pool_.barrier();

    float* hidden = reinterpret_cast<float*>(p.hidden_.data());
    const int64_t n_panels = gate.n_panels(), n_tasks = int64_t(routes.active.size()) * n_panels;
    // Experts have other numbers of rows each: with several rows nothing is assigned ahead.
    take(p.next_[size_t(index)], own ? n_tasks * 3 / 4 : 0, n_tasks, [&](int64_t task) {
        const int32_t e = routes.active[size_t(task / n_panels)];
        gated(expert(step, 0, e), expert(step, 1, e), task % n_panels, input, routes.first[size_t(e)],
              routes.first[size_t(e) + 1], -1, -1, hidden);
    });
    p.pool_.barrier();

    const Matrix& down = expert(step, 2, 0);
    ActivationRow* hidden_rows = own ? routes.hidden.data() : p.hidden_rows_.data();
    uint8_t* memory = own ? routes.memory.data() : p.slots_.data();
    for (int64_t s = slots.first; s < slots.last; ++s)
        quantize_row(down.info.activation, hidden + s * down.columns, down.columns, memory + size_t(s) * p.slot_bytes_,
                     hidden_rows + s);
    if (!own) p.pool_.barrier();
    const int64_t n_outputs = down.n_panels();
    take(p.next_[size_t(p.n_steps() + index)], n_outputs * 3 / 4, n_outputs,
         [&](int64_t panel) { down_panel(step, panel, hidden_rows, n_rows); });
}

}  // namespace woolly
