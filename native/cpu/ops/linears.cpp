// linears: one input times several matrices. The input is prepared once (norm, quantize), then panels of 16 weight rows
// are tasks, each for many rows of the batch.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/ops/grid.h"
#include "cpu/ops/table.h"

namespace woolly {

namespace {

enum class Epilogue : uint8_t { none, glu, residual };

Epilogue epilogue_of(const Arguments& a) {
    const std::string& name = a.text("epilogue");
    if (name == "none") return Epilogue::none;
    if (name.starts_with("glu:")) return Epilogue::glu;
    if (name == "residual") return Epilogue::residual;
    a.fail("has no epilogue '" + name + "'");
}

struct Linears final : Step {
    std::vector<const Vector*> biases;  // of each matrix, null for none
    std::vector<Value> outputs;         // of each matrix; one for all with glu
    const Epilogue epilogue;
    const Gate how;  // of glu
    const float scale;
    const Value residual;
    const Panels input;
    const GridPanels grid;

    explicit Linears(const Arguments& a)
        : epilogue(epilogue_of(a)),
          how(gate_named(a, epilogue == Epilogue::glu ? a.text("epilogue").substr(4) : "silu")),
          scale(a.number("scale")),
          residual(epilogue == Epilogue::residual ? a.input(1) : Value{}),
          input(a, all(a)),
          grid(a, input, panels, (a.program->max_rows() + kTileRows - 1) / kTileRows) {
        // A bias is listed right after its matrix.
        for (const auto& [role, ids] : a.weights) {
            if (role == "weight") biases.push_back(nullptr);
            if (role == "bias" && !biases.empty()) biases.back() = &a.program->vector(ids.at(0));
        }
        a.vector("bias");
        const size_t n_outputs = epilogue == Epilogue::glu ? 1 : panels.size();
        for (size_t i = 0; i < n_outputs; ++i) outputs.push_back(a.output(i));
        if (epilogue == Epilogue::glu && panels.size() != 2) a.fail("needs two weights for glu");
    }

    const std::vector<Matrix*>& all(const Arguments& a) { return panels = a.matrices("weight"); }
    void panel(const Worker& w, size_t m, int64_t panel, const ActivationRow* const* prepared, int64_t first,
               int64_t last) const;
    void finish_tile(size_t m, const float* tile, int64_t row, int n, int64_t column, int64_t n_columns) const;
    bool by_tiles(size_t m, int64_t n_rows) const;
    void tiles(const Worker& w, size_t m, int64_t panel, int n_panels, int64_t first, int64_t last,
               int64_t n_tiles) const;
    int64_t rows_to_cut(const BatchView& batch) const override { return outputs[0].rows(batch); }
    void run(Worker& w) const override;
};

void Linears::finish_tile(size_t m, const float* tile, int64_t row, int n, int64_t column, int64_t n_columns) const {
    const int64_t width = outputs[m].width;
    const float* bias = biases[m] == nullptr ? nullptr : biases[m]->data + column;
    const auto rows = [&](auto count) {
        for (int i = 0; i < n; ++i) {
            const int64_t at = (row + i) * width + column;
            float v[kPanel];  // not in place: the compiler cannot rule out that the output aliases the bias
            for (int64_t c = 0; c < count; ++c) v[c] = tile[i * kPanel + c];
            if (bias != nullptr)
                for (int64_t c = 0; c < count; ++c) v[c] += bias[c];
            for (int64_t c = 0; c < count; ++c) v[c] *= scale;
            if (epilogue == Epilogue::residual)
                for (int64_t c = 0; c < count; ++c) v[c] = residual.data[at + c] + v[c];
            std::memcpy(outputs[m].data + at, v, size_t(count) * 4);
        }
    };
    if (n_columns == kPanel) {
        rows(std::integral_constant<int64_t, kPanel>{});
    } else {
        rows(n_columns);
    }
}

void Linears::panel(const Worker& w, size_t m, int64_t panel, const ActivationRow* const* prepared, int64_t first,
                    int64_t last) const {
    Matrix& matrix = *panels[m];
    if (epilogue == Epilogue::glu) {
        const auto after = [&](size_t i) { return Panels::After{biases[i] ? biases[i]->data : nullptr}; };
        input.gated(w, &matrix, *panels[1], panel, prepared, first, last, how, after(0), after(1),
                    outputs[0].data + outputs[0].first(w.batch) * outputs[0].width);
        return;
    }
    const ActivationRow* rows = prepared[int(matrix.info.activation)];
    const int64_t column = panel * kPanel, block = input.row_block();
    const int64_t n_columns = std::min<int64_t>(kPanel, matrix.rows - column);
    const uint8_t* weights = input.packed(w, matrix, panel, 0);
    float* tile = input.tile(w);
    for (int64_t r = first; r < last; r += block) {
        const int n = int(std::min(block, last - r));
        input.dot(w, matrix, weights, rows + r, n, tile);
        finish_tile(m, tile, outputs[m].first(w.batch) + r, n, column, n_columns);
    }
}

// True if output m is computed with tiles: with glu, both of its matrices must be.
bool Linears::by_tiles(size_t m, int64_t n_rows) const {
    return grid.serves(*panels[m], n_rows) && (epilogue != Epilogue::glu || grid.serves(*panels[1], n_rows));
}

// Computes a group of panels for rows [first, last), starting at a row tile.
void Linears::tiles(const Worker& w, size_t m, int64_t panel, int n_panels, int64_t first, int64_t last,
                    int64_t n_tiles) const {
    Matrix& matrix = *panels[m];
    const bool glu = epilogue == Epilogue::glu;
    const int64_t tile = first / kTileRows;
    const int n = int(last - first);
    const int64_t row = outputs[0].first(w.batch) + first;
    float* sums = grid.dot(w, matrix, panel, n_panels, tile, n, n_tiles, 0);
    float* ups = glu ? grid.dot(w, *panels[1], panel, n_panels, tile, n, n_tiles, 1) : nullptr;
    const int64_t column = panel * kPanel, width = outputs[m].width, step = GridPanels::sums_step;
    const float* bias = biases[m] == nullptr ? nullptr : biases[m]->data + column;
    // Complete panels together, unless their gates have no kernel epilogue.
    const bool is_plain = !glu || (how.act == Act::silu && how.limit == 0 && bias == nullptr && biases[1] == nullptr);
    const int n_whole = !is_plain ? 0 : column + n_panels * kPanel <= matrix.rows ? n_panels : n_panels - 1;
    const int64_t to = row * width + column;
    w.program.kernels().end({glu ? ups : sums, glu ? sums : nullptr, bias, residual.data ? residual.data + to : nullptr,
                             outputs[m].data + to, step, width, n, n_whole, scale});
    for (int i = n_whole; i < n_panels; ++i) {
        const int64_t from = column + i * kPanel, n_columns = std::min<int64_t>(kPanel, matrix.rows - from);
        if (glu) {
            const auto after = [&](size_t k) { return Panels::After{biases[k] ? biases[k]->data : nullptr}; };
            input.finish_gated(sums + i * step, ups + i * step, n, from, n_columns, how, after(0), after(1),
                               outputs[0].data + row * width, width);
        } else {
            finish_tile(m, sums + i * step, row, n, from, n_columns);
        }
    }
}

void Linears::run(Worker& w) const {
    // Row indices are relative to the first computed row.
    const int64_t n_rows = outputs[0].computed(w.batch), row = outputs[0].first(w.batch);
    if (n_rows == 0) return;
    bool needed[3] = {};
    int64_t n_panels = 0;
    bool whole = true;
    for (size_t m = 0; m < outputs.size(); ++m) {
        if (by_tiles(m, n_rows)) continue;
        n_panels += panels[m]->n_panels();
        for (size_t k = m; k < (epilogue == Epilogue::glu ? 2 : m + 1); ++k) {
            needed[int(panels[k]->info.activation)] = true;
            whole = whole && panels[k]->whole;
        }
    }
    // Every worker prepares a single row itself: cheaper than waiting for one worker.
    const bool own = n_rows == 1;
    const ActivationRow* prepared[3] = {};
    for (const Activation kind : kActivations)
        if (needed[int(kind)]) prepared[int(kind)] = input.prepare(w, kind, n_rows, own, row);
    bool tiled[3] = {};
    for (size_t m = 0; m < panels.size(); ++m)
        if (by_tiles(std::min(m, outputs.size() - 1), n_rows)) {
            tiled[int(panels[m]->info.activation)] = true;
            grid.pack(w, *panels[m]);
        }
    for (const Activation kind : kActivations)
        if (tiled[int(kind)]) grid.prepare(w, kind, n_rows, row);
    if (!own && !w.barrier()) return;

    const auto groups = [&](GridPanels::Task task) {
        int64_t n = 0;
        for (size_t m = 0; m < outputs.size(); ++m) n += by_tiles(m, n_rows) ? task.groups(*panels[m]) : 0;
        return n;
    };
    const GridPanels::Task each = grid.task(n_rows, groups), unit{each.rows, grid.unit(n_rows)};
    const int64_t n_units = groups(unit), by_grid = n_units * ((n_rows + each.rows - 1) / each.rows);
    const int64_t rows_each = input.rows_per_task(whole, n_panels, n_rows);
    const int64_t n_tasks = by_grid + n_panels * ((n_rows + rows_each - 1) / rows_each);
    w.take_runs(n_tasks, by_grid > 0 ? each.panels / unit.panels : 1, [&](int64_t next, int64_t last_task) {
        while (next < last_task) {
            const bool in_grid = next < by_grid;
            const int64_t of_kind = in_grid ? next : next - by_grid;
            const int64_t n = in_grid ? n_units : n_panels, rows = in_grid ? each.rows : rows_each;
            const int64_t first = of_kind / n * rows, last = std::min(first + rows, n_rows);
            int64_t task = of_kind % n, left = 0;
            size_t m = 0;
            for (;; ++m) {
                if (by_tiles(m, n_rows) != in_grid) continue;
                const int64_t of = in_grid ? unit.groups(*panels[m]) : panels[m]->n_panels();
                left = of - task;
                if (left > 0) break;
                task -= of;
            }
            if (!in_grid) {
                panel(w, m, task, prepared, first, last);
                ++next;
                continue;
            }
            const int64_t count = std::min(left, last_task - next), from = task * unit.panels;
            const int64_t to = std::min((task + count) * unit.panels, panels[m]->n_panels());
            tiles(w, m, from, int(to - from), first, last, (n_rows + kTileRows - 1) / kTileRows);
            next += count;
        }
    });
}

}  // namespace

std::unique_ptr<Step> make_linears(const Arguments& a) { return std::make_unique<Linears>(a); }

}  // namespace woolly
