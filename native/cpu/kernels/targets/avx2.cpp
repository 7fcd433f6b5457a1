// The avx2 level. Includes no STL: an STL function compiled with this file's flags must not replace another file's
// copy.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET avx2
#include "cpu/kernels/primitives/avx2.h"
#include "cpu/kernels/primitives/strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/targets/rows.h"
#include "cpu/kernels/generic/grids.h"
#include "cpu/kernels/isa/avx2_pairs.h"

namespace woolly::avx2 {

template <class Kernel>
constexpr void set(KernelTable& t, WeightType type) {
    set_kernel<Kernel>(t, type);
    set_pair_sums(t, type, Kernel{});
    GridsFloats::set(t, type, Kernel{});
}

}  // namespace woolly::avx2

#include "cpu/kernels/targets/parts.h"
// clang-format on
