#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace woolly {

// Progress of a walk over length-prefixed strings. `end` is the offset after the last complete string. If n_strings is
// less than requested, it is the offset of the first broken string.
struct StringWalk {
    uint64_t end;
    uint64_t n_strings;
};

// Reads the string at `offset` (a little-endian u64 length, then its bytes). Returns false if it exceeds `bytes`; any
// value of `offset` is safe.
bool read_string(std::span<const uint8_t> bytes, uint64_t offset, std::span<const uint8_t>& text);

// Walks `count` strings from `offset`, and stops at the first one that exceeds `bytes`.
StringWalk skip_strings(std::span<const uint8_t> bytes, uint64_t offset, uint64_t count);

}  // namespace woolly
