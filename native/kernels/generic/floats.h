// Weights that are floats: F32, F16, BF16. A packed column of a panel is 16 consecutive values.

namespace woolly::WOOLLY_TARGET {

struct LoadF32 {
    static constexpr int bytes = 64;
    static F32 at(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
};
struct LoadF16 {
    static constexpr int bytes = 32;
    static F32 at(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }
};
struct LoadBf16 {
    static constexpr int bytes = 32;
    static F32 at(const uint8_t* p) { return load_bf16(reinterpret_cast<const uint16_t*>(p)); }
};

// Four sums over columns 0, 1, 2, 3 modulo 4, so that consecutive fmas do not wait for each other; then
// (0 + 1) + (2 + 3). What is left of columns goes to sum 0.
template <class Type, int M>
inline void dot_floats(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
    for (int m = 0; m < M; ++m) {
        const float* x = rows[m].x;
        F32 acc[4] = {zero(), zero(), zero(), zero()};
        const uint8_t* p = panel;
        int64_t k = 0;
        for (; k + 4 <= columns; k += 4, p += 4 * Type::bytes) {
            for (int line = 0; line < 4 * Type::bytes; line += 64) prefetch(p + kPrefetch + line);
            for (int i = 0; i < 4; ++i) acc[i] = fma(Type::at(p + i * Type::bytes), set1(x[k + i]), acc[i]);
        }
        for (; k < columns; ++k, p += Type::bytes) acc[0] = fma(Type::at(p), set1(x[k]), acc[0]);
        store(tile + 16 * m, add(add(acc[0], acc[1]), add(acc[2], acc[3])));
    }
}

}  // namespace woolly::WOOLLY_TARGET
