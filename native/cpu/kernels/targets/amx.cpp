// Kernels of the amx level that differ from avx512: matrix tiles for many rows of quantized weights. Includes no STL:
// an STL function compiled with this file's flags must not replace another file's copy.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_DIFFERENCE  // floats and rows are those of the base level
#define WOOLLY_TARGET amx
#include "cpu/kernels/primitives/avx512.h"
#include "cpu/kernels/primitives/strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/primitives/amx_tiles.h"
#include "cpu/kernels/generic/grids.h"
#include "cpu/kernels/generic/grid256.h"
#include "cpu/kernels/generic/grid32_tiles.h"

namespace woolly::amx {

template <class Kernel>
constexpr void set(KernelTable& t, WeightType type) {
    GridsTiles256::set(t, type, Kernel{});
    GridsTiles32::set(t, type, Kernel{});
}

}  // namespace woolly::amx

#include "cpu/kernels/targets/parts.h"
// clang-format on
