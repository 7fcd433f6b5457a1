// Rotary embedding of a head by its token's position, for rope and store.
#pragma once

#include "cpu/program/arguments.h"
#include "cpu/program/batch.h"

namespace woolly {

struct Rotate {
    const int n_rot, column;  // elements that rotate; the first column of their table
    const bool adjacent;      // rotary pairs are adjacent

    explicit Rotate(const Arguments& a)
        : n_rot(a.integer("n_rot")), column(a.integer("rope_column")), adjacent(a.integer("adjacent") != 0) {
        a.vector("divisors");  // used by the tables of the batch
        if (n_rot < 0 || n_rot > a.integer("head_dim"))
            a.fail("cannot rotate " + std::to_string(n_rot) + " elements of a head");
    }

    // Columns of a pair.
    int left(int pair) const { return adjacent ? 2 * pair : pair; }
    int right(int pair) const { return adjacent ? 2 * pair + 1 : pair + n_rot / 2; }

    void operator()(const BatchView& batch, int64_t row, float* head) const {
        const float* cosine = batch.cosines + batch.rope_row(row) * batch.rope_width + column;
        const float* sine = batch.sines + batch.rope_row(row) * batch.rope_width + column;
        const int half = n_rot / 2;
        for (int i = 0; i < half; ++i) {
            float& a = head[left(i)];
            float& b = head[right(i)];
            const float x = a, z = b;
            a = x * cosine[i] - z * sine[i];
            b = x * sine[i] + z * cosine[i];
        }
    }
};

}  // namespace woolly
