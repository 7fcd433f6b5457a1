// Vectors of four floats: 128-bit registers exist on the oldest supported CPU of each platform.
#pragma once

#include <cstdint>

namespace woolly {

using FourFloats [[gnu::vector_size(16)]] = float;

// Shuffle of `a` and `b` by indices into their concatenation. GCC has Clang's builtin from version 12 on.
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
