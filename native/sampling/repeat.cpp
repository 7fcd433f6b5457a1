#include <algorithm>

#include "sampling/sampling.h"

namespace woolly {

// Z function of the reversed tokens: linear, because the window [left, right) only moves forward.
void repeat_lengths(std::span<const std::int32_t> tokens, std::int32_t limit, std::span<std::int32_t> out) {
    const std::size_t n = tokens.size();
    if (n == 0) return;
    const auto back = [&](std::size_t i) { return tokens[n - 1 - i]; };
    const auto length = [&](std::size_t i) -> std::int32_t& { return out[n - 1 - i]; };
    length(0) = 0;
    std::size_t left = 0, right = 0;  // [left, right) repeats the start
    for (std::size_t i = 1; i < n; ++i) {
        std::size_t same = 0;
        if (i < right) same = std::min(right - i, static_cast<std::size_t>(length(i - left)));
        while (i + same < n && back(same) == back(i + same)) ++same;
        if (i + same > right) {
            left = i;
            right = i + same;
        }
        length(i) = static_cast<std::int32_t>(same);
    }
    for (std::int32_t& value : out) value = std::min(value, limit);
}

}  // namespace woolly
