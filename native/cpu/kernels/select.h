// Which kernel levels this build has, and which of them this CPU can run.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernels/table.h"

namespace woolly {

// Levels that this machine can run, best first. "scalar" is always the last.
std::vector<const KernelTable*> available_levels();

// The level of that name, or null if this machine cannot run it.
const KernelTable* find_level(const std::string& name);

}  // namespace woolly
