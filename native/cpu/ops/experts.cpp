#include "cpu/ops/experts.h"

#include <algorithm>
#include <cmath>

#include "cpu/ops/functions.h"

namespace woolly {

namespace {

// Added to the sum that normalizes the weights: all sigmoids of a row may be 0.
constexpr float kMinSum = 1e-20f;
// A logit takes part in a round of the sparse mixer if it is below the best one by at most this fraction of the larger
// magnitude: twice the noise of the router in training.
constexpr float kReach = 0.02f;

}  // namespace

Scoring scoring_named(std::string_view name) {
    if (name == "sparsemixer") return Scoring::sparsemixer;
    if (name == "sqrt_softplus") return Scoring::sqrt_softplus;
    return name == "sigmoid" ? Scoring::sigmoid : Scoring::softmax;
}

float Choice::score(float logit, float top) const {
    if (scoring == Scoring::sqrt_softplus) return std::sqrt(softplus_of(logit));
    return scoring == Scoring::sigmoid ? sigmoid_of(logit) : exp_of(logit - top);
}

// Scores for selecting experts. Logits have the order of the scores with fewer ties; a selection bias is added to the
// scores. Groups whose two best scores have a lower sum than those of other groups are excluded.
const float* Choice::rank(const float* logits, Routes& own) const {
    if (select == nullptr && groups == 0) return logits;
    float* ranks = own.ranks.data();
    const float top = *std::max_element(logits, logits + n_experts);
    float sum = 0;
    for (int e = 0; e < n_experts; ++e) sum += ranks[e] = score(logits[e], top);
    for (int e = 0; e < n_experts; ++e)
        ranks[e] = ranks[e] / (is_alone() ? 1.0f : sum) + (select == nullptr ? 0.0f : select->data[e]);
    const int each = groups == 0 ? 0 : n_experts / groups;
    for (int g = 0; g < groups; ++g) {
        float best = -INFINITY, second = -INFINITY;
        for (int e = g * each; e < (g + 1) * each; ++e) {
            second = std::max(second, std::min(best, ranks[e]));
            best = std::max(best, ranks[e]);
        }
        own.sums[size_t(g)] = group_top == 1 ? best : best + second;
    }
    for (int g = 0; g < groups; ++g) {
        int before = 0;  // groups ranked higher; ties go to the lower index
        for (int other = 0; other < groups; ++other) {
            const float mine = own.sums[size_t(g)], its = own.sums[size_t(other)];
            before += its > mine || (its == mine && other < g);
        }
        for (int e = g * each; e < (g + 1) * each; ++e)
            if (before >= groups_used)
                ranks[e] = -INFINITY;
            else if (select == nullptr)
                ranks[e] = logits[e];
    }
    return ranks;
}

// Weights of the sparse mixer: each expert, best first, against experts near it that are not chosen yet.
void Choice::mix(const float* logits, int32_t* chosen, float* shares) const {
    for (int j = 0; j < n_used; ++j) {
        const float top = logits[chosen[j]];
        float sum = 0;
        for (int32_t e = 0; e < n_experts; ++e)
            if (std::find(chosen, chosen + j, e) == chosen + j &&
                !((top - logits[e]) / std::max(std::abs(logits[e]), top) > kReach))
                sum += exp_of(logits[e] - top);
        shares[j] = weights_scale / sum;
    }
    for (int j = 1; j < n_used; ++j)
        for (int at = j; at > 0 && chosen[at] < chosen[at - 1]; --at) {
            std::swap(chosen[at], chosen[at - 1]);
            std::swap(shares[at], shares[at - 1]);
        }
}

void Choice::choose(const float* logits, Routes& own, const float* given, int32_t* chosen, float* shares) const {
    const float* ranks = given == nullptr ? rank(logits, own) : nullptr;
    const int k = n_used;
    for (int j = 0; given != nullptr && j < k; ++j) chosen[j] = int32_t(given[j]);
    for (int32_t e = 0; given == nullptr && e < n_experts; ++e) {
        int at = std::min(int(e), k);
        if (at == k && !(ranks[e] > ranks[chosen[--at]])) continue;
        for (; at > 0 && ranks[e] > ranks[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
        chosen[at] = e;
    }
    if (scoring == Scoring::sparsemixer) return mix(logits, chosen, shares);
    const float top = ranks == logits ? logits[chosen[0]] : *std::max_element(logits, logits + n_experts);
    std::sort(chosen, chosen + k);
    float sum = 0;
    for (int j = 0; j < k; ++j) sum += shares[j] = score(logits[chosen[j]], top);
    if (normalize)
        sum += kMinSum;
    else if (is_alone())
        sum = 1;
    else {
        sum = 0;
        for (int32_t e = 0; e < n_experts; ++e) sum += score(logits[e], top);
    }
    for (int j = 0; j < k; ++j) {
        shares[j] = shares[j] / sum * weights_scale;
        chosen[j] /= shared;
    }
}

}  // namespace woolly
