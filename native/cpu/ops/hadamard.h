// Hadamard rotation of heads: spreads a few large columns over many, which cuts the 4-bit quantization error to a
// third. Queries are rotated like keys, so that products are unchanged; results are rotated back. Ops do this while
// they copy heads, because separate plan steps would read and write all queries, keys, values and results again.
#pragma once

#include <cmath>
#include <cstring>

#include "cpu/kernels/table.h"
#include "cpu/kernels/vec4.h"

namespace woolly {

constexpr bool is_rotated(KvType type) { return type == KvType::q4; }

// Columns of one Hadamard transform, for heads of `columns`, a multiple of 32: the largest power of two that divides
// it. 32 if V is a part of K, because V may end at any multiple of 32.
constexpr int hadamard_size(int columns, bool inside) { return inside ? 32 : columns & -columns; }

// Four columns at a time: a query is rotated again for every split of the context, and with scalar loops that took 10 %
// of the attention time.
namespace hadamard {

using Four = FourFloats;

inline Four load(const float* x) {
    Four four;
    std::memcpy(&four, x, sizeof four);
    return four;
}
inline void store(float* x, Four four) { std::memcpy(x, &four, sizeof four); }

// Butterflies of columns one apart, then two apart.
inline Four within(Four x) {
    constexpr Four one = {1, -1, 1, -1}, two = {1, 1, -1, -1};
    x = choose_four<0, 0, 2, 2>(x, x) + choose_four<1, 1, 3, 3>(x, x) * one;
    return choose_four<0, 1, 0, 1>(x, x) + choose_four<2, 3, 2, 3>(x, x) * two;
}

}  // namespace hadamard

// The matrix is its own inverse: applying it twice returns x.
inline void hadamard_transform(float* x, int columns, int together) {
    using hadamard::Four;
    const float scale = 1.0f / std::sqrt(float(together));
    for (int at = 0; at < columns; at += together) {
        float* part = x + at;
        for (int i = 0; i < together; i += 8) {
            const Four a = hadamard::within(hadamard::load(part + i)),
                       b = hadamard::within(hadamard::load(part + i + 4));
            hadamard::store(part + i, a + b);
            hadamard::store(part + i + 4, a - b);
        }
        for (int half = 8; half < together; half *= 2) {
            const float last = 2 * half == together ? scale : 1.0f;
            for (int i = 0; i < together; i += 2 * half)
                for (int j = i; j < i + half; j += 4) {
                    const Four a = hadamard::load(part + j), b = hadamard::load(part + j + half);
                    hadamard::store(part + j, (a + b) * last);
                    hadamard::store(part + j + half, (a - b) * last);
                }
        }
    }
}

}  // namespace woolly
