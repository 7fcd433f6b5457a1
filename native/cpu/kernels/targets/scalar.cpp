// The scalar level. Includes no STL: a function of it compiled with this file's flags must not replace another file's.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET scalar
#include "cpu/kernels/primitives/scalar.h"
#include "cpu/kernels/primitives/strips.h"
#include "cpu/kernels/generic/kernels.h"
// clang-format on

namespace woolly {

extern const KernelTable k_scalar_table;
constinit const KernelTable k_scalar_table = scalar::make_table("scalar");

}  // namespace woolly
