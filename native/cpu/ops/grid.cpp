#include "cpu/ops/grid.h"

#include <algorithm>
#include <cstring>

#include "cpu/kernels/tile_row.h"
#include "cpu/kernels/tune.h"

namespace woolly {

namespace {

// Columns whose activations stay in L2.
constexpr int64_t columns_at_once(Activation kind) { return kind == Activation::f32 ? 256 : 1024; }
constexpr int kFewTiles = 4;  // up to this many row tiles, more is opened per call, to amortize the call

// Panels and blocks opened at a time: they fit L1, unless rows are few.
struct Opened {
    int panels, blocks;
};
constexpr Opened opened_at_once(const Grid& grid, Activation kind, int n_tiles) {
    if (kind == Activation::f32) return {n_tiles == 1 ? 1 : grid.together, 1};
    if (kind == Activation::q8_32) return {2, 16};
    return n_tiles <= kFewTiles ? Opened{4, 4} : Opened{2, 1};
}

int64_t n_blocks(const Grid& grid, const Matrix& matrix) { return (matrix.columns + grid.columns - 1) / grid.columns; }

}  // namespace

GridPanels::GridPanels(const Arguments& a, const Panels& panels, const std::vector<Matrix*>& matrices, int64_t n_tiles)
    : panels_(panels), program_(*a.program), kernels_(a.program->kernels()), tiles_(a.program->scratch<Tiles>()) {
    size_t open_bytes = 0;
    for (Matrix* m : matrices) {
        const Grid& grid = kernels_.grid[m->type];
        if (grid.dot == nullptr || m->columns % 4 != 0) continue;
        m->grid_from = grid_from(kernels_, m->type);
        has_few_ = has_few_ && grid.few != nullptr;
        const Opened most = opened_at_once(grid, m->info.activation, kFewTiles);
        open_bytes = std::max({open_bytes, aligned(size_t(most.panels * most.blocks * grid.open_bytes)),
                               grid.few == nullptr ? 0 : size_t{kFewBytes}});
        size_t& bytes = tiles_.bytes[int(m->info.activation)];
        bytes = std::max(bytes, size_t(n_tiles * n_blocks(grid, *m)) * size_t(tile_bytes(m->info.activation)));
    }
    if (open_bytes == 0) return;
    open_at_ = panels.own_bytes();
    sums_at_ = open_at_ + open_bytes;
    a.program->need_own(sums_at_ + 2 * size_t(panels_at_once * sums_step) * 4);
}

void GridPanels::pack(const Worker& w, Matrix& matrix) const {
    if (matrix.whole) return;
    w.take(matrix.n_panels(), [&](int64_t panel) { panels_.packed(w, matrix, panel, 0); });
}

void GridPanels::prepare(const Worker& w, Activation kind, int64_t n_rows, int64_t first) const {
    const int64_t n_tiles = (n_rows + kTileRows - 1) / kTileRows;
    // Distributed by row instead of by tile: 16 rows are one tile, and every worker needs some. Four at a time if there
    // are many rows of floats.
    const float* plain = panels_.plain(kind, first);
    const int64_t each = plain != nullptr && n_rows >= 8 * program_.n_threads() ? 4 : 1, bytes = tile_bytes(kind);
    w.take((n_rows + each - 1) / each, [&](int64_t task) {
        const int64_t from = task * each, end = std::min(from + each, n_rows);
        if (end - from == 4) {
            uint8_t* tiles = tiles_.memory[int(kind)].data() + from / kTileRows * bytes;
            write_four_rows(plain + from * panels_.width(), panels_.width(), panels_.columns(), int(from % kTileRows),
                            tiles, n_tiles * bytes);
            return;
        }
        for (int64_t r = from; r < end; ++r)
            write(panels_.prepare_own(w, kind, first + r), kind, panels_.columns(), r / kTileRows, int(r % kTileRows),
                  n_tiles);
    });
}

void GridPanels::write(const ActivationRow& row, Activation kind, int64_t columns, int64_t tile, int r,
                       int64_t n_tiles) const {
    const int64_t bytes = tile_bytes(kind);
    write_tile_row(kind, row, columns, r, tiles_.memory[int(kind)].data() + tile * bytes, n_tiles * bytes);
}

float* GridPanels::dot(const Worker& w, Matrix& matrix, int64_t panel, int n_panels, int64_t tile, int n,
                       int64_t n_tiles, int slot) const {
    const int tiles = (n + kTileRows - 1) / kTileRows;
    const Grid& grid = kernels_.grid[matrix.type];
    const Activation kind = matrix.info.activation;
    const int64_t all = n_blocks(grid, matrix), chunk = columns_at_once(kind) / grid.columns;
    const int64_t bytes = tile_bytes(kind), step = n_tiles * bytes;
    const Opened each = opened_at_once(grid, kind, tiles);
    uint8_t* open = w.own() + open_at_;
    float* sums = reinterpret_cast<float*>(w.own() + sums_at_) + slot * panels_at_once * sums_step;
    for (int i = 0; i < n_panels; ++i) std::memset(sums + i * sums_step, 0, size_t(tiles) * kTileRows * kPanel * 4);
    const uint8_t* rows = tiles_.memory[int(kind)].data() + tile * bytes;
    if (grid.few != nullptr && n <= kFewRows) {
        for (int i = 0; i < n_panels; ++i) panels_.packed(w, matrix, panel + i, 0);
        const int64_t panel_step = all * grid.bytes;
        grid.few(
            {matrix.packed + panel * panel_step, panel_step, n_panels, int(all), rows, step, sums, sums_step, open}, n);
        return sums;
    }
    for (int64_t from = 0; from < all; from += chunk)
        for (int first = 0; first < n_panels; first += each.panels)
            for (int64_t b = from, end = std::min(from + chunk, all); b < end; b += each.blocks) {
                const int count = std::min(each.panels, n_panels - first);
                const int blocks = int(std::min<int64_t>(each.blocks, end - b));
                const auto columns = [&](int64_t block) {
                    return int(std::min<int64_t>(grid.columns, matrix.columns - block * grid.columns));
                };
                for (int i = 0; i < count; ++i) {
                    const uint8_t* weights = panels_.packed(w, matrix, panel + first + i, 0) + b * grid.bytes;
                    for (int k = 0; k < blocks; ++k)
                        grid.open(weights + k * grid.bytes, columns(b + k), open + (i * blocks + k) * grid.open_bytes);
                }
                grid.dot({open, count, blocks, rows + b * step, step, sums + first * sums_step, sums_step,
                          columns(b + blocks - 1)},
                         n);
            }
    return sums;
}

}  // namespace woolly
