// The avx2 level. Includes no STL: a function of it compiled with this file's flags must not replace another file's.
#include "kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET avx2
#include "kernels/isa/avx2.h"
#include "kernels/generic/strips.h"
#include "kernels/generic/kernels.h"
// clang-format on

namespace woolly {

extern const KernelTable k_avx2_table;
constinit const KernelTable k_avx2_table = avx2::make_table("avx2");

}  // namespace woolly
