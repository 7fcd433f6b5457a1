// Products of f32 matrices for several rows at a time: each value is used for all of them while it is in a register.

namespace woolly::WOOLLY_TARGET {

// out[j][c] = sum over k in [from, to) of values[k][c] * rows[j][k], one fma after another in order of k.
struct Products {
    const float* values;
    int values_step;
    const float* const* rows;
    int from, to, columns;  // columns in whole strips
    float* out;
    int out_step;
};

// `more`: added to what `out` holds.
template <int Q, int P, bool more>
[[gnu::always_inline]] inline void product_strips(const Products& p, int column) {
    StripF acc[Q][P];
    for (int j = 0; j < Q; ++j)
        for (int s = 0; s < P; ++s)
            acc[j][s] = more ? strip_load(p.out + j * p.out_step + column + s * kStrip) : strip_fzero();
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
        for (int s = 0; s < P; ++s) store(p.out + j * p.out_step + column + s * kStrip, acc[j][s]);
}

// Strips that Q rows take at a time: a power of two, as many as leave their sums in registers.
constexpr int strips_of(int rows) {
    int strips = 1;
    while (strips < 4 && 2 * strips * rows <= kProductSums) strips *= 2;
    return strips;
}

template <int Q, bool more>
[[gnu::noinline]] void products_of(const Products& p) {
    constexpr int P = strips_of(Q);
    int column = 0;
    for (; column + P * kStrip <= p.columns; column += P * kStrip) product_strips<Q, P, more>(p, column);
    for (; column < p.columns; column += kStrip) product_strips<Q, 1, more>(p, column);
}

// For n <= kProductRows rows.
template <bool more, int Q = kProductRows>
inline void products(const Products& p, int n) {
    if (n == Q) return products_of<Q, more>(p);
    if constexpr (Q > 1) products<more, Q - 1>(p, n);
}

// f(from, how many) for groups of at most kProductRows of n rows, all of about the same size.
template <class F>
[[gnu::always_inline]] inline void in_even_groups(int n, const F& f) {
    const int groups = (n + kProductRows - 1) / kProductRows;
    for (int g = 0; g < groups; ++g) f(n * g / groups, n * (g + 1) / groups - n * g / groups);
}

}  // namespace woolly::WOOLLY_TARGET
