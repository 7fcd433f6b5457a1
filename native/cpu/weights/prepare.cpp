// Packs weights ahead of time or at first use, then releases the file's pages.
#include <algorithm>
#include <atomic>

#include "cpu/program/program.h"
#include "cpu/weights/pack.h"
#include "machine/system.h"

namespace woolly {

void Program::set_packed(int matrix, uint8_t* memory) {
    Matrix& m = matrices_.at(size_t(matrix));
    m.packed = memory;
    m.left = m.n_panels();
    for (int64_t i = 0; i < m.n_panels(); ++i) m.done[size_t(i)] = 0;
}

int64_t Program::panels_done(int matrix) const {
    const Matrix& m = matrices_.at(size_t(matrix));
    // Not the flags: a background packing thread may be writing them.
    return m.packed == nullptr ? 0 : m.n_panels() - std::atomic_ref(m.left).load(std::memory_order_acquire);
}

void Program::pack(Matrix& matrix, int64_t panel, uint8_t* to) {
    const int n = int(std::min<int64_t>(kPanel, matrix.rows - panel * kPanel));
    pack_panel(matrix.type, matrix.source + size_t(panel * kPanel) * matrix.stride(), matrix.stride(), n,
               matrix.columns, kernels_.q4_k_in_row_pairs, to);
    // The kernel for many rows reads them unpacked.
    if (kernels_.f16_must_be_finite && WeightType(matrix.type) == WeightType::F16 &&
        !finite_halves(to, panel_bytes(matrix.info, matrix.columns)))
        std::atomic_ref(matrix.wide_from).store(1, std::memory_order_relaxed);
    if (matrix.packed == nullptr) return;
    matrix.done[size_t(panel)] = 1;
    if (std::atomic_ref(matrix.left).fetch_sub(1, std::memory_order_acq_rel) == 1 && matrix.mapped)
        give_back(matrix.source, size_t(matrix.rows) * matrix.stride());
}

void Program::prepare() {
    stop_preparing();
    stop_preparing_.store(false, std::memory_order_relaxed);
    preparing_owner_ = process_id();
    preparing_ = std::thread([this] {
        for (const auto& step : steps_) {
            for (Matrix* matrix : step->panels) {
                Matrix& m = *matrix;
                if (m.packed == nullptr) continue;
                const size_t bytes = panel_bytes(m.info, m.columns);
                for (int64_t i = 0; i < m.n_panels(); ++i) {
                    if (stop_preparing_.load(std::memory_order_relaxed)) return;
                    if (m.done[size_t(i)] == 0) pack(m, i, m.packed + size_t(i) * bytes);
                }
            }
        }
    });
}

void Program::stop_preparing() {
    if (!preparing_.joinable()) return;
    if (preparing_owner_ != process_id()) {
        new std::thread(std::move(preparing_));  // a forked child leaks the handle, as Pool does
        return;
    }
    stop_preparing_.store(true, std::memory_order_relaxed);
    preparing_.join();
}

}  // namespace woolly
