// Operating-system services for native code: one declaration here, and one implementation per system next to it. Other
// files of native/ do not depend on the system, except machine/features.cpp, which queries the processor.
#pragma once

#include <cstddef>
#include <cstdint>

namespace woolly {

// Allocates zeroed memory, page by page on first write, in large pages if the system grants them automatically. Returns
// null if there is not enough.
uint8_t* take_pages(size_t n_bytes);
void return_pages(uint8_t* data, size_t n_bytes);

// Releases complete pages of a mapped file from this process. The system keeps them cached, and a read maps them again.
void give_back(const uint8_t* data, size_t n_bytes);

// Watches a mapped file. If the file is truncated while it is mapped, the missing part reads as zeros and the file
// counts as lost; without a watch, reading it would end the process. Returns a number for the two functions below. It
// is negative if the file is not watched: if the system does not allow truncation of mapped files, or if too many files
// are watched.
int watch_file(const uint8_t* data, size_t n_bytes);
void unwatch_file(int watch);  // call before the file is unmapped
bool is_file_lost(int watch);

// Asks the system to run this thread on a fast core, if the machine also has slow ones. Each worker of a pool calls it
// at its start, because all workers wait for the slowest.
void prefer_fast_core();

// Never 0. A forked child has a different id than its parent.
int process_id();

// Requests AMX tile registers, which a process must do before its threads use them. Returns true if they are granted.
bool tiles_allowed();

}  // namespace woolly
