// Keys stored without their bias. A bias many times larger than the rest of a key would use up all 4 bits of the key.
// It is the same for every position except for its rotation, so store subtracts it, and attend adds its part of the
// scores. With q rotated by its position, and a and b the two columns of a pair that rotates by the angle f per
// position, q . rotated(bias, p) = sum over pairs of A cos(f p) + B sin(f p), A = qa ba + qb bb, B = qb ba - qa bb. For
// a position s + i of a split that begins at s this is A' cos(f i) + B' sin(f i) with A and B rotated by s: cosines and
// sines are the same for all splits and heads, and A' and B' are multiplied by them like a query by keys.
#pragma once

#include <deque>
#include <stdexcept>
#include <vector>

#include "cpu/ops/rotate.h"
#include "cpu/program/program.h"

namespace woolly {

// Cosines and sines of the positions of a split, for some columns of the batch's tables, without their magnitude.
struct SplitRotations {
    std::vector<int> columns;
    std::vector<float> rows;  // [2 * columns][kSplit]: for each column the cosines, then the sines
    bool is_made = false;

    void make(const BatchView& batch) {
        if (is_made) return;
        if (batch.rope_rows != nullptr || batch.n_rope_rows < kSplit)
            throw std::invalid_argument("keys without their bias need rope positions equal to positions");
        float* to = rows.data();
        for (const int column : columns)
            for (const float* table : {batch.cosines, batch.sines})
                for (int i = 0; i < kSplit; ++i) *to++ = table[i * batch.rope_width + column] / batch.cosines[column];
        is_made = true;
    }
};

struct CenteredScratch final : Scratch {
    std::deque<SplitRotations> rotations;  // shared by layers with the same columns

    const SplitRotations* of(std::vector<int> columns) {
        for (const SplitRotations& one : rotations)
            if (one.columns == columns) return &one;
        return &rotations.emplace_back(SplitRotations{std::move(columns), {}});
    }
    void allocate(const Program&) override {
        for (SplitRotations& one : rotations) one.rows.resize(2 * one.columns.size() * kSplit);
    }
    void begin(const BatchView& batch) override {
        for (SplitRotations& one : rotations) one.make(batch);
    }
};

// Bias of keys that attend adds; empty if the step has none.
struct KeyBias {
    const Vector* const bias;  // [n_kv_heads, head_dim]
    const int head_dim;
    std::vector<int> columns;  // left and right columns of each pair with a bias in any head
    const SplitRotations* rotations = nullptr;

    KeyBias(const Arguments& a, int n) : bias(a.vector("k_bias")), head_dim(n) {
        if (bias == nullptr) return;
        const Rotate rotate(a);
        std::vector<int> tables;
        for (int pair = 0; pair < rotate.n_rot / 2; ++pair) {
            bool is_biased = false;
            for (int64_t at = 0; at < bias->n; at += head_dim)
                is_biased |= bias->data[at + rotate.left(pair)] != 0.0f || bias->data[at + rotate.right(pair)] != 0.0f;
            if (!is_biased) continue;
            columns.push_back(rotate.left(pair)), columns.push_back(rotate.right(pair));
            tables.push_back(rotate.column + pair);
        }
        rotations = a.program->scratch<CenteredScratch>().of(std::move(tables));
    }

    int n_terms() const { return int(columns.size()); }  // of a query
    // Coefficients of `rotations` for a query of a KV head, in the split that begins at position `start`.
    void terms(const BatchView& batch, int start, int kv_head, const float* q, float scale, float* to) const {
        const float* of_head = bias->data + kv_head * head_dim;
        const float* cosines = batch.cosines + start * batch.rope_width;
        const float* sines = batch.sines + start * batch.rope_width;
        for (size_t i = 0; i < rotations->columns.size(); ++i) {
            const int left = columns[2 * i], right = columns[2 * i + 1];
            const float a = q[left] * of_head[left] + q[right] * of_head[right];
            const float b = q[right] * of_head[left] - q[left] * of_head[right];
            const float cosine = cosines[rotations->columns[i]], sine = sines[rotations->columns[i]];
            to[2 * i] = (a * cosine + b * sine) * scale;
            to[2 * i + 1] = (b * cosine - a * sine) * scale;
        }
    }
};

}  // namespace woolly
