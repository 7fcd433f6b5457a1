// The neon level. Includes no STL: a function of it compiled with this file's flags must not replace another file's.
#include "kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET neon
#include "kernels/isa/neon.h"
#include "kernels/isa/neon_strips.h"
#include "kernels/generic/kernels.h"
#include "kernels/isa/neon_pairs.h"
#include "kernels/isa/neon_halves.h"
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
