// Routing of rows to experts in a moe step.
#pragma once

#include <string_view>
#include <vector>

#include "cpu/kernels/table.h"
#include "cpu/program/memory.h"
#include "cpu/weights/matrix.h"

namespace woolly {

// Routing of the rows of a moe step; each worker has a copy. A slot is a (row, expert) pair; slots are sorted by
// expert, then by row.
struct Routes {
    std::vector<int32_t> chosen;  // [n_used], for a single row
    std::vector<float> shares;    // [n_used], for a single row
    std::vector<int32_t> first;   // [n_experts + 1]: first slot of each expert
    std::vector<int32_t> active;  // experts with slots, ascending
    std::vector<int32_t> tile;    // [n_experts]: first row tile of each expert; -1: not computed with tiles
    int64_t n_tiles = 0;
    std::vector<float> ranks, sums;               // [n_experts]: selection scores of a row; scores of its groups
    std::vector<int32_t> row;                     // [slots]
    std::vector<float> weight;                    // [slots]
    std::vector<ActivationRow> input[3], hidden;  // [n_used], for a single row
    Memory memory;                                // of `hidden`
};

// Scoring functions for the expert weights.
enum class Scoring { softmax, sigmoid, sparsemixer, sqrt_softplus };
Scoring scoring_named(std::string_view name);

// Selection and weighting of a row's experts.
struct Choice {
    int n_experts, n_used, groups, groups_used, group_top;
    Scoring scoring;
    bool normalize;
    float weights_scale;
    const Vector* select;  // selection bias, added to the scores for selection only; null: none
    int shared;            // consecutive experts that share one matrix; `chosen` holds matrices

    // Matrices of one row's experts in ascending order, and their weights. Ties go to the lower index. With `given`
    // (n_used expert ids), those are chosen.
    void choose(const float* logits, Routes& own, const float* given, int32_t* chosen, float* shares) const;

  private:
    bool is_alone() const { return scoring == Scoring::sigmoid || scoring == Scoring::sqrt_softplus; }
    // Score of a logit; softmax scores are not normalized yet.
    float score(float logit, float top) const;
    const float* rank(const float* logits, Routes& own) const;
    void mix(const float* logits, int32_t* chosen, float* shares) const;
};

}  // namespace woolly
