#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// Sampling primitives over the entire vocabulary. Ordered by value, ties to the lowest id: identical on every machine,
// independent of the compiler's sort.
namespace woolly {

// Top ids.size() logits in descending order, ids and values; ids.size() <= row.size(). False if the row has NaN or plus
// infinity, or only minus infinities: the output is then invalid.
bool largest(std::span<const float> row, std::span<std::int32_t> ids, std::span<float> values);

// out[i] = row[i] if bit i of the words is set, counted from the lowest of the first; else minus infinity.
void mask(std::span<const float> row, std::span<const std::uint32_t> words, std::span<float> out);

// out[i] = exp(row[i] - top) in float; returns their sum, in float from first to last.
float weigh(std::span<const float> row, float top, std::span<float> out);

// First index at which the cumulative sum of exp(row[i] - top), in double, reaches u times the total.
std::int64_t draw(std::span<const float> row, float top, double u);

// out[i] = log(values[i]) or log2(values[i]), in double, rounded once.
void logs(std::span<const float> values, bool base_2, std::span<float> out);

// log(sum(exp(row))) in double, summed in order. The row must have a finite value, and no NaN or plus infinity.
double log_sum_exp(std::span<const float> row);

// out[i]: length of the longest common suffix, at most `limit`, of all tokens and the tokens up to i; the last entry is
// 0.
void repeat_lengths(std::span<const std::int32_t> tokens, std::int32_t limit, std::span<std::int32_t> out);

}  // namespace woolly
