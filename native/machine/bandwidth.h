#pragma once

#include <cstddef>

namespace woolly {

// GB/s at which `threads` threads together read n_bytes of memory, in the fastest of several passes. Taken over more
// than the caches hold, this is what bounds decoding: every token reads all weights once.
double read_bandwidth(int n_threads, size_t n_bytes);

}  // namespace woolly
