// Codebooks of the IQ types: lists of points of 8 (or 4) digits; a block refers to a point by its rank.
// tests/quant/test_codebooks.py compares the tables with those of the gguf package.
#pragma once

#include <cstdint>

namespace woolly {

// Word `rank` has the values of the point's digits in its bytes, the first one lowest.
template <class Word, int n_points>
struct Codebook {
    Word words[n_points];
};

inline constexpr int8_t kIq2Values[3] = {8, 25, 43};
inline constexpr int8_t kIq3XxsValues[8] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr int8_t kIq3SValues[8] = {1, 3, 5, 7, 9, 11, 13, 15};
// Eight times -1, 0 and 1: a block adds or subtracts an eighth.
inline constexpr int8_t kIq1Values[3] = {-8, 0, 8};

// Built in points.cpp: all files include this header, and constexpr tables would cost each half a second.
extern const Codebook<uint64_t, 256> kIq2Xxs;
extern const Codebook<uint64_t, 512> kIq2Xs;
extern const Codebook<uint64_t, 1024> kIq2S;
extern const Codebook<uint32_t, 256> kIq3Xxs;
extern const Codebook<uint32_t, 512> kIq3S;
extern const Codebook<uint64_t, 2048> kIq1;

}  // namespace woolly
