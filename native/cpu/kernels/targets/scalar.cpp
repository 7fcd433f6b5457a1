// The scalar level. Includes no STL: an STL function compiled with this file's flags must not replace another file's
// copy.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET scalar
#include "cpu/kernels/primitives/scalar.h"
#include "cpu/kernels/primitives/strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/targets/rows.h"

namespace woolly::scalar {

// Few rows use the code for many: some blocks are opened and used for each row. Separate kernels would be half of the
// level's code, for a level that few machines need.
template <class Kernel>
void dot_opened(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, int n_rows, float* tile) {
    constexpr int most = Kernel::columns < 256 ? 256 / Kernel::columns : 1;
    alignas(64) uint8_t open[most * Kernel::Open::bytes];
    std::memset(tile, 0, size_t(n_rows) * kPanel * sizeof(float));
    const int64_t n_blocks = n_columns / Kernel::columns;
    for (int64_t first = 0; first < n_blocks; first += most, panel += most * Kernel::bytes) {
        const int64_t n = n_blocks - first < most ? n_blocks - first : most;
        Kernel::Open::open(panel, n, open);
        Ahead ahead{};
        for (int m = 0; m < n_rows; ++m) Kernel::many(open, n, rows + m, first, 1, tile + kPanel * m, ahead);
    }
}

template <class Kernel>
constexpr void set(KernelTable& t, WeightType type) {
    t.dot[int(type)] = dot_opened<Kernel>;
    set_wide<typename Kernel::Open>(t, type, Kernel::many);
}

}  // namespace woolly::scalar

#include "cpu/kernels/targets/parts.h"
// clang-format on
