// What the kernels' host needs from the operating system: one declaration here, one meaning per system beside it.
// No other file of native/ asks which system this is, but machine/features.cpp, whose question is the processor.
#pragma once

#include <cstddef>
#include <cstdint>

namespace woolly {

// Zeroed memory, taken page by page as it is first written, in large pages if the system grants them unasked.
// Null if there is none.
uint8_t* take_pages(size_t n_bytes);
void return_pages(uint8_t* data, size_t n_bytes);

// Takes whole pages of a mapped file out of this process; the system keeps them cached. Reading maps them again.
void give_back(const uint8_t* data, size_t n_bytes);

// Watches a mapped file. If it becomes shorter while it is mapped, what is gone reads as zeros from then on and the
// file counts as lost; without a watch, reading it would end the process. The result is a number for the two calls
// below, negative if the file is not watched: on systems that do not let a mapped file be shortened, or if too many
// are.
int watch_file(const uint8_t* data, size_t n_bytes);
void unwatch_file(int watch);  // before the file is unmapped
bool is_file_lost(int watch);

// Asks the system to run this thread on a fast core, if the machine has slow ones as well. Each worker of a pool asks
// at its start: all of them wait for the slowest.
void prefer_fast_core();

// Never 0. A forked child has another one than its parent.
int process_id();

// Asks once for AMX's tile registers, which are lent to a process before its threads use them: whether it got them.
bool tiles_allowed();

}  // namespace woolly
