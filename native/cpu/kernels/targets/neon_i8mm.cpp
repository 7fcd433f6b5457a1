// The neon_i8mm level: neon, and byte matrix products for many rows. Includes no STL: a function of it compiled with
// this file's flags must not replace another file's.
#include "cpu/kernels/table.h"

// clang-format off: the algorithms need the primitives before them
#define WOOLLY_TARGET neon_i8mm
#include "cpu/kernels/primitives/neon.h"
#include "cpu/kernels/primitives/neon_strips.h"
#include "cpu/kernels/generic/kernels.h"
#include "cpu/kernels/isa/neon_pairs.h"
#include "cpu/kernels/isa/neon_halves.h"
#include "cpu/kernels/isa/neon_mmla.h"
// clang-format on

namespace woolly {

extern const KernelTable k_neon_i8mm_table;
constinit const KernelTable k_neon_i8mm_table = [] {
    KernelTable table = neon_i8mm::make_table("neon_i8mm");
    neon_i8mm::set_pairs(table);
    neon_i8mm::set_halves(table);
    neon_i8mm::set_mmla(table);
    return table;
}();

}  // namespace woolly
