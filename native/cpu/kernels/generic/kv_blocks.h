// K and V blocks of 16 positions in the cache. K is stored column by column (16 positions of a column are contiguous),
// so a lane is a position and scores need no sum over lanes. V is stored position by position, so a lane is a column.
// q8_0 and q4 blocks end with scales, one per position and 32 columns, in f32 for q8_0 and bf16 for q4. For types with
// scales, `four_k` and `whole_v` open all numbers that share a scale, so that it is loaded and converted once.

namespace woolly::WOOLLY_TARGET {

struct KvF32 {
    static constexpr int bits = 32;  // of an element
    static F32 k(const uint8_t* block, int, int column) {
        return load(reinterpret_cast<const float*>(block) + 16 * column);
    }
    static F32 v(const uint8_t* block, int head_dim, int position, int column) {
        return load(reinterpret_cast<const float*>(block) + position * head_dim + column);
    }
    static void store_k(const float* x, int head_dim, int slot, uint8_t* block) {
        for (int c = 0; c < head_dim; ++c) reinterpret_cast<float*>(block)[16 * c + slot] = x[c];
    }
    static void store_v(const float* x, int head_dim, int slot, uint8_t* block) {
        std::memcpy(block + size_t(slot) * size_t(head_dim) * 4, x, size_t(head_dim) * 4);
    }
};

struct KvF16 {
    static constexpr int bits = 16;
    static F32 k(const uint8_t* block, int, int column) {
        return load_f16(reinterpret_cast<const uint16_t*>(block) + 16 * column);
    }
    static F32 v(const uint8_t* block, int head_dim, int position, int column) {
        return load_f16(reinterpret_cast<const uint16_t*>(block) + position * head_dim + column);
    }
    static void store_k(const float* x, int head_dim, int slot, uint8_t* block) {
        uint16_t half[16];
        for (int c = 0; c < head_dim; c += 16) {
            store_f16(half, load(x + c));
            for (int i = 0; i < 16; ++i) reinterpret_cast<uint16_t*>(block)[16 * (c + i) + slot] = half[i];
        }
    }
    static void store_v(const float* x, int head_dim, int slot, uint8_t* block) {
        for (int c = 0; c < head_dim; c += 16)
            store_f16(reinterpret_cast<uint16_t*>(block) + slot * head_dim + c, load(x + c));
    }
};

struct KvQ8 {
    static constexpr int bits = 8;
    static const float* scales(const uint8_t* block, int head_dim) {
        return reinterpret_cast<const float*>(block + 16 * head_dim);
    }
    // Four columns from a multiple of 4 on, `step` numbers apart.
    [[gnu::always_inline]] static inline void four_k(const uint8_t* block, int head_dim, int column, float* to,
                                                     int step) {
        const F32 scale = load(scales(block, head_dim) + 16 * (column / 32));
        const int8_t* from = reinterpret_cast<const int8_t*>(block) + 16 * column;
        for (int i = 0; i < 4; ++i) store(to + step * i, mul(to_float(load_s8(from + 16 * i)), scale));
    }
    // 32 columns, starting at a multiple of 32.
    [[gnu::always_inline]] static inline void whole_v(const uint8_t* block, int head_dim, int position, int column,
                                                      float* to) {
        const F32 scale = set1(scales(block, head_dim)[position * (head_dim / 32) + column / 32]);
        const int8_t* from = reinterpret_cast<const int8_t*>(block) + position * head_dim + column;
        for (int i = 0; i < 32; i += 16) store(to + i, mul(to_float(load_s8(from + i)), scale));
    }
    static void store_k(const float* x, int head_dim, int slot, uint8_t* block) {
        float* scale = reinterpret_cast<float*>(block + 16 * head_dim);
        int8_t q[32];
        int32_t sum;
        for (int g = 0; g < head_dim / 32; ++g) {
            quantize<32, 32>(x + 32 * g, 32, q, scale + 16 * g + slot, &sum);
            for (int i = 0; i < 32; ++i) block[16 * (32 * g + i) + slot] = uint8_t(q[i]);
        }
    }
    static void store_v(const float* x, int head_dim, int slot, uint8_t* block) {
        float* scale = reinterpret_cast<float*>(block + 16 * head_dim) + slot * (head_dim / 32);
        int32_t sum;
        for (int g = 0; g < head_dim / 32; ++g)
            quantize<32, 32>(x + 32 * g, 32, reinterpret_cast<int8_t*>(block) + slot * head_dim + 32 * g, scale + g,
                             &sum);
    }
};

// IQ4_NL codes, whose values fit the normal distribution of a rotated head. In K, two columns share a byte. In V, the
// two halves of 32 columns do.
struct KvQ4 {
    static constexpr int bits = 4;
    static const uint16_t* scales(const uint8_t* block, int head_dim) {
        return reinterpret_cast<const uint16_t*>(block + 8 * head_dim);
    }
    [[gnu::always_inline]] static inline void four_k(const uint8_t* block, int head_dim, int column, float* to,
                                                     int step) {
        const F32 scale = load_bf16(scales(block, head_dim) + 16 * (column / 32));
        for (int i = 0; i < 4; i += 2) {
            const uint8_t* at = block + 16 * ((column + i) / 2);
            store(to + step * i, mul(to_float(load_codes(kIq4Values, at, 0)), scale));
            store(to + step * (i + 1), mul(to_float(load_codes(kIq4Values, at, 4)), scale));
        }
    }
    [[gnu::always_inline]] static inline void whole_v(const uint8_t* block, int head_dim, int position, int column,
                                                      float* to) {
        const uint32_t bits = scales(block, head_dim)[position * (head_dim / 32) + column / 32];
        const F32 scale = set1(__builtin_bit_cast(float, bits << 16));
        const uint8_t* at = block + position * (head_dim / 2) + 16 * (column / 32);
        store(to, mul(to_float(load_codes(kIq4Values, at, 0)), scale));
        store(to + 16, mul(to_float(load_codes(kIq4Values, at, 4)), scale));
    }
    static void store_k(const float* x, int head_dim, int slot, uint8_t* block) {
        uint16_t* scale = reinterpret_cast<uint16_t*>(block + 8 * head_dim);
        for (int g = 0; g < head_dim / 32; ++g) {
            Codes best = encode(x + 32 * g);
            scale[16 * g + slot] = best.scale;
            for (int i = 0; i < 16; ++i)
                block[16 * (16 * g + i) + slot] = uint8_t(best.of[2 * i] | best.of[2 * i + 1] << 4);
        }
    }
    static void store_v(const float* x, int head_dim, int slot, uint8_t* block) {
        uint16_t* scale = reinterpret_cast<uint16_t*>(block + 8 * head_dim) + slot * (head_dim / 32);
        for (int g = 0; g < head_dim / 32; ++g) {
            Codes best = encode(x + 32 * g);
            scale[g] = best.scale;
            for (int i = 0; i < 16; ++i)
                block[slot * (head_dim / 2) + 16 * g + i] = uint8_t(best.of[i] | best.of[i + 16] << 4);
        }
    }

  private:
    struct Codes {
        int32_t of[32];
        uint16_t scale;  // bf16
        float error;     // sum of squared errors
    };
    // Keeps the better of two candidates: the largest number at either end of the value range, then the best-fitting
    // scale. Input that is not finite produces a NaN scale.
    static Codes encode(const float* x) {
        float most = 0.0f;
        for (int i = 0; i < 32; ++i) most = __builtin_fabsf(x[i]) > __builtin_fabsf(most) ? x[i] : most;
        const Codes low = fit(x, most / float(kIq4Values[0])), high = fit(x, most / float(kIq4Values[15]));
        return high.error < low.error ? high : low;
    }
    static Codes fit(const float* x, float scale) {
        Codes codes{};
        const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
        for (int k = 0; k < 15; ++k) {
            const float middle = 0.5f * float(kIq4Values[k] + kIq4Values[k + 1]);
            for (int i = 0; i < 32; ++i) codes.of[i] += x[i] * inverse > middle ? 1 : 0;
        }
        float product = 0.0f, square = 0.0f;
        for (int i = 0; i < 32; ++i) {
            const float value = float(kIq4Values[codes.of[i]]);
            product += value * x[i], square += value * value;
        }
        // Rounds to the nearest bf16; infinities and NaN are preserved.
        const uint32_t wide = __builtin_bit_cast(uint32_t, product / square);
        codes.scale = uint16_t((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
        if (!__builtin_isfinite(product / square)) codes.scale = 0x7fc0;
        const float kept = __builtin_bit_cast(float, uint32_t(codes.scale) << 16);
        for (int i = 0; i < 32; ++i) {
            const float off = x[i] - float(kIq4Values[codes.of[i]]) * kept;
            codes.error += off * off;
        }
        return codes;
    }
};

}  // namespace woolly::WOOLLY_TARGET
