// Floats and rows of the levels with AVX-512; they do not need VNNI. Includes no STL: an STL function compiled with
// this file's flags must not replace another file's copy.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_FLOATS_ALONE  // quants are in other levels
#define WOOLLY_TARGET avx512f
#include "cpu/kernels/primitives/avx512.h"
#include "cpu/kernels/primitives/strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/targets/rows.h"
#include "cpu/kernels/generic/grids.h"

namespace woolly::avx512f {

template <class Kernel>
constexpr void set(KernelTable& t, WeightType type) {
    set_kernel<Kernel>(t, type);
    GridsFloats::set(t, type, Kernel{});
}

}  // namespace woolly::avx512f

#include "cpu/kernels/targets/parts.h"
// clang-format on
