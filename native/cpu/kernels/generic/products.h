// Products of f32 matrices for several rows at a time: each value in a register is used for all of them.

namespace woolly::WOOLLY_TARGET {

// out[j][c] = sum over k in [from, to) of values[k][c] * rows[j][k], one fma after another in order of k.
struct Products {
    const float* values;
    int values_step;
    const float* const* rows;
    int from, to, columns;  // columns in whole strips
    float* out;
    int out_step;
    bool more = false;   // accumulate into `out`
    float scale = 1.0f;  // of the sums
};

template <int Q, int P>
[[gnu::always_inline]] inline void product_strips(const Products& p, int column) {
    StripF acc[Q][P];
    for (int j = 0; j < Q; ++j)
        for (int s = 0; s < P; ++s)
            acc[j][s] = p.more ? strip_load(p.out + j * p.out_step + column + s * kStrip) : strip_fzero();
    const float* at = p.values + p.from * p.values_step + column;
    const float* row[Q];
    for (int j = 0; j < Q; ++j) row[j] = p.rows[j];
    int k = p.from;
    for (; k + 4 <= p.to; k += 4) {
        Four four[Q];
        for (int j = 0; j < Q; ++j) four[j] = four_of(row[j] + k);
        each<4>([&]<int i>() __attribute__((always_inline)) {
            StripF value[P];
            for (int s = 0; s < P; ++s) value[s] = strip_load(at + s * kStrip);
            for (int j = 0; j < Q; ++j)
                for (int s = 0; s < P; ++s) acc[j][s] = fma_of<i>(value[s], four[j], acc[j][s]);
            at += p.values_step;
        });
    }
    for (; k < p.to; ++k, at += p.values_step)
        for (int j = 0; j < Q; ++j)
            for (int s = 0; s < P; ++s) acc[j][s] = fma(strip_load(at + s * kStrip), row[j][k], acc[j][s]);
    for (int j = 0; j < Q; ++j)
        for (int s = 0; s < P; ++s) store(p.out + j * p.out_step + column + s * kStrip, scaled(acc[j][s], p.scale));
}

// Strips per pass for Q rows: a power of two, the largest whose sums fit registers.
constexpr int strips_of(int rows) {
    int strips = 1;
    while (strips < 4 && 2 * strips * rows <= kProductSums) strips *= 2;
    return strips;
}

template <int Q>
[[gnu::noinline]] void products_of(const Products& p) {
    constexpr int P = strips_of(Q);
    int column = 0;
    for (; column + P * kStrip <= p.columns; column += P * kStrip) product_strips<Q, P>(p, column);
    for (; column < p.columns; column += kStrip) product_strips<Q, 1>(p, column);
}

// Computes the products of n <= kProductRows rows.
template <int Q = kProductRows>
inline void products(const Products& p, int n) {
    if (n == Q) return products_of<Q>(p);
    if constexpr (Q > 1) products<Q - 1>(p, n);
}

// Calls f(from, count) for groups of at most kProductRows of n rows, of about equal size.
template <class F>
[[gnu::always_inline]] inline void in_even_groups(int n, const F& f) {
    const int groups = (n + kProductRows - 1) / kProductRows;
    for (int g = 0; g < groups; ++g) f(n * g / groups, n * (g + 1) / groups - n * g / groups);
}

// Products of few queries with f16 keys and values in the cache: converted to f32 in registers, because a copy in
// memory costs more than it saves. The sums are those of `products`, in the same order. For types with a scale this was
// slower on arm64, where widening alone takes all registers.

constexpr int kChunkBlocks = kChunk / 16;
constexpr int kBlockStrips = 16 / kStrip;  // of 16 lanes

// Scaled products of Q queries with P strips of keys from strip `first` of a block on.
template <class Kv, int Q, int P, int first>
[[gnu::always_inline]] inline void key_strips(const AttentionTile& t, const float* const* queries, int block,
                                              float* scores) {
    constexpr int blocks = (P * kStrip + 15) / 16, fetched = 4 * 16 * Kv::bits / 8;  // bytes of four columns
    StripF acc[Q][P];
    for (int j = 0; j < Q; ++j)
        for (int s = 0; s < P; ++s) acc[j][s] = strip_fzero();
    const float* row[Q];
    for (int j = 0; j < Q; ++j) row[j] = queries[j];
    const uint8_t *from[blocks], *later[blocks];  // V follows K
    for (int b = 0; b < blocks; ++b) {
        const int next = block + b + kChunkBlocks;
        from[b] = t.k_blocks[block + b];
        later[b] = next < t.n_blocks ? t.k_blocks[next] : t.v_blocks[next % t.n_blocks];
    }
    for (int k = 0; k < t.k_dim; k += 4) {
        Four four[Q];
        for (int j = 0; j < Q; ++j) four[j] = four_of(row[j] + k);
        if constexpr (first == 0)
            each<blocks>([&]<int b>() __attribute__((always_inline)) {
                for (int line = 0; line < fetched; line += 64) prefetch(later[b] + line);
                later[b] += fetched;
                if (t.next_k != nullptr)
                    for (int line = 0; line < fetched; line += 64)
                        prefetch_early(t.next_k[block + b] + fetched / 4 * k + line);
            });
        each<4>([&]<int i>() __attribute__((always_inline)) {
            StripF value[P];
            each<P>([&]<int s>() __attribute__((always_inline)) {
                constexpr int strip = first + s;
                value[s] = strip_of<strip % kBlockStrips>(Kv::k(from[strip / kBlockStrips], t.k_dim, k + i));
            });
            widened_first(value);
            for (int j = 0; j < Q; ++j)
                for (int s = 0; s < P; ++s) acc[j][s] = fma_of<i>(value[s], four[j], acc[j][s]);
        });
    }
    for (int j = 0; j < Q; ++j)
        for (int s = 0; s < P; ++s)
            store(scores + kSplit * j + 16 * block + (first + s) * kStrip, scaled(acc[j][s], t.scale));
}

template <class Kv, int Q>
[[gnu::noinline]] void key_products(const AttentionTile& t, const float* const* queries, int block, int end,
                                    float* scores) {
    constexpr int P = strips_of(Q);
    if constexpr (P < kBlockStrips) {
        for (; block < end; ++block)
            each<kBlockStrips / P>([&]<int i>() __attribute__((always_inline)) {
                key_strips<Kv, Q, P, P * i>(t, queries, block, scores);
            });
    } else {
        constexpr int blocks = P / kBlockStrips;
        for (; block + blocks <= end; block += blocks) key_strips<Kv, Q, P, 0>(t, queries, block, scores);
        if constexpr (blocks > 1)
            for (; block < end; ++block) key_strips<Kv, Q, kBlockStrips, 0>(t, queries, block, scores);
    }
}

// Adds the weighted values of positions [from, to) to P strips of columns of Q queries.
template <class Kv, int Q, int P, int first>
[[gnu::always_inline]] inline void value_strips(const AttentionTile& t, int from, int to, const float* weights,
                                                int column, float* out) {
    constexpr int fetched = P * kStrip * Kv::bits / 8;  // bytes of a position
    const int v_dim = t.v_dim, bytes = v_dim * Kv::bits / 8, at = (column + first * kStrip) * Kv::bits / 8;
    const bool fetches = fetched >= 64 || at % 64 == 0;
    StripF acc[Q][P];
    for (int j = 0; j < Q; ++j)
        for (int s = 0; s < P; ++s) acc[j][s] = strip_load(out + j * v_dim + column + (first + s) * kStrip);
    while (from < to) {
        const int block = from / 16, end = 16 * block + 16 < to ? 16 * block + 16 : to;
        const uint8_t *values = t.v_blocks[block],
                      *later = t.v_blocks[block + kChunkBlocks < t.n_blocks ? block + kChunkBlocks : block] + at,
                      *next = t.next_v == nullptr ? nullptr : t.next_v[block] + at;
        StripF value[P];
        const auto widen = [&](int position) __attribute__((always_inline)) {
            each<P>([&]<int s>() __attribute__((always_inline)) {
                constexpr int strip = first + s;
                value[s] = strip_of<strip % kBlockStrips>(
                    Kv::v(values, v_dim, position % 16, column + strip / kBlockStrips * 16));
            });
        };
        const auto one = [&](int position) __attribute__((always_inline)) {
            widen(position);
            for (int j = 0; j < Q; ++j)
                for (int s = 0; s < P; ++s) acc[j][s] = fma(value[s], weights[kSplit * j + position], acc[j][s]);
        };
        for (; from % 4 != 0 && from < end; ++from) one(from);
        for (; from + 4 <= end; from += 4) {
            Four four[Q];
            for (int j = 0; j < Q; ++j) four[j] = four_of(weights + kSplit * j + from);
            for (int i = 0; i < 4 && fetches; ++i)
                for (int line = 0; line < fetched; line += 64) {
                    prefetch(later + (from % 16 + i) * bytes + line);
                    if (next != nullptr) prefetch_early(next + (from % 16 + i) * bytes + line);
                }
            each<4>([&]<int i>() __attribute__((always_inline)) {
                widen(from + i);
                widened_first(value);
                for (int j = 0; j < Q; ++j)
                    for (int s = 0; s < P; ++s) acc[j][s] = fma_of<i>(value[s], four[j], acc[j][s]);
            });
        }
        for (; from < end; ++from) one(from);
    }
    for (int j = 0; j < Q; ++j)
        for (int s = 0; s < P; ++s) store(out + j * v_dim + column + (first + s) * kStrip, acc[j][s]);
}

template <class Kv, int Q>
[[gnu::noinline]] void value_products(const AttentionTile& t, int from, int to, const float* weights, float* out) {
    constexpr int P = strips_of(Q);
    int column = 0;
    if constexpr (P < kBlockStrips) {
        for (; column < t.v_dim; column += 16)
            each<kBlockStrips / P>([&]<int i>() __attribute__((always_inline)) {
                value_strips<Kv, Q, P, P * i>(t, from, to, weights, column, out);
            });
    } else {
        for (; column + P * kStrip <= t.v_dim; column += P * kStrip)
            value_strips<Kv, Q, P, 0>(t, from, to, weights, column, out);
        if constexpr (P > kBlockStrips)
            for (; column < t.v_dim; column += 16)
                value_strips<Kv, Q, kBlockStrips, 0>(t, from, to, weights, column, out);
    }
}

// Computes the scores of n <= kFewQueries queries from `from` on.
template <class Kv, int Q = kFewQueries>
inline void score_few(const AttentionTile& t, int from, int n, int block, int end, float* scores) {
    if (n == Q) return key_products<Kv, Q>(t, t.q + from, block, end, scores);
    if constexpr (Q > 1) score_few<Kv, Q - 1>(t, from, n, block, end, scores);
}
template <class Kv, int Q = kFewQueries>
inline void add_few(const AttentionTile& t, int query, int n, int from, int to, const float* weights) {
    if (n == Q) return value_products<Kv, Q>(t, from, to, weights, t.sums.out + query * t.v_dim);
    if constexpr (Q > 1) add_few<Kv, Q - 1>(t, query, n, from, to, weights);
}

}  // namespace woolly::WOOLLY_TARGET
