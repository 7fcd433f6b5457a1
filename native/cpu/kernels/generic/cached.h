// K and V in the cache, in blocks of 16 positions. K is stored column by column (16 positions of one column side
// by side), so a lane is a position and scores need no sum over lanes. V is stored position by position, so a lane is a
// column. q8_0 blocks carry f32 scales behind the bytes: K per position and 32 columns, V the same.

namespace woolly::WOOLLY_TARGET {

struct KvF32 {
    static constexpr int bytes = 4;  // of a number
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
    static constexpr int bytes = 2;
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
    static constexpr int bytes = 1;
    static const float* scales(const uint8_t* block, int head_dim) {
        return reinterpret_cast<const float*>(block + 16 * head_dim);
    }
    static F32 k(const uint8_t* block, int head_dim, int column) {
        const F32 q = to_float(load_s8(reinterpret_cast<const int8_t*>(block) + 16 * column));
        return mul(q, load(scales(block, head_dim) + 16 * (column / 32)));
    }
    static F32 v(const uint8_t* block, int head_dim, int position, int column) {
        const F32 q = to_float(load_s8(reinterpret_cast<const int8_t*>(block) + position * head_dim + column));
        return mul(q, set1(scales(block, head_dim)[position * (head_dim / 32) + column / 32]));
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

}  // namespace woolly::WOOLLY_TARGET
