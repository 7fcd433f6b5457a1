#pragma once

#include <string>
#include <vector>

namespace woolly {

// Returns the instruction-set extensions that the CPU and the operating system support, named as in Linux.
std::vector<std::string> cpu_features();

}  // namespace woolly
