// Kernels of the neon_i8mm level that differ from neon: byte matrix products for many rows. Includes no STL: an STL
// function compiled with this file's flags must not replace another file's copy.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_DIFFERENCE  // floats and rows are those of the base level
#define WOOLLY_TARGET neon_i8mm
#include "cpu/kernels/primitives/neon.h"
#include "cpu/kernels/primitives/neon_strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/isa/neon_pairs.h"
#include "cpu/kernels/isa/neon_mmla.h"

namespace woolly::neon_i8mm {

template <class Kernel>
constexpr void set(KernelTable& t, WeightType type) {
    set_product(t, type, Kernel{});
}

}  // namespace woolly::neon_i8mm

#include "cpu/kernels/targets/parts.h"
// clang-format on
