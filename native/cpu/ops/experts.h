// Which experts a row of a moe step goes to.
#pragma once

#include <string_view>
#include <vector>

#include "cpu/kernels/table.h"
#include "cpu/program/memory.h"
#include "cpu/weights/matrix.h"

namespace woolly {

// Which experts the rows of a moe step go to; every worker has its own copy. A slot is a row in one of its experts;
// slots are sorted by expert, and within an expert by row.
struct Routes {
    std::vector<int32_t> chosen;  // [n_used], of a single row
    std::vector<float> shares;    // [n_used], of a single row
    std::vector<int32_t> first;   // [n_experts + 1]: an expert's first slot
    std::vector<int32_t> active;  // experts that have slots, ascending
    std::vector<int32_t> tile;    // [n_experts]: an expert's first row tile; -1: not computed by tiles
    int64_t n_tiles = 0;
    std::vector<float> ranks, sums;               // [n_experts], of a row: what the choice sees; of its groups
    std::vector<int32_t> row;                     // [slots]
    std::vector<float> weight;                    // [slots]
    std::vector<ActivationRow> input[3], hidden;  // [n_used], of a single row
    Memory memory;                                // of `hidden`
};

// What the weights of experts are made from.
enum class Scoring { softmax, sigmoid, sparsemixer, sqrt_softplus };
Scoring scoring_named(std::string_view name);

// How a row's experts are chosen and weighted.
struct Choice {
    int n_experts, n_used, groups, groups_used, group_top;
    Scoring scoring;
    bool normalize;
    float weights_scale;
    const Vector* select;  // added to the scores that the choice sees; null for none
    int shared;            // experts in turn that have one matrix: what is chosen are matrices

    // The matrices of one row's experts in ascending order, and their weights. Of equal ranks the lower index wins.
    // With `given`, the numbers of n_used experts, these are chosen.
    void choose(const float* logits, Routes& own, const float* given, int32_t* chosen, float* shares) const;

  private:
    bool is_alone() const { return scoring == Scoring::sigmoid || scoring == Scoring::sqrt_softplus; }
    // The score of a logit; those of a softmax are not divided yet.
    float score(float logit, float top) const;
    const float* rank(const float* logits, Routes& own) const;
    void mix(const float* logits, int32_t* chosen, float* shares) const;
};

}  // namespace woolly
