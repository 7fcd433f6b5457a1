#pragma once

#include <cstddef>

namespace woolly {

// Returns the GB/s at which `n_threads` threads together read n_bytes of memory, in the fastest of several passes. For
// sizes beyond the caches, this limits decoding, because every token reads all weights once.
double read_bandwidth(int n_threads, size_t n_bytes);

}  // namespace woolly
