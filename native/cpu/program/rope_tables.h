// Tables of cosines and sines for rotary embeddings.
#pragma once

#include <cstdint>
#include <span>

namespace woolly {

// cosines[p * n + i] = cos(p * frequencies[i]) * magnitudes[i], and the same of sines, for every position p of the
// tables. By additions and multiplications alone: the bits are the same on every machine, which those of a C library
// or of NumPy are not.
void rope_tables(std::span<const double> frequencies, std::span<const double> magnitudes, std::span<float> cosines,
                 std::span<float> sines);

}  // namespace woolly
