// From how many rows it pays to open a panel, or to compute by tiles: measured, because it depends on the type, the
// level and the CPU.
#pragma once

#include "cpu/kernels/table.h"

namespace woolly {

// Measured at the first call for a type, in 1 to 20 ms, and remembered. Both ways give the same bits, so a
// measurement that was disturbed costs time and nothing else.
int wide_from(const KernelTable& kernels, int type);
// The same for tiles, of a type that has them, against the better of the other two.
int grid_from(const KernelTable& kernels, int type);

}  // namespace woolly
