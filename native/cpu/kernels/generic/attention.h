// Attention over one split of the KV cache. 64 positions of K at a time are converted to f32 once for all queries; the
// scores of the split are followed by the softmax of each query, then V is processed like K. Each query runs the same
// steps in the same order, independent of the other queries.

namespace woolly::WOOLLY_TARGET {

[[gnu::always_inline]] inline F32 soft_capped(F32 score, float cap) {
    if (cap == 0.0f) return score;
    // cap * tanh(score / cap) = cap - 2 cap / (exp(2 score / cap) + 1)
    const F32 e = exp(mul(score, set1(2.0f / cap)));
    return sub(set1(cap), div(set1(2.0f * cap), add(e, set1(1.0f))));
}

// Fills positions with `other` that are in a block touched by [first, last) but outside the range.
inline void fill_around(float* a, int first, int last, float other) {
    for (int i = first / 16 * 16; i < first; ++i) a[i] = other;
    for (int i = last; i < (last + 15) / 16 * 16; ++i) a[i] = other;
}

// Visible positions of a query, relative to the start of the split.
struct Seen {
    int first, last;
};

inline Seen seen_by(const AttentionTile& t, int query) {
    const int start = 16 * t.first_block;
    if (t.first[query] >= t.last[query]) return {0, 0};
    return {t.first[query] - start, t.last[query] - start};
}

// Distances of 16 positions from `first` on to position 0. Exact: no context has 2^24 positions.
inline F32 distances(int first) {
    static constexpr float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return abs(add(load(lanes), set1(float(first))));
}

// Additions to the scaled product: softcap, bias, slopes, terms.
[[gnu::noinline]] inline void adjust(const AttentionTile& t, int query, Seen seen, float* scores) {
    const float* bias = t.bias == nullptr ? nullptr : t.bias[query] + 16 * t.first_block;
    for (int at = seen.first / 16 * 16; at < seen.last; at += 16) {
        F32 one = load(scores + at);
        if (bias != nullptr) one = add(one, load(bias + at));
        if (t.slopes != nullptr)
            one = add(one, mul(set1(-t.slopes[query]), distances(16 * t.first_block + at - t.positions[query])));
        store(scores + at, soft_capped(one, t.softcap));
    }
}

// Turns the scaled products of one query into scores; masked positions of visible blocks get -inf. Returns the maximum.
[[gnu::always_inline]] inline float score(const AttentionTile& t, int query, Seen seen, float* scores) {
    const auto [first, last] = seen;
    if (first == last) return -__builtin_inff();
    if (t.bias != nullptr || t.slopes != nullptr || t.softcap != 0.0f) adjust(t, query, seen, scores);
    if (first % 16 != 0 || last % 16 != 0) fill_around(scores, first, last, -__builtin_inff());
    F32 top = set1(-__builtin_inff());
    for (int at = first / 16 * 16; at < last; at += 16) top = larger(load(scores + at), top);
    return max_lanes(top);
}

// Turns scores into weights, 0 at masked positions of visible blocks. Returns their sum.
[[gnu::always_inline]] inline float weigh(Seen seen, float largest, float* scores) {
    const auto [first, last] = seen;
    const int begin = first / 16 * 16;
    F32 sum = zero();
    if (first == last) return 0.0f;
    int at = begin;
    for (; at + 16 < last; at += 32) {
        F32 weights[] = {sub(load(scores + at), set1(largest)), sub(load(scores + at + 16), set1(largest))};
        exp_below(weights);
        for (int i = 0; i < 2; ++i) {
            store(scores + at + 16 * i, weights[i]);
            sum = add(sum, weights[i]);
        }
    }
    if (at < last) {
        const F32 weight = exp_below(sub(load(scores + at), set1(largest)));
        store(scores + at, weight);
        sum = add(sum, weight);
    }
    if (first % 16 != 0 || last % 16 != 0) {
        fill_around(scores, first, last, 0.0f);
        sum = zero();
        for (at = begin; at < last; at += 16) sum = add(sum, load(scores + at));
    }
    return sum_lanes(sum);
}

// Softmax of n queries over the split. Several maxima are computed before any weights to hide latency: reducing the
// scores to the maximum lane takes as long as all of the exponentials.
[[gnu::noinline]] inline void soften(const AttentionTile& t, int query, int n, float* scores) {
    constexpr int kTogether = 4;
    for (int j = query; j < query + n; j += kTogether) {
        const int end = j + kTogether < query + n ? j + kTogether : query + n;
        float* at = scores + kSplit * (j - query);
        for (int i = j; i < end; ++i) t.sums.max[i] = score(t, i, seen_by(t, i), at + kSplit * (i - j));
        for (int i = j; i < end; ++i) t.sums.sum[i] = weigh(seen_by(t, i), t.sums.max[i], at + kSplit * (i - j));
    }
}

// Calls f with every fourth of n rows of `width` numbers of a block, and prefetches the same rows of a later block and,
// if not null, of a block of the next split.
template <class Kv, class F>
[[gnu::always_inline]] inline void fours(int n, int width, const uint8_t* later, const uint8_t* next, const F& f) {
    const int bytes = 4 * width * Kv::bits / 8;
    for (int at = 0; at < n; at += 4, later += bytes) {
        for (int line = 0; line < bytes; line += 64) prefetch(later + line);
        if (next != nullptr)
            for (int line = 0; line < bytes; line += 64) prefetch_early(next + at / 4 * bytes + line);
        f(at);
    }
}

// Keys of `n` blocks as f32, in columns of kChunk positions.
template <class Kv>
[[gnu::noinline]] void open_keys(const AttentionTile& t, int block, int n, float* keys) {
    const int k_dim = t.k_dim;
    for (int b = 0; b < n; ++b) {
        const int later = block + b + kChunkBlocks;  // V follows K
        const uint8_t* const* fetched = later < t.n_blocks || t.v_blocks == nullptr ? t.k_blocks : t.v_blocks;
        const uint8_t* from = t.k_blocks[block + b];
        const uint8_t* next = t.next_k == nullptr ? nullptr : t.next_k[block + b];
        float* to = keys + 16 * b;
        fours<Kv>(k_dim, 16, fetched[later % t.n_blocks], next, [&](int c) __attribute__((always_inline)) {
            if constexpr (Kv::bits < 16)
                Kv::four_k(from, k_dim, c, to + kChunk * c, kChunk);
            else
                for (int i = c; i < c + 4; ++i) store(to + kChunk * i, Kv::k(from, k_dim, i));
        });
    }
}

// Values of `n` blocks as f32, position by position.
template <class Kv>
[[gnu::noinline]] void open_values(const AttentionTile& t, int block, int n, float* values) {
    const int v_dim = t.v_dim;
    for (int b = 0; b < n; ++b) {
        const int later = block + b + kChunkBlocks < t.n_blocks ? block + b + kChunkBlocks : block + b;
        const uint8_t* from = t.v_blocks[block + b];
        const uint8_t* next = t.next_v == nullptr ? nullptr : t.next_v[block + b];
        float* to = values + 16 * b * v_dim;
        fours<Kv>(16, v_dim, t.v_blocks[later], next, [&](int at) __attribute__((always_inline)) {
            for (int i = at; i < at + 4; ++i)
                if constexpr (Kv::bits < 16)
                    for (int c = 0; c < v_dim; c += 32) Kv::whole_v(from, v_dim, i, c, to + i * v_dim + c);
                else
                    for (int c = 0; c < v_dim; c += 16) store(to + i * v_dim + c, Kv::v(from, v_dim, i, c));
        });
    }
}

template <class Kv>
constexpr KvKernels kv_kernels() {
    KvKernels kernels{Kv::store_k, Kv::store_v, open_keys<Kv>, open_values<Kv>, nullptr, nullptr};
    if constexpr (Kv::bits == 16) kernels.score_few = score_few<Kv>, kernels.add_few = add_few<Kv>;
    return kernels;
}

// Values if V is the first columns of K.
inline void open_inside(const AttentionTile& t, int block, int n, float* keys, float* values) {
    t.k->open_k(t, block, n, keys);
    for (int c = 0; c < t.v_dim; c += 16)
        for (int i = 0; i < 16 * n; ++i)
            for (int j = 0; j < 16; ++j) values[i * t.v_dim + c + j] = keys[kChunk * (c + j) + i];
}

// Calls add(query, count, first position, last) for positions [from, to) and n queries within their masks: together
// where all of them are visible. Masked cache positions may hold any value.
template <class Add>
[[gnu::always_inline]] inline void as_seen(const AttentionTile& t, int query, int n, int from, int to, const Add& add) {
    int low = from, high = to;  // positions visible to all queries
    for (int j = 0; j < n; ++j) {
        const auto [first, last] = seen_by(t, query + j);
        low = first > low ? first : low;
        high = last < high ? last : high;
    }
    const auto alone = [&](bool after) {
        for (int j = 0; j < n; ++j) {
            const auto [first, last] = seen_by(t, query + j);
            const int begin = after && low < high ? high : from, end = after || low >= high ? to : low;
            const int first_of = first > begin ? first : begin, last_of = last < end ? last : end;
            if (first_of < last_of) add(query + j, 1, first_of, last_of);
        }
    };
    if (low > from || low >= high) alone(false);
    if (low >= high) return;
    add(query, n, low, high);
    if (high < to) alone(true);
}

// Adds the opened values of positions [from, to) to each of n queries within its mask.
inline void add_values(const AttentionTile& t, int query, int n, int from, int to, const float* values,
                       const float* weights) {
    const float* rows[kProductRows];
    for (int j = 0; j < n; ++j) rows[j] = weights + kSplit * j + from;
    as_seen(t, query, n, from, to, [&](int first_query, int count, int first, int last) {
        products({values, t.v_dim, rows + (first_query - query), first - from, last - from, t.v_dim,
                  t.sums.out + first_query * t.v_dim, t.v_dim, true},
                 count);
    });
}

// Attention of at most kFewQueries queries, which reads the cache in its type, without an f32 copy in memory.
inline void attend_few(const AttentionTile& t) {
    float* scores = t.scratch;
    for (int i = 0; i < t.n_queries * t.v_dim; i += 16) store(t.sums.out + i, zero());
    int low = 16 * t.n_blocks, high = 0;  // positions visible to any query
    for (int i = 0; i < t.n_queries; ++i) {
        const auto [first, last] = seen_by(t, i);
        if (first == last) continue;
        low = first < low ? first : low;
        high = last > high ? last : high;
    }
    if (low < high) t.k->score_few(t, 0, t.n_queries, low / 16, (high + 15) / 16, scores);
    soften(t, 0, t.n_queries, scores);
    as_seen(t, 0, t.n_queries, 0, 16 * t.n_blocks, [&](int query, int count, int first, int last) {
        t.v->add_few(t, query, count, first, last, scores + kSplit * query);
    });
}

// Attention of at most kTileQueries queries from `from` on.
inline void attend_some(const AttentionTile& t, int from, int n) {
    float *scores = t.scratch, *keys = scores + kTileQueries * kSplit, *values = keys + kChunk * t.k_dim;
    for (int i = from * t.v_dim; i < (from + n) * t.v_dim; i += 16) store(t.sums.out + i, zero());
    // Calls f for every chunk and each group of queries to which part of it is visible; opens the chunk before the
    // first.
    const auto chunks = [&](const auto& open, const auto& f) {
        for (int block = 0; block < t.n_blocks; block += kChunkBlocks) {
            const int blocks = t.n_blocks - block < kChunkBlocks ? t.n_blocks - block : kChunkBlocks;
            const int begin = 16 * block, end = begin + 16 * blocks;
            bool opened = false;
            in_even_groups(n, [&](int at, int count) {
                bool seen = false;
                for (int j = at; j < at + count; ++j) {
                    const auto [first, last] = seen_by(t, from + j);
                    seen |= first < end && last > begin;
                }
                if (!seen) return;
                if (!opened) open(block, blocks);
                opened = true;
                f(at, count, begin, end);
            });
        }
    };
    chunks([&](int block, int blocks) { t.k->open_k(t, block, blocks, keys); },
           [&](int at, int count, int begin, int end) {
               float* to = scores + kSplit * at + begin;
               products({keys, kChunk, t.q + from + at, 0, t.k_dim, end - begin, to, kSplit, false, t.scale}, count);
               if (t.n_terms > 0)
                   products(
                       {t.rotations + begin, kSplit, t.terms + from + at, 0, t.n_terms, end - begin, to, kSplit, true},
                       count);
           });
    soften(t, from, n, scores);
    chunks(
        [&](int block, int blocks) {
            if (t.v_blocks == nullptr)
                open_inside(t, block, blocks, keys, values);
            else
                t.v->open_v(t, block, blocks, values);
        },
        [&](int at, int count, int begin, int end) {
            add_values(t, from + at, count, begin, end, values, scores + kSplit * at);
        });
}

inline void attend(const AttentionTile& t) {
    const bool is_direct = t.v_blocks != nullptr && t.k->score_few != nullptr && t.v->add_few != nullptr;
    if (t.n_queries <= kFewQueries && is_direct) return attend_few(t);
    for (int from = 0; from < t.n_queries; from += kTileQueries)
        attend_some(t, from, t.n_queries - from < kTileQueries ? t.n_queries - from : kTileQueries);
}

inline void merge(const AttentionSums& to, const AttentionSums& next, int n_queries, int v_dim) {
    const float none = -__builtin_inff();
    for (int from = 0; from < n_queries; from += 16) {
        const int n = n_queries - from < 16 ? n_queries - from : 16;
        float old_share[16], new_share[16];
        const auto maxima = [&](const float* p) { return n == 16 ? load(p + from) : load_some(p + from, n); };
        const F32 a = maxima(to.max), b = maxima(next.max), top = max(a, b);
        store(old_share, exp(sub(a, top)));
        store(new_share, exp(sub(b, top)));
        for (int i = 0; i < n; ++i) {
            const int h = from + i;
            if (to.max[h] == none) old_share[i] = 0.0f;
            if (next.max[h] == none) new_share[i] = 0.0f;
            to.sum[h] = to.sum[h] * old_share[i] + next.sum[h] * new_share[i];
            const F32 old = set1(old_share[i]), added = set1(new_share[i]);
            for (int c = h * v_dim; c < (h + 1) * v_dim; c += 16)
                store(to.out + c, fma(load(next.out + c), added, mul(load(to.out + c), old)));
        }
        store_some(to.max + from, top, n);
    }
}

// Scores of the sparse-attention index over positions.

// Sum over queries of weight * max(product, 0) for kChunk positions.
inline void weigh_heads(const float* products, const float* weights, int n_queries, int n_positions, float* scores) {
    for (int at = 0; at < n_positions; at += 16) {
        F32 sum = zero();
        for (int h = 0; h < n_queries; ++h)
            sum = fma(max(load(products + kChunk * h + at), zero()), set1(weights[h]), sum);
        store(scores + at, sum);
    }
}

// The tile's scratch has room for kChunk numbers per query and kChunk keys.
inline void rank(const AttentionTile& t, const float* weights, float* scores, int64_t step) {
    float *heads = t.scratch, *keys = heads + kChunk * t.n_queries;
    for (int block = 0; block < t.n_blocks; block += kChunkBlocks) {
        const int blocks = t.n_blocks - block < kChunkBlocks ? t.n_blocks - block : kChunkBlocks;
        t.k->open_k(t, block, blocks, keys);
        in_even_groups(t.n_queries, [&](int at, int count) {
            products({keys, kChunk, t.q + at, 0, t.k_dim, 16 * blocks, heads + kChunk * at, kChunk}, count);
        });
        float* to = scores + 16 * block;
        if (weights != nullptr) {
            weigh_heads(heads, weights, t.n_queries, 16 * blocks, to);
            continue;
        }
        for (int h = 0; h < t.n_queries; ++h)
            for (int at = 0; at < 16 * blocks; at += 16) store(to + h * step + at, load(heads + kChunk * h + at));
    }
}

}  // namespace woolly::WOOLLY_TARGET
