// The avx512 level. Includes no STL: a function of it compiled with this file's flags must not replace another file's.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET avx512
#include "cpu/kernels/primitives/avx512.h"
#include "cpu/kernels/primitives/strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/generic/grids.h"
#include "cpu/kernels/generic/grid256_dots.h"
#include "cpu/kernels/generic/grid32.h"
// clang-format on

namespace woolly {

extern const KernelTable k_avx512_table;
constinit const KernelTable k_avx512_table = [] {
    KernelTable table = avx512::make_table("avx512");
    avx512::Grids256::set_all(table);
    avx512::Grids32::set_all(table);
    avx512::GridsFloats::set_all(table);
    return table;
}();

}  // namespace woolly
