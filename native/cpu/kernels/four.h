// Four floats at a time, which the oldest CPU of each platform has registers for.
#pragma once

#include <cstdint>

namespace woolly {

using FourFloats [[gnu::vector_size(16)]] = float;

// Four numbers of `a` and `b`, by their places in both. GCC has Clang's builtin from version 12 on.
template <int... places>
[[gnu::always_inline]] inline FourFloats choose_four(FourFloats a, FourFloats b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, places...);
#else
    using Places [[gnu::vector_size(16)]] = int32_t;
    return __builtin_shuffle(a, b, Places{places...});
#endif
}

}  // namespace woolly
