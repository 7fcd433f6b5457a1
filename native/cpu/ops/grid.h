// Products of panels and many rows whose activations are packed in tiles (Grid in cpu/kernels/table.h), for linears and
// moe. A task is a group of panels by a block of rows: a range of columns of their activations stays in L2 for all
// panels of the group, so that any number of columns fits.
#pragma once

#include <algorithm>

#include "cpu/ops/panels.h"

namespace woolly {

// Activations of one step in tiles [column block][row tile], for each packed kind; shared by all workers.
struct Tiles final : Scratch {
    size_t bytes[3] = {};
    Memory memory[3];

    void allocate(const Program&) override {
        for (int kind = 0; kind < 3; ++kind) memory[kind] = Memory(bytes[kind]);
    }
};

class GridPanels {
  public:
    // `n_tiles` is the maximum of row tiles in a run.
    GridPanels(const Arguments& arguments, const Panels& panels, const std::vector<Matrix*>& matrices, int64_t n_tiles);

    // True if n rows of a matrix are computed with tiles. Matrices without room for packed panels are not: they would
    // be packed once per block of columns.
    bool serves(const Matrix& matrix, int64_t n_rows) const {
        return n_rows >= matrix.grid_from && matrix.packed != nullptr;
    }
    // Packs this worker's share of the remaining panels of a matrix.
    void pack(const Worker& w, Matrix& matrix) const;
    // Packs n rows of the input from `first` on into tiles: this worker's share.
    void prepare(const Worker& w, Activation kind, int64_t n_rows, int64_t first = 0) const;
    // Writes a row of a matrix with `columns` columns to row `r` of a tile.
    void write(const ActivationRow& row, Activation kind, int64_t columns, int64_t tile, int r, int64_t n_tiles) const;

    // Rows and panels of a task.
    struct Task {
        int64_t rows, panels;
        int64_t groups(const Matrix& matrix) const { return (matrix.n_panels() + panels - 1) / panels; }
    };
    // Reduces rows, then panels, until there are four tasks per thread: a panel is opened once per block of rows, which
    // costs 20 % with 128 rows and 5 % with 512. `n_groups(task)` counts the groups of panels of all matrices.
    template <class F>
    Task task(int64_t n_rows, const F& n_groups) const {
        Task task{std::min(rows_at_once, (n_rows + kTileRows - 1) / kTileRows * kTileRows), panels_at_once};
        while (n_groups(task) * ((n_rows + task.rows - 1) / task.rows) < 4 * program_.n_threads()) {
            if (task.rows > 128) {
                task.rows = (task.rows / 2 + kTileRows - 1) / kTileRows * kTileRows;
            } else if (task.panels > 2) {
                task.panels /= 2;
            } else {
                break;
            }
        }
        return task;
    }
    // sums[panel * sums_step + 16 * m + row], for n_panels panels and n rows from row tile `tile` on, in this worker's
    // memory, `slot` 0 or 1. Valid until the next call with this slot.
    float* dot(const Worker& w, Matrix& matrix, int64_t panel, int n_panels, int64_t tile, int n, int64_t n_tiles,
               int slot) const;

    // Panels are handed out in pairs, up to a task's size: the last pieces of a step are small. One by one for 17 to 32
    // rows, whose kernels take no pairs and are slow per panel.
    int64_t unit(int64_t n_rows) const { return has_few_ && n_rows > kTileRows && n_rows <= kFewRows ? 1 : 2; }
    static constexpr int64_t rows_at_once = 512, panels_at_once = 8, sums_step = rows_at_once * kPanel;

  private:
    const Panels& panels_;
    const Program& program_;
    const KernelTable& kernels_;
    Tiles& tiles_;
    size_t open_at_ = 0, sums_at_ = 0;  // offsets in a worker's memory
    bool has_few_ = true;               // all types have kernels for few rows
};

}  // namespace woolly
