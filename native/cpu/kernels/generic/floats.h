// Weights that are floats: F32, F16, BF16. A packed column of a panel is 16 consecutive values.

namespace woolly::WOOLLY_TARGET {

struct LoadF32 {
    static constexpr int bytes = kPanel * sizeof(BlockF32);
    static F32 at(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
};
struct LoadF16 {
    static constexpr int bytes = kPanel * sizeof(BlockF16);
    static F32 at(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }
};
struct LoadBf16 {
    static constexpr int bytes = kPanel * sizeof(BlockBF16);
    static F32 at(const uint8_t* p) { return load_bf16(reinterpret_cast<const uint16_t*>(p)); }
};

// sum[m] += dot of row m with columns [0, n). Segments of kFloatColumns are summed as in sum_columns; segment sums are
// added in order.
template <class Type, int M>
[[gnu::always_inline]] inline void sum_segment(const uint8_t* p, const float* const* x, int n, F32* sum) {
    F32 acc[M][4];
    for (int m = 0; m < M; ++m)
        for (int i = 0; i < 4; ++i) acc[m][i] = zero();
    int c = 0;
    for (; c + 4 <= n; c += 4, p += 4 * Type::bytes) {
        for (int line = 0; line < 4 * Type::bytes; line += 64) prefetch(p + kPrefetch + line);
        each<4>([&]<int i>() __attribute__((always_inline)) {
            const F32 w = Type::at(p + i * Type::bytes);
            for (int m = 0; m < M; ++m) acc[m][i] = fma(w, set1(x[m][c + i]), acc[m][i]);
        });
    }
    for (; c < n; ++c, p += Type::bytes)
        for (int m = 0; m < M; ++m) acc[m][0] = fma(Type::at(p), set1(x[m][c]), acc[m][0]);
    for (int m = 0; m < M; ++m) sum[m] = add(sum[m], add(add(acc[m][0], acc[m][1]), add(acc[m][2], acc[m][3])));
}

inline int segment(int64_t left) { return left < kFloatColumns ? int(left) : kFloatColumns; }

template <class Type, int M>
inline void dot_floats(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
    // Processes as many rows at a time as registers hold sums for.
    constexpr int each_time = M < kFloatDots ? M : kFloatDots;
    for (int m = 0; m < M; m += each_time) {
        F32 sum[each_time];
        for (int i = 0; i < each_time; ++i) sum[i] = zero();
        for (int64_t c = 0; c < columns; c += kFloatColumns) {
            const float* x[each_time];
            for (int i = 0; i < each_time; ++i) x[i] = rows[m + i].x + c;
            sum_segment<Type, each_time>(panel + c * Type::bytes, x, segment(columns - c), sum);
        }
        for (int i = 0; i < each_time; ++i) store(tile + 16 * (m + i), sum[i]);
    }
}

// Many rows: the weights of a panel are converted to f32 once, after which all types share the code.
struct OpenedFloats {
    static constexpr int bytes = 64;  // of a column

    static void dot(const uint8_t* open, int64_t n_columns, const ActivationRow* rows, int64_t first, int n_rows,
                    float* acc, Ahead& ahead) {
        for (int64_t c = 0; c < n_columns; c += kFloatColumns) {
            const float* values = reinterpret_cast<const float*>(open) + 16 * c;
            in_groups<kFloatRows>(n_rows, [&]<int Q>(int at) __attribute__((always_inline)) {
                for (int i = 0; i < 4; ++i) fetch(ahead);
                const float* x[Q];
                for (int j = 0; j < Q; ++j) x[j] = rows[at + j].x + first + c;
                for (int lane = 0; lane < 16; lane += kStrip) {
                    StripF sum[Q];
                    sum_columns<Q>(values + lane, x, segment(n_columns - c), sum);
                    for (int j = 0; j < Q; ++j) {
                        float* to = acc + 16 * (at + j) + lane;
                        store(to, add(strip_load(to), sum[j]));
                    }
                }
            });
        }
    }
};

template <class Type>
struct OpenFloats : OpenedFloats {
    static void open(const uint8_t* panel, int64_t n_columns, uint8_t* to) {
        for (int64_t c = 0; c < n_columns; ++c, panel += Type::bytes, to += bytes) {
            if (c * Type::bytes % 64 == 0) prefetch(panel + kPrefetch);
            store(reinterpret_cast<float*>(to), Type::at(panel));
        }
    }
};

// Many rows against float weights, several panels by several rows at a time: a weight in a register is used for all
// rows, a broadcast activation for all panels. One panel by six rows with four sums each (OpenFloats) needs 28 loads
// for 24 fmas; three panels by eight rows, one sum after another, need 11.
//
// Activations and opened weights are laid out as [sum][columns of the sum][16], so that both are read sequentially.
// Columns and order of each sum are those of sums.h, so results are bit-identical.
struct GridSumsFloats {
    static constexpr int bytes = kFloatColumns * 64, sum_numbers = kFloatColumns / 4 * 16;

    // Partial sums of a tile that are known so far: 0 + 1, and 2.
    template <int P>
    struct Known {
        alignas(64) float first[P][256], second[P][256];
    };

    // Computes sum `which` of M rows of a tile and P panels over n columns, and combines it with the known sums.
    template <int M, int P>
    [[gnu::always_inline]] static void rows(const float* weights, int64_t panel, const float* x, int n, int which,
                                            int row, Known<P>& known, float* acc, int64_t acc_step) {
        F32 sum[P][M];
        each<P>([&]<int p>() __attribute__((always_inline)) {
            each<M>([&]<int m>() __attribute__((always_inline)) { sum[p][m] = zero(); });
        });
        for (int k = 0; k < n; ++k, weights += 16, x += 16) {
            F32 w[P];
            each<P>([&]<int p>() __attribute__((always_inline)) { w[p] = load(weights + p * panel); });
            if constexpr (kStrip == kPanel) {
                each<M>([&]<int m>() __attribute__((always_inline)) {
                    const F32 one = set1(x[row + m]);
                    each<P>([&]<int p>() __attribute__((always_inline)) { sum[p][m] = fma(w[p], one, sum[p][m]); });
                });
            } else {  // a level that multiplies with a lane
                Four four[(M + 3) / 4];
                each<(M + 3) / 4>([&]<int i>() __attribute__((always_inline)) { four[i] = four_of(x + row + 4 * i); });
                each<M>([&]<int m>() __attribute__((always_inline)) {
                    each<P>([&]<int p>() __attribute__((always_inline)) {
                        sum[p][m] = fma_of<m % 4>(w[p], four[m / 4], sum[p][m]);
                    });
                });
            }
        }
        each<P>([&]<int p>() __attribute__((always_inline)) {
            each<M>([&]<int m>() __attribute__((always_inline)) {
                const int at = 16 * (row + m);
                float *first = known.first[p] + at, *second = known.second[p] + at, *to = acc + p * acc_step + at;
                if (which == 0) store(first, sum[p][m]);
                if (which == 1) store(first, add(load(first), sum[p][m]));
                if (which == 2) store(second, sum[p][m]);
                if (which == 3) store(to, add(load(to), add(load(first), add(load(second), sum[p][m]))));
            });
        });
    }

    // Splits rows `row` to 16 into groups of about equal size, as large as registers allow, skipping rows that are not
    // wanted.
    template <int P, int row = 0>
    [[gnu::always_inline]] static void groups(int wanted, const float* weights, int64_t panel, const float* x, int n,
                                              int which, Known<P>& known, float* acc, int64_t acc_step) {
        constexpr int most = kGridSums / P, left = (kTileRows - row + most - 1) / most;
        constexpr int M = (kTileRows - row + left - 1) / left;
        rows<M, P>(weights, panel, x, n, which, row, known, acc, acc_step);
        if constexpr (row + M < kTileRows)
            if (row + M < wanted) groups<P, row + M>(wanted, weights, panel, x, n, which, known, acc, acc_step);
    }

    template <int P>
    [[gnu::noinline]] static void panels(const GridBlocks& of, int first, int n_rows) {
        Known<P> known;
        if constexpr (kStrip < kPanel) known = {};  // GCC cannot see that sum 0 comes first, and warns
        const int64_t panel = int64_t(of.n_blocks) * bytes / 4;
        for (int b = 0; b < of.n_blocks; ++b) {
            const float* weights = reinterpret_cast<const float*>(of.open) + first * panel + int64_t(b) * bytes / 4;
            const int n = (b + 1 < of.n_blocks ? kFloatColumns : of.last_columns) / 4;
            for (int r = 0; r < n_rows; r += kTileRows) {
                const float* x =
                    reinterpret_cast<const float*>(of.tiles + b * of.tiles_step) + int64_t(r) * kFloatColumns;
                float* acc = of.acc + first * of.acc_step + 16 * r;
                for (int i = 0; i < 4; ++i)
                    groups<P>(n_rows - r, weights + i * sum_numbers, panel, x + i * sum_numbers, n, i, known, acc,
                              of.acc_step);
            }
        }
    }

    // Three panels by eight rows, or one panel by as many rows as registers hold sums for.
    static constexpr int together = kGridSums >= 24 ? 3 : 1;
    template <int P = together>
    static void from(const GridBlocks& of, int first, int n_rows) {
        for (; first + P <= of.n_panels; first += P) panels<P>(of, first, n_rows);
        if constexpr (P > 1)
            if (first < of.n_panels) from<P - 1>(of, first, n_rows);
    }
    static void dot(const GridBlocks& of, int n_rows) { from(of, 0, n_rows); }
};

template <class Type>
struct GridFloats : GridSumsFloats {
    static void open(const uint8_t* panel, int n_columns, uint8_t* to) {
        float* at = reinterpret_cast<float*>(to);
        for (int c = 0; c < n_columns; c += 4, panel += 4 * Type::bytes, at += 16) {
            for (int line = 0; line < 4 * Type::bytes; line += 64) prefetch(panel + kFloatColumns * Type::bytes + line);
            for (int i = 0; i < 4; ++i) store(at + i * sum_numbers, Type::at(panel + i * Type::bytes));
        }
    }
};

}  // namespace woolly::WOOLLY_TARGET
