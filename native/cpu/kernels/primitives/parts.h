// Repeats a statement for each part i of a value in several registers. Not a loop: GCC unrolls it late, keeps the parts
// in memory until then, and the kernel takes a third longer.
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
