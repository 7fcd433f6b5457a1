// Attention: a block of 16 cached positions becomes f32 once, then several queries at a time meet each value while it
// is in a register. Every query goes through the same steps in the same order, whoever is computed beside it.

namespace woolly::WOOLLY_TARGET {

inline F32 soft_capped(F32 score, float cap) {
    if (cap == 0.0f) return score;
    // cap * tanh(score / cap) = cap - 2 cap / (exp(2 score / cap) + 1)
    const F32 e = exp(mul(score, set1(2.0f / cap)));
    return sub(set1(cap), div(set1(2.0f * cap), add(e, set1(1.0f))));
}

// Positions outside [first, last) of a block score minus infinity; their weight is then exactly 0.
inline F32 masked(F32 score, int position, int first, int last) {
    if (position >= first && position + 16 <= last) return score;
    float lanes[16];
    store(lanes, score);
    for (int i = 0; i < 16; ++i)
        if (position + i < first || position + i >= last) lanes[i] = -__builtin_inff();
    return load(lanes);
}

// The running softmax of one query: what a block of scores does to its maximum and sum, and to what was summed so far.
// Leaves the weights of the block, 0 outside [first, last).
[[gnu::always_inline]] inline void soften(F32 score, int position, int first, int last, int head_dim, float* out,
                                          float* max, float* sum, float* weights) {
    score = masked(score, position, first, last);
    const float largest = max_lanes(score);
    if (largest > *max) {
        float lanes[16];
        store(lanes, exp(set1(*max - largest)));
        const float shrink = *max == -__builtin_inff() ? 0.0f : lanes[0];
        for (int c = 0; c < head_dim; c += 16) store(out + c, mul(load(out + c), set1(shrink)));
        *sum *= shrink;
        *max = largest;
    }
    store(weights, exp(sub(score, set1(*max))));
    if (position < first || position + 16 > last)
        for (int i = 0; i < 16; ++i)
            if (position + i < first || position + i >= last) weights[i] = 0.0f;
    *sum += sum_lanes(load(weights));
}

// Scores of 16 positions for Q queries.
template <int Q>
inline void score_block(const float* k, const float* const* q, const AttentionTile& t, float* to) {
    for (int lane = 0; lane < 16; lane += kStrip) {
        StripF sum[Q];
        sum_columns<Q>(k + lane, q, t.head_dim, sum);
        for (int j = 0; j < Q; ++j) store(to + 16 * j + lane, scaled(sum[j], t.scale));
    }
}

// out += values of 16 positions by their weights, for Q queries.
template <int Q>
inline void value_block(const float* v, const float* weights, int head_dim, float* out) {
    for (int c = 0; c < head_dim; c += kStrip) {
        StripF acc[Q];
        for (int j = 0; j < Q; ++j) acc[j] = strip_load(out + j * head_dim + c);
        for (int i = 0; i < 16; i += 4) {
            Four four[Q];
            for (int j = 0; j < Q; ++j) four[j] = four_of(weights + 16 * j + i);
            each<4>([&]<int l>() __attribute__((always_inline)) {
                const StripF value = strip_load(v + (i + l) * head_dim + c);
                for (int j = 0; j < Q; ++j) acc[j] = fma_of<l>(value, four[j], acc[j]);
            });
        }
        for (int j = 0; j < Q; ++j) store(out + j * head_dim + c, acc[j]);
    }
}

// The same for one query and the positions that it sees: what lies in the cache at the others may be anything.
inline void some_values(const float* v, int head_dim, int position, int first, int last, const float* weights,
                        float* out) {
    const int from = first > position ? first - position : 0;
    const int to = last < position + 16 ? last - position : 16;
    for (int c = 0; c < head_dim; c += 16) {
        F32 acc = load(out + c);
        for (int i = from; i < to; ++i) acc = fma(load(v + i * head_dim + c), set1(weights[i]), acc);
        store(out + c, acc);
    }
}

template <class Kv>
inline void attend(const AttentionTile& t) {
    for (int i = 0; i < t.n_queries; ++i) t.max[i] = -__builtin_inff(), t.sum[i] = 0.0f;
    for (int i = 0; i < t.n_queries * t.head_dim; i += 16) store(t.out + i, zero());
    float *weights = t.scratch, *keys = weights + 16 * kTileQueries, *values = keys + 16 * t.head_dim;
    for (int block = 0; block < t.n_blocks; ++block) {
        const int position = 16 * (t.first_block + block);
        bool opened = false;
        for (int from = 0; from < t.n_queries; from += kTileQueries) {
            const int n = t.n_queries - from < kTileQueries ? t.n_queries - from : kTileQueries;
            bool seen = false, all = true;
            for (int j = from; j < from + n; ++j) {
                seen |= t.first[j] < position + 16 && t.last[j] > position && t.first[j] < t.last[j];
                all &= t.first[j] <= position && t.last[j] >= position + 16;
            }
            if (!seen) continue;
            if (!opened) {
                for (int c = 0; c < t.head_dim; ++c) store(keys + 16 * c, Kv::k(t.k_blocks[block], t.head_dim, c));
                for (int i = 0; i < 16; ++i)
                    for (int c = 0; c < t.head_dim; c += 16)
                        store(values + i * t.head_dim + c, Kv::v(t.v_blocks[block], t.head_dim, i, c));
                opened = true;
            }
            float* out = t.out + from * t.head_dim;
            in_groups<kScoreRows>(n, [&]<int Q>(int at) __attribute__((always_inline)) {
                score_block<Q>(keys, t.q + from + at, t, weights + 16 * at);
            });
            for (int j = 0; j < n; ++j) {
                const int first = t.first[from + j], last = t.last[from + j];
                if (first >= position + 16 || last <= position || first >= last) continue;
                float* w = weights + 16 * j;
                soften(soft_capped(load(w), t.softcap), position, first, last, t.head_dim, out + j * t.head_dim,
                       t.max + from + j, t.sum + from + j, w);
                if (!all) some_values(values, t.head_dim, position, first, last, w, out + j * t.head_dim);
            }
            if (all)
                in_groups<kValueRows>(n, [&]<int Q>(int at) __attribute__((always_inline)) {
                    value_block<Q>(values, weights + 16 * at, t.head_dim, out + at * t.head_dim);
                });
        }
    }
}

}  // namespace woolly::WOOLLY_TARGET
