#pragma once

#include <string>
#include <vector>

namespace woolly {

// Names of the instruction-set extensions that this CPU and its operating system offer, as Linux spells them.
std::vector<std::string> cpu_features();

}  // namespace woolly
