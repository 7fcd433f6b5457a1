#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace woolly {

// How far a walk over length-prefixed strings came. `end` is the offset after the last whole string, which is
// the offset of the first broken string if n_strings is less than what was asked for.
struct StringWalk {
    uint64_t end;
    uint64_t n_strings;
};

// The string that begins at `offset` (a little-endian u64 length, then its bytes). False if it is not
// within `bytes`; any value of `offset` is safe.
bool read_string(std::span<const uint8_t> bytes, uint64_t offset, std::span<const uint8_t>& text);

// Walks `count` strings from `offset` and stops at the first that is not within `bytes`.
StringWalk skip_strings(std::span<const uint8_t> bytes, uint64_t offset, uint64_t count);

}  // namespace woolly
