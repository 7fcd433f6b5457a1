// Heads turned by Hadamard's matrix: a few large columns become many middling ones, which 4 bits keep with a third of
// the loss. Queries are turned as keys are, so that products stay; results are turned back. Ops do it where they copy
// heads anyway: as steps of a plan it would read and write all queries, keys, values and results once more.
#pragma once

#include <cmath>

#include "cpu/kernels/table.h"

namespace woolly {

constexpr bool is_turned(KvType type) { return type == KvType::q4; }

// Columns that are turned together, of heads of `columns`, a multiple of 32: the largest power of two that divides
// them. 32 if V is a part of K, whose columns V may leave at any multiple of 32.
constexpr int turned_together(int columns, bool inside) { return inside ? 32 : columns & -columns; }

// The matrix is its own inverse: turning twice gives x again.
inline void turn_head(float* x, int columns, int together) {
    const float scale = 1.0f / std::sqrt(float(together));
    for (int at = 0; at < columns; at += together) {
        float* part = x + at;
        for (int half = 1; half < together; half *= 2)
            for (int i = 0; i < together; i += 2 * half)
                for (int j = i; j < i + half; ++j) {
                    const float a = part[j], b = part[j + half];
                    part[j] = a + b, part[j + half] = a - b;
                }
        for (int i = 0; i < together; ++i) part[i] *= scale;
    }
}

}  // namespace woolly
