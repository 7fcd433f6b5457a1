// The neon level. Includes no STL: an STL function compiled with this file's flags must not replace another file's
// copy.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET neon
#include "cpu/kernels/primitives/neon.h"
#include "cpu/kernels/primitives/neon_strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/targets/rows.h"
#include "cpu/kernels/isa/neon_pairs.h"
#include "cpu/kernels/isa/neon_few_rows.h"
#include "cpu/kernels/isa/neon_f16.h"
#include "cpu/kernels/generic/grids.h"

namespace woolly::neon {

template <class Kernel>
constexpr void set(KernelTable& t, WeightType type) {
    set_kernel<Kernel>(t, type);
    set_pairs(t, type, Kernel{});
    set_halves(t, type, Kernel{});
    GridsFloats::set(t, type, Kernel{});
}

}  // namespace woolly::neon

#include "cpu/kernels/targets/parts.h"
// clang-format on
