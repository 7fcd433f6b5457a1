// The avx512 level. Includes no STL: a function of it compiled with this file's flags must not replace another file's.
#include "kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET avx512
#include "kernels/isa/avx512.h"
#include "kernels/generic/strips.h"
#include "kernels/generic/kernels.h"
// clang-format on

namespace woolly {

extern const KernelTable k_avx512_table;
constinit const KernelTable k_avx512_table = avx512::make_table("avx512");

}  // namespace woolly
