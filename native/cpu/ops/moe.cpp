// moe: the router scores all experts, each row goes to the top ones, and rows are computed together expert by expert.
#include "cpu/ops/moe.h"

#include <algorithm>

#include "cpu/ops/functions.h"
#include "cpu/ops/table.h"

namespace woolly {

// Logits of all experts for all rows.
void Moe::score_experts(const Worker& w, const ActivationRow* rows, int64_t n_rows) const {
    const Panels& in = has_own_input ? routed : input;
    const int64_t n_panels = router.n_panels(), block = in.row_block();
    const int64_t rows_each = in.rows_per_task(router.whole, n_panels, n_rows);
    float* tile = in.tile(w);
    w.take(n_panels * ((n_rows + rows_each - 1) / rows_each), [&](int64_t task) {
        const int64_t first = task / n_panels * rows_each, last = std::min(first + rows_each, n_rows);
        const int64_t panel = task % n_panels, column = panel * kPanel;
        const int64_t n_columns = std::min<int64_t>(kPanel, router.rows - column);
        const uint8_t* weights = in.packed(w, router, panel, 0);
        for (int64_t r = first; r < last; r += block) {
            const int n = int(std::min(block, last - r));
            in.dot(w, router, weights, rows + r, n, tile);
            for (int i = 0; i < n; ++i)
                for (int64_t c = 0; c < n_columns; ++c) {
                    const float logit = tile[i * kPanel + c] + (bias == nullptr ? 0.0f : bias->data[column + c]);
                    scratch.logits[size_t((r + i) * router.rows + column + c)] =
                        cap > 0 ? cap * tanh_of(logit / cap) : logit;
                }
        }
    });
}

// Sorts slots by expert, then by row. Every worker does it: less work than a barrier.
void Moe::group_rows(Routes& routes, int64_t n_rows, const int32_t* chosen, const float* shares) const {
    const int64_t n_slots = n_rows * n_used;
    std::fill_n(routes.first.begin(), n_experts + 1, 0);
    for (int64_t i = 0; i < n_slots; ++i) ++routes.first[size_t(chosen[i])];
    routes.active.clear();
    int32_t end = 0;
    for (int32_t e = 0; e < n_experts; ++e) {
        if (routes.first[size_t(e)] > 0) routes.active.push_back(e);
        routes.first[size_t(e)] = end += routes.first[size_t(e)];
    }
    routes.first[size_t(n_experts)] = end;
    routes.n_tiles = 0;
    int32_t before = 0;
    for (const int32_t e : routes.active) {
        const int32_t n = routes.first[size_t(e)] - before;
        // Every worker prepares a single row itself (Run::own); tiles are prepared by all workers. A row may use one
        // matrix several times if experts share it.
        const bool tiled = n_rows > 1 && (gates.empty() || grid.serves(*gates[size_t(e)], n)) &&
                           grid.serves(*ups[size_t(e)], n) && grid.serves(*downs[size_t(e)], n);
        routes.tile[size_t(e)] = tiled ? int32_t(routes.n_tiles) : -1;
        routes.n_tiles += tiled ? (n + kTileRows - 1) / kTileRows : 0;
        before = routes.first[size_t(e)];
    }
    // Backwards, from each expert's end to its start.
    for (int64_t i = n_slots - 1; i >= 0; --i) {
        const size_t slot = size_t(--routes.first[size_t(chosen[i])]);
        routes.row[slot] = int32_t(i / n_used);
        routes.weight[slot] = shares[i];
    }
}

// act(gate) * up of an expert's slots, written to their rows of `hidden`.
void Moe::gate_panels(const Worker& w, int32_t e, int64_t panel, int n_panels,
                      const ActivationRow* const* inputs) const {
    const Routes& routes = scratch.routes[size_t(w.id)];
    const int64_t first = routes.first[size_t(e)], last = routes.first[size_t(e) + 1], tile = routes.tile[size_t(e)];
    Matrix *gate = gates.empty() ? nullptr : gates[size_t(e)], &up = *ups[size_t(e)];
    Panels::After after_gate = gate_extras.of(e, up.rows), after_up = up_extras.of(e, up.rows);
    const int64_t n_slots = routes.first[size_t(n_experts)];
    if (!gate_low.empty()) after_gate.each = lows(n_slots, 0);
    if (!up_low.empty()) after_up.each = lows(n_slots, 1);
    float* hidden = reinterpret_cast<float*>(scratch.hidden.data());
    if (tile < 0) {
        for (int64_t i = panel; i < panel + n_panels; ++i)
            input.gated(w, gate, up, i, inputs, first, last, how, after_gate, after_up, hidden);
        return;
    }
    for (int64_t r = 0; r < last - first; r += GridPanels::rows_at_once) {
        const int n = int(std::min(GridPanels::rows_at_once, last - first - r));
        const int64_t at = tile + r / kTileRows;
        float* first_sums = gate == nullptr ? nullptr : grid.dot(w, *gate, panel, n_panels, at, n, routes.n_tiles, 0);
        float* second = grid.dot(w, up, panel, n_panels, at, n, routes.n_tiles, 1);
        for (int i = 0; i < n_panels; ++i) {
            const int64_t column = (panel + i) * kPanel, sums = i * GridPanels::sums_step;
            input.finish_gated(gate == nullptr ? nullptr : first_sums + sums, second + sums, n, column,
                               std::min<int64_t>(kPanel, up.rows - column), how, after_gate.from(first + r, up.rows),
                               after_up.from(first + r, up.rows), hidden + (first + r) * up.rows, up.rows);
        }
    }
}

// Adds an expert's sums for n slots from `slot` on to 16 columns of their rows.
void Moe::add_weighted(const Routes& routes, int32_t e, int64_t slot, int n, int64_t column, const float* sums) const {
    const int64_t width = y.width, n_columns = std::min<int64_t>(kPanel, width - column);
    const Panels::After after = down_extras.of(e, width);
    const float* low = down_low.empty() ? nullptr : lows(routes.first[size_t(n_experts)], 2);
    for (int i = 0; i < n; ++i) {
        const float weight = weighs_input ? 1.0f : routes.weight[size_t(slot + i)];
        float* to = y.data + routes.row[size_t(slot + i)] * width + column;
        for (int64_t c = 0; c < n_columns; ++c) {
            float v = sums[i * kPanel + c] * after.scale;
            if (after.bias != nullptr) v += after.bias[column + c];
            if (low != nullptr) v += low[(slot + i) * width + column + c];
            to[c] += weight * v;
        }
    }
}

// Columns of the result, for all rows. A row's experts are added in ascending order, starting at zero, by one worker,
// so that neither threads nor other rows affect the order.
void Moe::down_panels(const Worker& w, int64_t panel, int n_panels, const ActivationRow* hidden, int64_t n_rows) const {
    const Routes& routes = scratch.routes[size_t(w.id)];
    const int64_t width = y.width, from = panel * kPanel, block = input.row_block();
    const int64_t to = std::min<int64_t>((panel + n_panels) * kPanel, width);
    for (int64_t r = 0; r < n_rows; ++r) std::fill(y.data + r * width + from, y.data + r * width + to, 0.0f);
    for (const int32_t e : routes.active) {
        Matrix& down = *downs[size_t(e)];
        const int64_t first = routes.first[size_t(e)], last = routes.first[size_t(e) + 1];
        const int64_t tile = routes.tile[size_t(e)], most = tile < 0 ? block : GridPanels::rows_at_once;
        for (int64_t s = first; s < last; s += most) {
            const int n = int(std::min(most, last - s));
            const float* sums =
                tile < 0 ? nullptr
                         : grid.dot(w, down, panel, n_panels, tile + (s - first) / kTileRows, n, routes.n_tiles, 0);
            for (int i = 0; i < n_panels; ++i) {
                const float* of_panel = sums + i * GridPanels::sums_step;
                if (tile < 0) {
                    input.dot(w, down, input.packed(w, down, panel + i, 0), hidden + s, n, input.tile(w));
                    of_panel = input.tile(w);
                }
                add_weighted(routes, e, s, n, (panel + i) * kPanel, of_panel);
            }
        }
    }
    for (int64_t r = 0; r < n_rows; ++r)
        for (int64_t c = r * width + from; c < r * width + to; ++c) {
            const float v = y.data[c] * scale;
            y.data[c] = has_residual ? residual.data[c] + v : v;
        }
}

// Adapter contributions for this worker's share of the slots. `rows`: rows of the batch as f32; null: hidden rows.
void Moe::adapt(const Worker& w, const ExpertLow& low, int64_t n_rows, const ActivationRow* rows, float* to) const {
    if (low.empty()) return;
    const Routes& routes = scratch.routes[size_t(w.id)];
    const float* hidden = reinterpret_cast<const float*>(scratch.hidden.data());
    const int64_t ffn = ups[0]->rows, width = rows == nullptr ? y.width : ffn;
    w.share(n_rows * n_used, [&](int64_t begin, int64_t end) {
        for (const int32_t e : routes.active)
            for (int64_t s = std::max<int64_t>(begin, routes.first[size_t(e)]),
                         last = std::min<int64_t>(end, routes.first[size_t(e) + 1]);
                 s < last; ++s) {
                const int64_t row = routes.row[size_t(s)];
                const float* x = rows == nullptr ? hidden + s * ffn : rows[row].x;
                const float weight = rows != nullptr && weighs_input ? routes.weight[size_t(s)] : 1.0f;
                low.write(w, y.output_rows ? w.batch.output_rows[row] : row, e, x, weight, to + s * width);
            }
    });
}

// Prepares the rows as input of the experts, and computes router logits.
bool Moe::Run::score() {
    const Activation kind_of_router = moe.router.info.activation;
    if (moe.has_own_input) {
        const ActivationRow* rows = moe.routed.prepare(w, kind_of_router, n_rows, own);
        if (!meet()) return false;
        moe.score_experts(w, rows, n_rows);
        if (!w.barrier()) return false;
    }
    for (const Activation kind : kActivations)
        if (needs(kind) || (kind == kind_of_router && !moe.has_own_input) || (kind == Activation::f32 && moe.has_low))
            prepared[int(kind)] = moe.input.prepare(w, kind, n_rows, own);
    if (!meet()) return false;
    if (moe.has_own_input) return true;
    moe.score_experts(w, prepared[int(kind_of_router)], n_rows);
    return w.barrier();
}

// Selects the experts of each row, and assigns slots.
bool Moe::Run::route() {
    int32_t* chosen = own ? routes.chosen.data() : moe.scratch.chosen.data();
    float* shares = own ? routes.shares.data() : moe.scratch.shares.data();
    share(n_rows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
            const float* given = moe.table == nullptr ? nullptr : moe.table->data + w.batch.tokens[r] * moe.n_used;
            moe.choice.choose(moe.scratch.logits.data() + r * moe.n_experts, routes, given, chosen + r * moe.n_used,
                              shares + r * moe.n_used);
        }
    });
    if (!meet()) return false;
    moe.group_rows(routes, n_rows, chosen, shares);
    return true;
}

// Copies the rows into the order of slots.
bool Moe::Run::fill_slots() {
    size_t at = 0;  // offset of this form within a slot
    for (const Activation kind : kActivations) {
        if (!needs(kind)) continue;
        ActivationRow* to = own ? routes.input[int(kind)].data() : moe.scratch.slot_rows[int(kind)].data();
        each_slot([&](int64_t s, int64_t tile, int r) {
            const ActivationRow& shared = prepared[int(kind)][routes.row[size_t(s)]];
            const float weight = moe.weighs_input ? routes.weight[size_t(s)] : 1.0f;
            const bool copies = moe.weighs_input || (tile < 0 && !own);
            const ActivationRow row = copies ? copied(shared, kind, gate.columns, slot(s) + at, weight) : shared;
            if (tile >= 0)
                moe.grid.write(row, kind, gate.columns, tile, r, routes.n_tiles);
            else
                to[s] = row;
        });
        at += activation_row_bytes(kind, gate.columns);
        inputs[int(kind)] = to;
    }
    if (!moe.has_low) return meet();
    const ActivationRow* rows = prepared[int(Activation::f32)];
    moe.adapt(w, moe.gate_low, n_rows, rows, moe.lows(n_rows * moe.n_used, 0));
    moe.adapt(w, moe.up_low, n_rows, rows, moe.lows(n_rows * moe.n_used, 1));
    return w.barrier();
}

bool Moe::Run::open_experts() {
    each_panels(gate, int64_t(routes.active.size()), [&](int64_t expert, int64_t panel, int n_panels) {
        moe.gate_panels(w, routes.active[size_t(expert)], panel, n_panels, inputs);
    });
    return w.barrier();
}

bool Moe::Run::fill_hidden() {
    const float* hidden = reinterpret_cast<const float*>(moe.scratch.hidden.data());
    const Activation kind = down.info.activation;
    ActivationRow* rows = hidden_rows();
    each_slot([&](int64_t s, int64_t tile, int r) {
        moe.input.quantize_row(kind, hidden + s * down.columns, down.columns, slot(s), rows + s);
        if (tile >= 0) moe.grid.write(rows[s], kind, down.columns, tile, r, routes.n_tiles);
    });
    if (moe.down_low.empty()) return meet();
    moe.adapt(w, moe.down_low, n_rows, nullptr, moe.lows(n_rows * moe.n_used, 2));
    return w.barrier();
}

void Moe::Run::close_experts() {
    each_panels(down, 1, [&](int64_t, int64_t panel, int n_panels) {
        moe.down_panels(w, panel, n_panels, hidden_rows(), n_rows);
    });
}

void Moe::run(Worker& w) const {
    const int64_t n_rows = y.rows(w.batch);
    if (n_rows == 0) return;
    Run run(*this, w, n_rows);
    if (run.score() && run.route() && run.fill_slots() && run.open_experts() && run.fill_hidden()) run.close_experts();
}

std::unique_ptr<Step> make_moe(const Arguments& a) { return std::make_unique<Moe>(a); }

}  // namespace woolly
