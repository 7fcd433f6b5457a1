// The amx level: avx512, and matrix tiles for many rows of k-quants. Includes no STL: a function of it compiled with
// this file's flags must not replace another file's.
#include "kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET amx
#include "kernels/isa/avx512.h"
#include "kernels/generic/strips.h"
#include "kernels/generic/kernels.h"
#include "kernels/isa/amx.h"
#include "kernels/generic/tiles256.h"
// clang-format on

namespace woolly {

extern const KernelTable k_amx_table;
constinit const KernelTable k_amx_table = [] {
    KernelTable table = amx::make_table("amx");
    amx::set_tiles(table);
    return table;
}();

}  // namespace woolly
