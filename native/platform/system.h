// What the kernels' host needs from the operating system: one declaration here, one meaning per system beside it.
// No other file of native/ asks which system this is, but cpu/features.cpp, whose question is the processor.
#pragma once

#include <cstddef>
#include <cstdint>

namespace woolly {

// Zeroed memory, taken page by page as it is first written, in large pages where the system grants such unasked.
// Null where there is none.
uint8_t* take_pages(size_t n_bytes);
void return_pages(uint8_t* data, size_t n_bytes);

// Takes whole pages of a mapped file out of this process; the system keeps them cached. Reading maps them again.
void give_back(const uint8_t* data, size_t n_bytes);

// Never 0. A forked child has another one than its parent.
int process_id();

// Asks once for AMX's tile registers, which are lent to a process before its threads use them: whether it got them.
bool tiles_allowed();

}  // namespace woolly
