// Keys without their bias. A bias that is many times larger than what it is added to takes all 4 bits of a key, and is
// the same for every position but for its turn: so store leaves it out, and attend adds its part of the scores. With q
// turned by its own position, a and b the two columns of a pair that turns by the angle f with each position,
//   q . turned(bias, p) = sum over pairs of A cos(f p) + B sin(f p), A = qa ba + qb bb, B = qb ba - qa bb.
// For a position s + i of a split that begins at s this is A' cos(f i) + B' sin(f i) with A and B turned by s: cosines
// and sines are the same for all splits and heads, and A' and B' are multiplied with them as a query is with keys.
#pragma once

#include <deque>
#include <stdexcept>
#include <vector>

#include "cpu/ops/turn.h"
#include "cpu/program/program.h"

namespace woolly {

// Cosines and sines of the positions of a split, for some columns of the tables of a batch, without their magnitude.
struct SplitTurns {
    std::vector<int> columns;
    std::vector<float> rows;  // [2 * columns][kSplit]: of each column the cosines, then the sines
    bool is_made = false;

    void make(const BatchView& batch) {
        if (is_made) return;
        if (batch.turn_rows != nullptr || batch.n_turns < kSplit)
            throw std::invalid_argument("keys without their bias turn by their positions alone");
        float* to = rows.data();
        for (const int column : columns)
            for (const float* table : {batch.cosines, batch.sines})
                for (int i = 0; i < kSplit; ++i) *to++ = table[i * batch.turn_width + column] / batch.cosines[column];
        is_made = true;
    }
};

struct CenteredScratch final : Scratch {
    std::deque<SplitTurns> turns;  // layers with the same columns share

    const SplitTurns* of(std::vector<int> columns) {
        for (const SplitTurns& one : turns)
            if (one.columns == columns) return &one;
        return &turns.emplace_back(SplitTurns{std::move(columns), {}});
    }
    void allocate(const Program&) override {
        for (SplitTurns& one : turns) one.rows.resize(2 * one.columns.size() * kSplit);
    }
    void begin(const BatchView& batch) override {
        for (SplitTurns& one : turns) one.make(batch);
    }
};

// The bias of keys that attend adds; none if the step has none.
struct KeyBias {
    const Vector* const bias;  // [n_kv_heads, head_dim]
    const int head_dim;
    std::vector<int> columns;  // left and right ones of each pair of which some head has a bias
    const SplitTurns* turns = nullptr;

    KeyBias(const Arguments& a, int n) : bias(a.vector("k_bias")), head_dim(n) {
        if (bias == nullptr) return;
        const Turn turn(a);
        std::vector<int> tables;
        for (int pair = 0; pair < turn.n_rot / 2; ++pair) {
            bool is_biased = false;
            for (int64_t at = 0; at < bias->n; at += head_dim)
                is_biased |= bias->data[at + turn.left(pair)] != 0.0f || bias->data[at + turn.right(pair)] != 0.0f;
            if (!is_biased) continue;
            columns.push_back(turn.left(pair)), columns.push_back(turn.right(pair));
            tables.push_back(turn.column + pair);
        }
        turns = a.program->scratch<CenteredScratch>().of(std::move(tables));
    }

    int n_terms() const { return int(columns.size()); }  // of a query
    // What a query of a KV head is multiplied with `turns` by, in the split that begins at position `start`.
    void terms(const BatchView& batch, int start, int kv_head, const float* q, float scale, float* to) const {
        const float* of_head = bias->data + kv_head * head_dim;
        const float* cosines = batch.cosines + start * batch.turn_width;
        const float* sines = batch.sines + start * batch.turn_width;
        for (size_t i = 0; i < turns->columns.size(); ++i) {
            const int left = columns[2 * i], right = columns[2 * i + 1];
            const float a = q[left] * of_head[left] + q[right] * of_head[right];
            const float b = q[right] * of_head[left] - q[left] * of_head[right];
            const float cosine = cosines[turns->columns[i]], sine = sines[turns->columns[i]];
            to[2 * i] = (a * cosine + b * sine) * scale;
            to[2 * i + 1] = (b * cosine - a * sine) * scale;
        }
    }
};

}  // namespace woolly
