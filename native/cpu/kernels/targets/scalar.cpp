// The scalar level. Includes no STL: a function of it compiled with this file's flags must not replace another file's.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET scalar
#include "cpu/kernels/primitives/scalar.h"
#include "cpu/kernels/primitives/strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/targets/rows.h"

namespace woolly::scalar {

template <class Kernel>
constexpr void set(KernelTable& t, WeightType type) {
    set_kernel<Kernel>(t, type);
}

}  // namespace woolly::scalar

#include "cpu/kernels/targets/parts.h"
// clang-format on
