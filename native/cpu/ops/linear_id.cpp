// linear_id: each row of the input times one of two matrices, selected per row by the batch. Consecutive rows with the
// same matrix are multiplied together: rows of an image are contiguous.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cpu/ops/panels.h"
#include "cpu/ops/table.h"

namespace woolly {

namespace {

struct LinearId final : Step {
    const Value y;
    const Panels input;

    explicit LinearId(const Arguments& a) : y(a.output(0)), input(a, both(a)) {
        for (const Matrix* m : panels)
            if (m->columns != a.input(0).width || m->rows != y.width)
                a.fail("has matrices of other sizes than its rows");
    }

    const std::vector<Matrix*>& both(const Arguments& a) { return panels = {&a.matrix("weight"), &a.matrix("other")}; }

    // Index of a row's matrix.
    int32_t place(const BatchView& b, int64_t row) const {
        return b.gather_rows == nullptr ? 0 : b.gather_rows[(y.output_rows ? b.output_rows[row] : row) * b.n_gather];
    }

    void check(const BatchView& b, const Cache&) const override {
        if (b.gather_rows != nullptr && b.n_gather < 1)
            throw std::invalid_argument("the batch names no matrices of rows");
        for (int64_t r = 0, n = y.rows(b); r < n; ++r)
            if (place(b, r) < 0 || place(b, r) >= int32_t(panels.size()))
                throw std::invalid_argument("a row is to be multiplied with a matrix that the step does not have");
    }

    // Computes columns of a panel for the rows of [first, last) that use its matrix.
    void panel(const Worker& w, int32_t m, int64_t panel, const ActivationRow* rows, int64_t first,
               int64_t last) const {
        Matrix& matrix = *panels[size_t(m)];
        const int64_t column = panel * kPanel, n_columns = std::min<int64_t>(kPanel, y.width - column);
        const uint8_t* weights = nullptr;  // packed when the first row needs them
        float* tile = input.tile(w);
        for (int64_t r = first, end = first; r < last; r = end) {
            const bool is_own = place(w.batch, r) == m;
            for (end = r + 1; end < last && (place(w.batch, end) == m) == is_own;) ++end;
            if (!is_own) continue;
            if (weights == nullptr) weights = input.packed(w, matrix, panel, 0);
            for (int64_t at = r; at < end; at += input.row_block()) {
                const int n = int(std::min(input.row_block(), end - at));
                input.dot(w, matrix, weights, rows + at, n, tile);
                for (int i = 0; i < n; ++i)
                    std::memcpy(y.data + (at + i) * y.width + column, tile + i * kPanel, size_t(n_columns) * 4);
            }
        }
    }

    void run(Worker& w) const override {
        const int64_t n_rows = y.rows(w.batch);
        if (n_rows == 0) return;
        bool used[2] = {}, needed[3] = {}, whole = true;
        for (int64_t r = 0; r < n_rows; ++r) used[place(w.batch, r)] = true;
        int32_t matrices[2];
        int64_t n_used = 0;
        for (int32_t m = 0; m < 2; ++m) {
            if (!used[m]) continue;
            matrices[n_used++] = m;
            needed[int(panels[size_t(m)]->info.activation)] = true;
            whole = whole && panels[size_t(m)]->whole;
        }
        // Every worker prepares a single row itself: cheaper than waiting for one worker.
        const bool own = n_rows == 1;
        const ActivationRow* prepared[3] = {};
        for (const Activation kind : kActivations)
            if (needed[int(kind)]) prepared[int(kind)] = input.prepare(w, kind, n_rows, own);
        if (!own && !w.barrier()) return;
        const int64_t each = panels[0]->n_panels(), n_panels = n_used * each;
        const int64_t rows = input.rows_per_task(whole, n_panels, n_rows);
        w.take(n_panels * ((n_rows + rows - 1) / rows), [&](int64_t task) {
            const int64_t first = task / n_panels * rows, of = task % n_panels;
            const int32_t m = matrices[of / each];
            panel(w, m, of % each, prepared[int(panels[size_t(m)]->info.activation)], first,
                  std::min(first + rows, n_rows));
        });
    }
};

}  // namespace

std::unique_ptr<Step> make_linear_id(const Arguments& a) { return std::make_unique<LinearId>(a); }

}  // namespace woolly
