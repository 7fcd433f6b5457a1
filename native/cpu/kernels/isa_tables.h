// Parts of each level's kernel table (built by targets/parts.h). A later part replaces kernels of earlier ones: amx is
// avx512 with other kernels for many rows, neon_i8mm is neon with others. avx512f has floats and rows, shared by avx512
// and amx; its integer kernels are those of avx2.
#pragma once

#include "cpu/kernels/table.h"

namespace woolly {

struct Level {
    const char* name;
    const KernelTable* parts[14];
};

#define WOOLLY_DIFFERENCE_PARTS(level)                                                          \
    &k_##level##_blocks32, &k_##level##_many_bits, &k_##level##_few_bits, &k_##level##_ternary, \
        &k_##level##_points_of_8, &k_##level##_points_of_4
#define WOOLLY_FLOAT_PARTS(level) &k_##level##_floats, &k_##level##_rows
#define WOOLLY_PARTS(level) WOOLLY_DIFFERENCE_PARTS(level), WOOLLY_FLOAT_PARTS(level)
#define WOOLLY_DIFFERENCE(level)                                                                                     \
    extern const KernelTable k_##level##_blocks32, k_##level##_many_bits, k_##level##_few_bits, k_##level##_ternary, \
        k_##level##_points_of_8, k_##level##_points_of_4;
#define WOOLLY_FLOATS_AND_ROWS(level) extern const KernelTable k_##level##_floats, k_##level##_rows;
#define WOOLLY_LEVEL(level)       \
    WOOLLY_DIFFERENCE(level)      \
    WOOLLY_FLOATS_AND_ROWS(level) \
    inline constexpr Level k_##level##_level{#level, {WOOLLY_PARTS(level)}};

WOOLLY_LEVEL(scalar)
WOOLLY_LEVEL(avx2)
WOOLLY_LEVEL(avxvnni)
WOOLLY_LEVEL(neon)
WOOLLY_FLOATS_AND_ROWS(avx512f)
WOOLLY_DIFFERENCE(avx512)
WOOLLY_DIFFERENCE(amx)
WOOLLY_DIFFERENCE(neon_i8mm)
inline constexpr Level k_avx512f_level{"avx512f", {WOOLLY_DIFFERENCE_PARTS(avx2), WOOLLY_FLOAT_PARTS(avx512f)}};
inline constexpr Level k_avx512_level{"avx512", {WOOLLY_DIFFERENCE_PARTS(avx512), WOOLLY_FLOAT_PARTS(avx512f)}};
inline constexpr Level k_amx_level{
    "amx", {WOOLLY_DIFFERENCE_PARTS(avx512), WOOLLY_FLOAT_PARTS(avx512f), WOOLLY_DIFFERENCE_PARTS(amx)}};
inline constexpr Level k_neon_i8mm_level{"neon_i8mm", {WOOLLY_PARTS(neon), WOOLLY_DIFFERENCE_PARTS(neon_i8mm)}};

#undef WOOLLY_LEVEL
#undef WOOLLY_DIFFERENCE
#undef WOOLLY_FLOATS_AND_ROWS
#undef WOOLLY_PARTS
#undef WOOLLY_FLOAT_PARTS
#undef WOOLLY_DIFFERENCE_PARTS

// Complete table of a level.
inline KernelTable joined(const Level& level) {
    KernelTable table{};
    for (const KernelTable* part : level.parts) {
        if (part == nullptr) continue;
        if (part->quantize_32 != nullptr) static_cast<RowKernels&>(table) = *part;
        for (int type = 0; type < kWeightTypes; ++type) {
            if (part->dot[type] != nullptr) table.dot[type] = part->dot[type];
            if (part->wide[type].dot != nullptr) table.wide[type] = part->wide[type];
            if (part->grid[type].dot != nullptr) table.grid[type] = part->grid[type];
        }
        table.q4_k_in_row_pairs = table.q4_k_in_row_pairs || part->q4_k_in_row_pairs;
        table.f16_must_be_finite = table.f16_must_be_finite || part->f16_must_be_finite;
    }
    table.name = level.name;
    return table;
}

}  // namespace woolly
