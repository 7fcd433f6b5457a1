// The amx level: avx512, and matrix tiles for many rows of k-quants. Includes no STL: a function of it compiled with
// this file's flags must not replace another file's.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET amx
#include "cpu/kernels/primitives/avx512.h"
#include "cpu/kernels/primitives/strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/primitives/amx_tiles.h"
#include "cpu/kernels/generic/grids.h"
#include "cpu/kernels/generic/grid256.h"
#include "cpu/kernels/generic/grid32_tiles.h"
// clang-format on

namespace woolly {

extern const KernelTable k_amx_table;
constinit const KernelTable k_amx_table = [] {
    KernelTable table = amx::make_table("amx");
    amx::GridsTiles256::set_all(table);
    amx::GridsTiles32::set_all(table);
    amx::GridsFloats::set_all(table);
    return table;
}();

}  // namespace woolly
