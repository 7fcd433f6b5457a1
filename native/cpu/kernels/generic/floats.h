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

template <class Type>
[[gnu::always_inline]] inline F32 sum_segment(const uint8_t* p, const float* x, int n) {
    F32 acc[4] = {zero(), zero(), zero(), zero()};
    int c = 0;
    for (; c + 4 <= n; c += 4, p += 4 * Type::bytes) {
        for (int line = 0; line < 4 * Type::bytes; line += 64) prefetch(p + kPrefetch + line);
        each<4>([&]<int i>() __attribute__((always_inline)) {
            acc[i] = fma(Type::at(p + i * Type::bytes), set1(x[c + i]), acc[i]);
        });
    }
    for (; c < n; ++c, p += Type::bytes) acc[0] = fma(Type::at(p), set1(x[c]), acc[0]);
    return add(add(acc[0], acc[1]), add(acc[2], acc[3]));
}

inline int segment(int64_t left) { return left < kFloatColumns ? int(left) : kFloatColumns; }

template <class Type, int M>
inline void dot_floats(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
    for (int m = 0; m < M; ++m) {
        F32 sum = zero();
        for (int64_t c = 0; c < columns; c += kFloatColumns)
            sum = add(sum, sum_segment<Type>(panel + c * Type::bytes, rows[m].x + c, segment(columns - c)));
        store(tile + 16 * m, sum);
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
