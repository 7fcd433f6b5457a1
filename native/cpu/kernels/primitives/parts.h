// A statement for each part i of what several registers hold, one after another. No loop: GCC unrolls it late, computes
// with the parts in memory until then, and takes a third longer for a kernel.
#pragma once

#define WOOLLY_PART_I(part, ...) \
    {                            \
        constexpr int i = part;  \
        __VA_ARGS__;             \
    }
#define WOOLLY_TWICE(...) {WOOLLY_PART_I(0, __VA_ARGS__) WOOLLY_PART_I(1, __VA_ARGS__)}
#define WOOLLY_FOUR_TIMES(...)                                                                 \
    {WOOLLY_PART_I(0, __VA_ARGS__) WOOLLY_PART_I(1, __VA_ARGS__) WOOLLY_PART_I(2, __VA_ARGS__) \
         WOOLLY_PART_I(3, __VA_ARGS__)}
