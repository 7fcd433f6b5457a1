#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// What a sampler does over the whole vocabulary. Order is by value, and equal values go by the lowest id:
// the same on every machine, whatever the compiler's sort does with ties.
namespace woolly {

// The ids.size() largest in descending order, ids and values; ids.size() <= row.size().
// False if the row holds a NaN or plus infinity, or nothing but minus infinities: they then mean nothing.
bool largest(std::span<const float> row, std::span<std::int32_t> ids, std::span<float> values);

// out[i] = row[i] if bit i of the words is set, counted from the lowest of the first; else minus infinity.
void mask(std::span<const float> row, std::span<const std::uint32_t> words, std::span<float> out);

// out[i] = exp(row[i] - top) in float; gives their sum, added up in float from first to last.
float weigh(std::span<const float> row, float top, std::span<float> out);

// The first place at which the sum of exp(row[i] - top), in double, reaches u times the total.
std::int64_t draw(std::span<const float> row, float top, double u);

// out[i] = log(values[i]), or its logarithm to base 2, in double, rounded once.
void logs(std::span<const float> values, bool base_2, std::span<float> out);

// log(sum(exp(row))) in double, summed in order. The row holds a finite value, and neither NaN nor plus infinity.
double log_sum_exp(std::span<const float> row);

// out[i]: how many tokens that end at i are also the last ones of all, at most `limit`; the last entry is 0.
void repeat_lengths(std::span<const std::int32_t> tokens, std::int32_t limit, std::span<std::int32_t> out);

}  // namespace woolly
