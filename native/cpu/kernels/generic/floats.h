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

// Columns that are summed together, as sum_columns does it; the sums of all such segments are added in order.
constexpr int kFloatColumns = 256;

// sum[m] += the dot with columns [0, n) of row m.
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
    // As many rows at a time as there are registers for their sums.
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

// Many rows: the weights of a panel become f32 once.
template <class Type>
struct OpenFloats {
    static constexpr int bytes = 64;  // of a column

    static void open(const uint8_t* panel, int64_t n_columns, uint8_t* to) {
        for (int64_t c = 0; c < n_columns; ++c, panel += Type::bytes, to += bytes) {
            if (c * Type::bytes % 64 == 0) prefetch(panel + kPrefetch);
            store(reinterpret_cast<float*>(to), Type::at(panel));
        }
    }

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

}  // namespace woolly::WOOLLY_TARGET
