// Memory of the emulated GPU.
#pragma once

#include <string>

namespace emulated {

// Describes overwritten fill bytes next to an allocation; empty if intact.
std::string damage();

}  // namespace emulated
