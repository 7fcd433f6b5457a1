// Super-blocks of unsigned quants for many rows with AVX2 byte products: sums of column pairs stay in 16 bits while
// they fit, and one product with the sub-scale in both halves widens them to 32. A group of Q4_K by two registers takes
// 17 operations instead of 27. Integer arithmetic: bit-identical to Opened256.

namespace woolly::WOOLLY_TARGET {

// `most`: the maximum quant.
template <class Open, int n, int most>
struct PairSums256 {
    static constexpr int width = 256 / n, vectors = width / 4;
    // Vectors of four columns whose pair sums fit 16 bits.
    static constexpr int fit = 32767 / (2 * most * 127), each_sum = fit < vectors ? fit : vectors;
    static_assert(fit > 0 && vectors % each_sum == 0, "whole sums make a group");

    template <int M>
    static void dot(const uint8_t* p, int64_t n_blocks, const ActivationRow* rows, int64_t first, float* acc,
                    Ahead& ahead) {
        const int8_t* q[M];
        for (int m = 0; m < M; ++m) q[m] = rows[m].q;
        for (int64_t b = first; b < first + n_blocks; ++b, p += Open::bytes) {
            fetch(ahead);
            I32 total[M];
            for (int m = 0; m < M; ++m) total[m] = Open::begin(p, rows[m], b);
            for (int g = 0; g < n; ++g) {
                __m256i factor[2];
                for (int i = 0; i < 2; ++i) {
                    const __m256i f =
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + Open::factors + 64 * g + 32 * i));
                    factor[i] = _mm256_blend_epi16(f, _mm256_slli_epi32(f, 16), 0xaa);
                }
                each<vectors / each_sum>([&]<int s>() __attribute__((always_inline)) {
                    __m256i pairs[M][2];
                    each<each_sum>([&]<int v>() __attribute__((always_inline)) {
                        const int at = width * g + 4 * (s * each_sum + v);
                        const U8 w = load_bytes(p + Open::weights + 16 * at);
                        for (int m = 0; m < M; ++m) {
                            const __m256i four = four_columns(q[m] + 256 * b + at);
                            for (int i = 0; i < 2; ++i) {
                                const __m256i pair = _mm256_maddubs_epi16(w.v[i], four);
                                pairs[m][i] = v == 0 ? pair : _mm256_add_epi16(pairs[m][i], pair);
                            }
                        }
                    });
                    for (int m = 0; m < M; ++m)
                        for (int i = 0; i < 2; ++i)
                            total[m].v[i] = _mm256_add_epi32(total[m].v[i], _mm256_madd_epi16(pairs[m][i], factor[i]));
                });
            }
            for (int m = 0; m < M; ++m)
                Open::end(p, total[m], rows[m].scale[b], rows[m].planes + kPlanes * b, acc + 16 * m);
        }
    }
};

constexpr int kPairRows = 3;

template <class Type, int most>
void dot_pair_sums(const uint8_t* open, int64_t n_blocks, const ActivationRow* rows, int64_t first, int n_rows,
                   float* acc, Ahead& ahead) {
    using Sums = PairSums256<Open256<Type>, Type::n_groups, most>;
    int m = 0;
    for (; m + kPairRows <= n_rows; m += kPairRows)
        Sums::template dot<kPairRows>(open, n_blocks, rows + m, first, acc + 16 * m, ahead);
    for (; m < n_rows; ++m) Sums::template dot<1>(open, n_blocks, rows + m, first, acc + 16 * m, ahead);
}

// Maximum quant of a type with this kernel.
template <class Type>
constexpr int kMaxPair = 0;
template <>
constexpr int kMaxPair<Q2_K> = 3;
template <>
constexpr int kMaxPair<Q3_K> = 7;
template <>
constexpr int kMaxPair<Q4_K> = 15;
template <>
constexpr int kMaxPair<Q5_K> = 31;
template <>
constexpr int kMaxPair<Q6_K> = 63;

template <class Type>
constexpr void set_pair_sums(KernelTable& t, WeightType type, Blocks256<Type>) {
    if constexpr (kMaxPair<Type> != 0) set_wide<Open256<Type>>(t, type, dot_pair_sums<Type, kMaxPair<Type>>);
}
template <class Other>
constexpr void set_pair_sums(KernelTable&, WeightType, Other) {}

}  // namespace woolly::WOOLLY_TARGET
