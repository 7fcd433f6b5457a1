// Minimum row counts for opening a panel and for tile kernels: measured, because they depend on the type, the level and
// the CPU.
#pragma once

#include "cpu/kernels/table.h"

namespace woolly {

// Measured at the first call for a type, in 1 to 20 ms, and cached. Both methods are bit-identical, so a disturbed
// measurement only costs time.
int wide_from(const KernelTable& kernels, int type);
// Same for tile kernels, compared with the better of the other two methods.
int grid_from(const KernelTable& kernels, int type);

}  // namespace woolly
