// moe: the router scores all experts, each row goes to the best, and rows are computed together expert by expert.
#include <algorithm>

#include "cpu/ops/functions.h"
#include "cpu/ops/grid.h"
#include "cpu/ops/moe_scratch.h"
#include "cpu/ops/table.h"

namespace woolly {

namespace {

// A vector of each expert, and a number of each expert: null for none.
struct Extras {
    const Vector *bias = nullptr, *scale = nullptr;

    Extras(const Arguments& a, const std::string& role)
        : bias(a.vector((role + "_bias").c_str())), scale(a.vector((role + "_scale").c_str())) {}
    Panels::After of(int32_t expert, int64_t rows) const {
        return {bias == nullptr ? nullptr : bias->data + expert * rows, scale == nullptr ? 1.0f : scale->data[expert]};
    }
};

struct Moe final : Step {
    Matrix& router;
    const std::vector<Matrix*> gates, ups, downs;  // of each expert; no gates: act(up)
    const Extras gate_extras, up_extras, down_extras;
    const Vector* const bias;  // of the router; null for none
    const Value y;
    const bool has_residual, has_own_input, weighs_input;
    const Value residual;
    const int n_experts, n_used;
    const Choice choice;
    const float scale, cap;  // cap: bound of the router's logits, 0 for none
    const Gate how;
    const Panels input, routed;  // `routed` reads the router's own input
    const GridPanels grid;
    MoeScratch& scratch;

    explicit Moe(const Arguments& a)
        : router(a.matrix("router")),
          gates(a.has("gate") ? a.matrices("gate") : std::vector<Matrix*>{}),
          ups(a.matrices("up")),
          downs(a.matrices("down")),
          gate_extras(a, "gate"),
          up_extras(a, "up"),
          down_extras(a, "down"),
          bias(a.vector("bias")),
          y(a.output(0)),
          has_residual(a.text("epilogue") == "residual"),
          has_own_input(a.inputs.size() > (has_residual ? 2 : 1)),
          weighs_input(a.text("weigh") == "input"),
          residual(has_residual ? a.input(a.inputs.size() - 1) : Value{}),
          n_experts(int(router.rows)),
          n_used(a.integer("n_used")),
          choice{n_experts,
                 n_used,
                 a.integer("groups"),
                 a.integer("groups_used"),
                 a.integer("group_top"),
                 scoring_named(a.text("scoring")),
                 a.integer("normalize") != 0,
                 a.number("weights_scale"),
                 a.vector("select"),
                 std::max(1, a.integer("shared"))},
          scale(a.number("scale")),
          cap(a.number("cap")),
          how(gate_named(a, a.text("act"))),
          input(a, all()),
          routed(a, {&router}, has_own_input ? 1 : 0),
          grid(a, input, experts(), most_tiles(a.program->max_rows() * n_used)),
          scratch(a.program->scratch<MoeScratch>()) {
        for (const auto* each : {gates.empty() ? &ups : &gates, &ups, &downs})
            if (n_used < 1 || n_used > n_experts || each->size() * size_t(choice.shared) != size_t(n_experts))
                a.fail("of " + std::to_string(n_experts) + " experts cannot use " + std::to_string(n_used) + " of " +
                       std::to_string(each->size()) + " matrices");
        const Matrix &up = *ups[0], &gate = gates.empty() ? up : *gates[0], &down = *downs[0];
        size_t row = activation_row_bytes(gate.info.activation, gate.columns);
        if (up.info.activation != gate.info.activation) row += activation_row_bytes(up.info.activation, gate.columns);
        row = std::max(row, activation_row_bytes(down.info.activation, gate.rows));
        scratch.slot_bytes = std::max(scratch.slot_bytes, row);
        scratch.n_experts = std::max(scratch.n_experts, size_t(n_experts));
        scratch.n_used = std::max(scratch.n_used, size_t(n_used));
        scratch.ffn = std::max(scratch.ffn, size_t(gate.rows));
    }

    std::vector<Matrix*> experts() const { return {panels.begin() + 1, panels.end()}; }
    // The experts' first: their columns are the width of the input, which the router's need not be.
    std::vector<Matrix*> all() {
        panels = {&router};
        for (const auto* each : {&gates, &ups, &downs}) panels.insert(panels.end(), each->begin(), each->end());
        std::vector<Matrix*> all = experts();
        all.push_back(&router);
        return all;
    }
    // Each expert's slots begin a row tile.
    int64_t most_tiles(int64_t n_slots) const { return n_slots / kTileRows + std::min<int64_t>(n_experts, n_slots); }

    void score_experts(const Worker& w, const ActivationRow* rows, int64_t n_rows) const;
    void group_rows(Routes& routes, int64_t n_rows, const int32_t* chosen, const float* shares) const;
    void gate_panels(const Worker& w, int32_t e, int64_t panel, int n_panels, const ActivationRow* const* inputs) const;
    void add_weighted(const Routes& routes, int32_t e, int64_t slot, int n, int64_t column, const float* sums) const;
    void down_panels(const Worker& w, int64_t panel, int n_panels, const ActivationRow* hidden, int64_t n_rows) const;
    void run(Worker& w) const override;

    struct Run;
};

// One run of the step by one worker. Each function but the last ends with the workers' meeting: false if the others
// went on without this one.
struct Moe::Run {
    const Moe& moe;
    Worker& w;
    const int64_t n_rows;
    const bool own;  // a single row is prepared and routed by every worker for itself: cheaper than waiting for one
    Routes& routes;
    const Matrix &up, &gate, &down;
    const ActivationRow *prepared[3] = {}, *inputs[3] = {};  // by kind of activations: of rows, of slots

    Run(const Moe& of, Worker& worker, int64_t rows)
        : moe(of),
          w(worker),
          n_rows(rows),
          own(rows == 1),
          routes(of.scratch.routes[size_t(worker.id)]),
          up(*of.ups[0]),
          gate(of.gates.empty() ? up : *of.gates[0]),
          down(*of.downs[0]) {}

    bool meet() { return own || w.barrier(); }
    bool needs(Activation kind) const { return kind == gate.info.activation || kind == up.info.activation; }
    uint8_t* slot(int64_t s) const {
        return (own ? routes.memory : moe.scratch.slots).data() + size_t(s) * moe.scratch.slot_bytes;
    }
    ActivationRow* hidden_rows() const { return own ? routes.hidden.data() : moe.scratch.hidden_rows.data(); }

    // Calls run(first, last) for this worker's share of n things.
    template <class F>
    void share(int64_t n, const F& run) const {
        own ? run(int64_t{0}, n) : w.share(n, run);
    }
    // Calls use(slot, row tile or -1, row within it) for this worker's share of the slots.
    template <class F>
    void each_slot(const F& use) const {
        share(n_rows * moe.n_used, [&](int64_t begin, int64_t end) {
            for (const int32_t e : routes.active) {
                const int64_t first = routes.first[size_t(e)], tile = routes.tile[size_t(e)];
                const int64_t last = std::min<int64_t>(end, routes.first[size_t(e) + 1]);
                for (int64_t s = std::max(begin, first); s < last; ++s)
                    use(s, tile < 0 ? -1 : tile + (s - first) / kTileRows, int((s - first) % kTileRows));
            }
        });
    }
    // Calls run(times, panel, panels) for tasks over the panels of a matrix, `times` each. Without tiles a task is one
    // panel: of a single row there are few.
    template <class F>
    void each_panels(const Matrix& matrix, int64_t n_times, const F& run) const {
        int64_t each = 1;
        if (routes.n_tiles != 0)
            each = moe.grid.task(1, [&](GridPanels::Task task) { return n_times * task.groups(matrix); }).panels;
        const int64_t n_groups = (matrix.n_panels() + each - 1) / each;
        w.take(n_times * n_groups, [&](int64_t task) {
            const int64_t panel = task % n_groups * each;
            run(task / n_groups, panel, int(std::min(each, matrix.n_panels() - panel)));
        });
    }

    bool score();
    bool route();
    bool fill_slots();
    bool open_experts();
    bool fill_hidden();
    void close_experts();
};

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

// Slots by expert, within an expert by row. Each worker for itself: less work than a barrier.
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
        // A single row is prepared by every worker for itself (Run::own), and tiles are all workers'. It may come to
        // one matrix several times, if experts share theirs.
        const bool tiled = n_rows > 1 && (gates.empty() || grid.serves(*gates[size_t(e)], n)) &&
                           grid.serves(*ups[size_t(e)], n) && grid.serves(*downs[size_t(e)], n);
        routes.tile[size_t(e)] = tiled ? int32_t(routes.n_tiles) : -1;
        routes.n_tiles += tiled ? (n + kTileRows - 1) / kTileRows : 0;
        before = routes.first[size_t(e)];
    }
    // Backwards, from each expert's end to its beginning.
    for (int64_t i = n_slots - 1; i >= 0; --i) {
        const size_t slot = size_t(--routes.first[size_t(chosen[i])]);
        routes.row[slot] = int32_t(i / n_used);
        routes.weight[slot] = shares[i];
    }
}

// act(gate) * up of an expert's slots, to their rows of `hidden`.
void Moe::gate_panels(const Worker& w, int32_t e, int64_t panel, int n_panels,
                      const ActivationRow* const* inputs) const {
    const Routes& routes = scratch.routes[size_t(w.id)];
    const int64_t first = routes.first[size_t(e)], last = routes.first[size_t(e) + 1], tile = routes.tile[size_t(e)];
    Matrix *gate = gates.empty() ? nullptr : gates[size_t(e)], &up = *ups[size_t(e)];
    const Panels::After after_gate = gate_extras.of(e, up.rows), after_up = up_extras.of(e, up.rows);
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
                               std::min<int64_t>(kPanel, up.rows - column), how, after_gate, after_up,
                               hidden + (first + r) * up.rows, up.rows);
        }
    }
}

// Adds an expert's sums for n slots from `slot` on to 16 columns of their rows.
void Moe::add_weighted(const Routes& routes, int32_t e, int64_t slot, int n, int64_t column, const float* sums) const {
    const int64_t width = y.width, n_columns = std::min<int64_t>(kPanel, width - column);
    const Panels::After after = down_extras.of(e, width);
    for (int i = 0; i < n; ++i) {
        const float weight = weighs_input ? 1.0f : routes.weight[size_t(slot + i)];
        float* to = y.data + routes.row[size_t(slot + i)] * width + column;
        for (int64_t c = 0; c < n_columns; ++c) {
            float v = sums[i * kPanel + c] * after.scale;
            if (after.bias != nullptr) v += after.bias[column + c];
            to[c] += weight * v;
        }
    }
}

// Columns of the result, for all rows. A row's experts are added in ascending order, from zero: by one worker, so that
// neither threads nor other rows decide the order.
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

// The rows as experts read them, and the experts' scores.
bool Moe::Run::score() {
    const Activation kind_of_router = moe.router.info.activation;
    if (moe.has_own_input) {
        const ActivationRow* rows = moe.routed.prepare(w, kind_of_router, n_rows, own);
        if (!meet()) return false;
        moe.score_experts(w, rows, n_rows);
        if (!w.barrier()) return false;
    }
    for (const Activation kind : kActivations)
        if (needs(kind) || (kind == kind_of_router && !moe.has_own_input))
            prepared[int(kind)] = moe.input.prepare(w, kind, n_rows, own);
    if (!meet()) return false;
    if (moe.has_own_input) return true;
    moe.score_experts(w, prepared[int(kind_of_router)], n_rows);
    return w.barrier();
}

// The experts of each row, and the slots of each expert.
bool Moe::Run::route() {
    int32_t* chosen = own ? routes.chosen.data() : moe.scratch.chosen.data();
    float* shares = own ? routes.shares.data() : moe.scratch.shares.data();
    share(n_rows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
            moe.choice.choose(moe.scratch.logits.data() + r * moe.n_experts, routes, chosen + r * moe.n_used,
                              shares + r * moe.n_used);
    });
    if (!meet()) return false;
    moe.group_rows(routes, n_rows, chosen, shares);
    return true;
}

// The rows in the order of slots.
bool Moe::Run::fill_slots() {
    size_t at = 0;  // of this form within a slot
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
    return meet();
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
    return meet();
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

}  // namespace

std::unique_ptr<Step> make_moe(const Arguments& a) { return std::make_unique<Moe>(a); }

}  // namespace woolly
