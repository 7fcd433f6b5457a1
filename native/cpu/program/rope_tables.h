// Tables of cosines and sines for rotary embeddings.
#pragma once

#include <cstdint>
#include <span>

namespace woolly {

// cosines[p * n + i] = cos(p * frequencies[i]) * magnitudes[i], and sines likewise, for every position p of the tables.
// Uses additions and multiplications only: bit-identical on every machine, unlike C libraries or NumPy.
void rope_tables(std::span<const double> frequencies, std::span<const double> magnitudes, std::span<float> cosines,
                 std::span<float> sines);

}  // namespace woolly
