// Memory of the emulated GPU.
#pragma once

#include <string>

namespace emulated {

// What was overwritten beside an allocation, as the rest of a sentence; empty if nothing.
std::string damage();

}  // namespace emulated
