// The avx2 level. Includes no STL: a function of it compiled with this file's flags must not replace another file's.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET avx2
#include "cpu/kernels/primitives/avx2.h"
#include "cpu/kernels/primitives/strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/generic/grids.h"
#include "cpu/kernels/isa/avx2_pairs.h"
// clang-format on

namespace woolly {

extern const KernelTable k_avx2_table;
constinit const KernelTable k_avx2_table = [] {
    KernelTable table = avx2::make_table("avx2");
    avx2::set_pair_sums(table);
    avx2::GridsFloats::set_all(table);
    return table;
}();

}  // namespace woolly
