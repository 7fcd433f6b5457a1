// per_head_linear: each head of the input times its own matrix. Panels of 16 weight rows are tasks, each for many rows
// of the batch.
#include <algorithm>
#include <cstring>

#include "cpu/ops/panels.h"
#include "cpu/ops/table.h"

namespace woolly {

namespace {

struct PerHeadLinear final : Step {
    const Value y;
    const Panels input;
    bool is_whole = false;  // a single matrix holds those of all heads, one after another
    int64_t heads = 0, rows = 0;

    explicit PerHeadLinear(const Arguments& a) : y(a.output(0)), input(a, all(a)) {
        for (const Matrix* m : panels)
            if (m->columns != panels[0]->columns || m->rows != panels[0]->rows || m->type != panels[0]->type)
                a.fail("needs matrices of one shape and type");
        const int64_t n_own = a.input(0).width / panels[0]->columns;
        if (is_whole = panels.size() == 1 && n_own > 1; is_whole && panels[0]->rows % (n_own * kPanel) != 0)
            a.fail("needs heads of whole panels if one matrix holds all");
        heads = is_whole ? n_own : int64_t(panels.size());
        rows = panels[0]->rows / (is_whole ? heads : 1);
        if (a.input(0).width != heads * panels[0]->columns || y.width != heads * rows)
            a.fail("has matrices that do not fit its heads");
    }

    const std::vector<Matrix*>& all(const Arguments& a) { return panels = a.matrices("weight"); }

    void run(Worker& w) const override {
        const int64_t n_rows = y.rows(w.batch);
        if (n_rows == 0) return;
        const int64_t each = (rows + kPanel - 1) / kPanel, block = input.row_block();
        const ActivationRow* prepared = input.prepare(w, panels[0]->info.activation, n_rows, false);
        if (!w.barrier()) return;
        const int64_t n_tasks = each * heads;
        w.take(n_tasks, [&](int64_t task) {
            const int64_t head = task / each, column = task % each * kPanel;
            const int64_t n_columns = std::min<int64_t>(kPanel, rows - column);
            Matrix& matrix = *panels[is_whole ? 0 : size_t(head)];
            const uint8_t* weights = input.packed(w, matrix, is_whole ? task : task % each, 0);
            float* tile = input.tile(w);
            for (int64_t r = 0; r < n_rows; r += block) {
                const int n = int(std::min(block, n_rows - r));
                input.dot(w, matrix, weights, prepared + head * n_rows + r, n, tile);
                for (int i = 0; i < n; ++i)
                    std::memcpy(y.data + (r + i) * y.width + head * rows + column, tile + i * kPanel,
                                size_t(n_columns) * 4);
            }
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_per_head_linear(const Arguments& a) { return std::make_unique<PerHeadLinear>(a); }

}  // namespace woolly
