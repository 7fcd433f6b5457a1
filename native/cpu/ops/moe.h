// The moe step and one run of it; its parts are described in moe.cpp.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cpu/ops/functions.h"
#include "cpu/ops/grid.h"
#include "cpu/ops/low_rank.h"
#include "cpu/ops/moe_scratch.h"

namespace woolly {

// A vector per expert, and a number per expert: null if absent.
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
    const std::vector<Matrix*> gates, ups, downs;  // per expert; without gates: act(up)
    const Extras gate_extras, up_extras, down_extras;
    const Vector* const bias;   // of the router; null: none
    const Vector* const table;  // [tokens, n_used]: fixed experts of each token; null if the router selects
    const Value y;
    const bool has_residual, has_own_input, weighs_input;
    const Value residual;
    const int n_experts, n_used;
    const Choice choice;
    const float scale, cap;  // cap: softcap of the router's logits, 0: none
    const Gate how;
    const Panels input, routed;  // `routed` reads the router's separate input
    const GridPanels grid;
    const ExpertLow gate_low, up_low, down_low;  // LoRA adapters
    const bool has_low;
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
          table(a.vector("table")),
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
          grid(a, input, experts(), max_tiles(a.program->max_rows() * n_used)),
          gate_low(a, "gate", n_experts, ups[0]->rows, ups[0]->columns),
          up_low(a, "up", n_experts, ups[0]->rows, ups[0]->columns),
          down_low(a, "down", n_experts, downs[0]->rows, downs[0]->columns),
          has_low(!gate_low.empty() || !up_low.empty() || !down_low.empty()),
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
        if (has_low) scratch.low = std::max(scratch.low, size_t(2 * gate.rows + down.rows));
        if (table != nullptr) check_table(a);
        if (has_low && choice.shared > 1) a.fail("has adapters of experts that share matrices");
    }

    void check(const BatchView& batch, const Cache&) const override {
        for (int64_t i = 0; table != nullptr && i < batch.n_rows; ++i)
            if (batch.tokens[i] < 0 || batch.tokens[i] >= table->n / n_used)
                throw std::invalid_argument("token " + std::to_string(batch.tokens[i]) + " has no experts of its own");
        for (const ExpertLow* low : {&gate_low, &up_low, &down_low}) low->check(batch);
    }
    void check_table(const Arguments& a) const {
        if (table->n % n_used != 0 || choice.scoring == Scoring::sparsemixer || choice.select != nullptr)
            a.fail("has experts of tokens that do not fit");
        for (int64_t i = 0; i < table->n; ++i)
            if (!(table->data[i] >= 0 && table->data[i] < float(n_experts)))
                a.fail("sends token " + std::to_string(i / n_used) + " to an expert that is not there");
    }
    // Adapter contributions to the products of slots with gates, ups (1) or downs (2).
    float* lows(int64_t n_slots, int part) const {
        return reinterpret_cast<float*>(scratch.lows.data()) + part * n_slots * ups[0]->rows;
    }

    std::vector<Matrix*> experts() const { return {panels.begin() + 1, panels.end()}; }
    // Matrices of the experts first: their columns equal the input width, which those of the router may not.
    std::vector<Matrix*> all() {
        panels = {&router};
        for (const auto* each : {&gates, &ups, &downs}) panels.insert(panels.end(), each->begin(), each->end());
        std::vector<Matrix*> all = experts();
        all.push_back(&router);
        return all;
    }
    // Each expert's slots start at a row tile.
    int64_t max_tiles(int64_t n_slots) const { return n_slots / kTileRows + std::min<int64_t>(n_experts, n_slots); }

    void score_experts(const Worker& w, const ActivationRow* rows, int64_t n_rows) const;
    void group_rows(Routes& routes, int64_t n_rows, const int32_t* chosen, const float* shares) const;
    void gate_panels(const Worker& w, int32_t e, int64_t panel, int n_panels, const ActivationRow* const* inputs) const;
    void add_weighted(const Routes& routes, int32_t e, int64_t slot, int n, int64_t column, const float* sums) const;
    void down_panels(const Worker& w, int64_t panel, int n_panels, const ActivationRow* hidden, int64_t n_rows) const;
    void adapt(const Worker& w, const ExpertLow& low, int64_t n_rows, const ActivationRow* rows, float* to) const;
    void run(Worker& w) const override;

    struct Run;
};

// One run of the step by one worker. Each function but the last ends with a barrier and returns false if the other
// workers continued without this one.
struct Moe::Run {
    const Moe& moe;
    Worker& w;
    const int64_t n_rows;
    const bool own;  // every worker prepares and routes a single row itself: cheaper than waiting for one worker
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
    // panel: a single row has few panels.
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

}  // namespace woolly
