// Attention of one query group over a range of cached positions, in blocks of 16.
//
// K of a block lies column by column (16 positions of one column side by side), so a lane is a position and scores
// need no sum over lanes. V lies position by position, so a lane is a column. q8_0 blocks carry f32 scales behind the
// bytes: K per position and 32 columns, V the same.

namespace woolly::WOOLLY_TARGET {

struct KvF32 {
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

inline F32 soft_capped(F32 score, float cap) {
    if (cap == 0.0f) return score;
    // cap * tanh(score / cap) = cap - 2 cap / (exp(2 score / cap) + 1)
    const F32 e = exp(mul(score, set1(2.0f / cap)));
    return sub(set1(cap), div(set1(2.0f * cap), add(e, set1(1.0f))));
}

// Scores of 16 positions: four sums over columns modulo 4, each one in order.
template <class Kv>
[[gnu::always_inline]] inline F32 scores(const AttentionTask& t, const float* q, const uint8_t* block) {
    F32 acc[4] = {zero(), zero(), zero(), zero()};
    for (int c = 0; c < t.head_dim; c += 4)
        for (int i = 0; i < 4; ++i) acc[i] = fma(Kv::k(block, t.head_dim, c + i), set1(q[c + i]), acc[i]);
    return soft_capped(mul(add(add(acc[0], acc[1]), add(acc[2], acc[3])), set1(t.scale)), t.softcap);
}

// Positions outside [first, last) of a block score minus infinity; their weight is then exactly 0.
inline F32 masked(F32 score, int position, int first, int last) {
    if (position >= first && position + 16 <= last) return score;
    float lanes[16];
    store(lanes, score);
    for (int i = 0; i < 16; ++i)
        if (position + i < first || position + i >= last) lanes[i] = -__builtin_inff();
    return load(lanes);
}

// The running softmax of one query: what a block of scores does to its maximum and sum, and to what was summed so far.
// Leaves the weights of the block, 0 outside [first, last).
[[gnu::always_inline]] inline void soften(F32 score, int position, int first, int last, int head_dim, float* out,
                                          float* max, float* sum, float* weights) {
    score = masked(score, position, first, last);
    const float largest = max_lanes(score);
    if (largest > *max) {
        float lanes[16];
        store(lanes, exp(set1(*max - largest)));
        const float shrink = *max == -__builtin_inff() ? 0.0f : lanes[0];
        for (int c = 0; c < head_dim; c += 16) store(out + c, mul(load(out + c), set1(shrink)));
        *sum *= shrink;
        *max = largest;
    }
    store(weights, exp(sub(score, set1(*max))));
    if (position < first || position + 16 > last)
        for (int i = 0; i < 16; ++i)
            if (position + i < first || position + i >= last) weights[i] = 0.0f;
    *sum += sum_lanes(load(weights));
}

// out += the values of a block at positions that are seen, in order, by their weights.
template <class Kv>
[[gnu::always_inline]] inline void add_values(const uint8_t* v, int head_dim, int position, int first, int last,
                                              const float* weights, float* out) {
    const int from = first > position ? first - position : 0;
    const int to = last < position + 16 ? last - position : 16;
    for (int c = 0; c < head_dim; c += 16) {
        F32 acc = load(out + c);
        for (int i = from; i < to; ++i) acc = fma(Kv::v(v, head_dim, i, c), set1(weights[i]), acc);
        store(out + c, acc);
    }
}

inline void clear(int n_queries, int head_dim, float* out, float* max, float* sum) {
    for (int h = 0; h < n_queries; ++h) max[h] = -__builtin_inff(), sum[h] = 0.0f;
    for (int i = 0; i < n_queries * head_dim; i += 16) store(out + i, zero());
}

template <class Kv>
inline void attend(const AttentionTask& t) {
    clear(t.n_heads, t.head_dim, t.out, t.max, t.sum);
    for (int block = t.first / 16; block * 16 < t.last; ++block) {
        const uint8_t* k = t.k_blocks[block - t.first_block];
        const uint8_t* v = t.v_blocks[block - t.first_block];
        for (int h = 0; h < t.n_heads; ++h) {
            float* out = t.out + h * t.head_dim;
            float weights[16];
            const F32 score = scores<Kv>(t, t.q + h * t.head_dim, k);
            soften(score, block * 16, t.first, t.last, t.head_dim, out, t.max + h, t.sum + h, weights);
            add_values<Kv>(v, t.head_dim, block * 16, t.first, t.last, weights, out);
        }
    }
}

}  // namespace woolly::WOOLLY_TARGET
