// Sums of f32 products for several rows at a time, each in the order of a single row.

namespace woolly::WOOLLY_TARGET {

// For 16 values per column, a strip from `values` on, and Q rows: four sums over columns 0, 1, 2, 3 modulo 4, so that
// consecutive fmas are independent; then (0 + 1) + (2 + 3). Remaining columns go to sum 0.
template <int Q>
[[gnu::always_inline]] inline void sum_columns(const float* values, const float* const* rows, int n, StripF* sum) {
    StripF acc[Q][4];
    for (int j = 0; j < Q; ++j)
        for (int i = 0; i < 4; ++i) acc[j][i] = strip_fzero();
    int c = 0;
    for (; c + 4 <= n; c += 4) {
        Four four[Q];
        for (int j = 0; j < Q; ++j) four[j] = four_of(rows[j] + c);
        each<4>([&]<int i>() __attribute__((always_inline)) {
            const StripF column = strip_load(values + 16 * (c + i));
            for (int j = 0; j < Q; ++j) acc[j][i] = fma_of<i>(column, four[j], acc[j][i]);
        });
    }
    for (; c < n; ++c)
        for (int j = 0; j < Q; ++j) acc[j][0] = fma(strip_load(values + 16 * c), rows[j][c], acc[j][0]);
    for (int j = 0; j < Q; ++j) sum[j] = add(add(acc[j][0], acc[j][1]), add(acc[j][2], acc[j][3]));
}

// Calls f(Q, from) with the largest Q that fits, until all n rows are done.
template <int Q, class F>
[[gnu::always_inline]] inline void in_groups(int n, const F& f) {
    int from = 0;
    for (; from + Q <= n; from += Q) f.template operator()<Q>(from);
    if constexpr (Q > 1) {
        const int rest = from;
        in_groups<(Q > 4 ? Q / 2 : Q - 1)>(
            n - rest, [&]<int R>(int at) __attribute__((always_inline)) { f.template operator()<R>(rest + at); });
    }
}

}  // namespace woolly::WOOLLY_TARGET
