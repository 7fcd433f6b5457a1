// The avx512 level, except floats and rows, which are in avx512f. Includes no STL: an STL function compiled with this
// file's flags must not replace another file's copy.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_QUANTS  // floats and rows are in avx512f
#define WOOLLY_TARGET avx512
#include "cpu/kernels/primitives/avx512.h"
#include "cpu/kernels/primitives/strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/generic/grids.h"
#include "cpu/kernels/generic/grid256_dots.h"
#include "cpu/kernels/generic/grid32.h"

namespace woolly::avx512 {

template <class Kernel>
constexpr void set(KernelTable& t, WeightType type) {
    set_kernel<Kernel>(t, type);
    Grids256::set(t, type, Kernel{});
    Grids32::set(t, type, Kernel{});
}

}  // namespace woolly::avx512

#include "cpu/kernels/targets/parts.h"
// clang-format on
