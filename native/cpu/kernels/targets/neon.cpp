// The neon level. Includes no STL: a function of it compiled with this file's flags must not replace another file's.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET neon
#include "cpu/kernels/primitives/neon.h"
#include "cpu/kernels/primitives/neon_strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/isa/neon_pairs.h"
#include "cpu/kernels/isa/neon_halves.h"
// clang-format on

namespace woolly {

extern const KernelTable k_neon_table;
constinit const KernelTable k_neon_table = [] {
    KernelTable table = neon::make_table("neon");
    neon::set_pairs(table);
    neon::set_halves(table);
    return table;
}();

}  // namespace woolly
