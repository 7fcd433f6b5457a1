// Kernel levels of this build, and the subset that this CPU supports.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernels/table.h"

namespace woolly {

// Levels that this machine supports, best first. "scalar" is always the last.
std::vector<const KernelTable*> available_levels();

// Returns the level with this name, or null if this machine does not support it.
const KernelTable* find_level(const std::string& name);

}  // namespace woolly
