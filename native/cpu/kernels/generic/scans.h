// Linear recurrences. The state of a head is [n_keys][n_columns]; columns are independent, so the number computed
// together does not affect the bits. A sum over keys has two halves, even and odd keys, added at the end.

namespace woolly::WOOLLY_TARGET {

template <bool some>
[[gnu::always_inline]] inline F32 scan_load(const float* p, int n) {
    if constexpr (some) return load_some(p, n);
    return load(p);
}
template <bool some>
[[gnu::always_inline]] inline void scan_store(float* p, F32 a, int n) {
    if constexpr (some)
        store_some(p, a, n);
    else
        store(p, a);
}

// Runs all tokens for V vectors of columns of a block, from its column j on; `width` columns are stored together. Their
// part of the state stays in L1 between tokens. `some`: the only vector has n columns.
template <ScanRule rule, int V, bool some>
inline void scan_columns(const ScanTile& t, int64_t width, int64_t j, int n) {
    for (int64_t token = 0; token < t.n_tokens; ++token) {
        const float* from = (token == 0 ? t.from : t.state) + j;
        float* to = t.state + j;
        const float *decay = t.decay + token * t.n_keys, *write = t.write + token * t.n_keys,
                    *read = t.read + token * t.n_keys;
        F32 value[V], seen[V];
        each<V>([&]<int c>() { value[c] = scan_load<some>(t.v + token * t.v_stride + j + 16 * c, n); });
        if constexpr (rule != ScanRule::plain) {
            const float* probe = t.probe + token * t.n_keys;
            F32 odd[V];
            each<V>([&]<int c>() { seen[c] = odd[c] = zero(); });
            int64_t i = 0;
            for (; i + 2 <= t.n_keys; i += 2) {
                const float *even_row = from + i * width, *odd_row = even_row + width;
                const F32 a = set1(probe[i]), b = set1(probe[i + 1]);
                each<V>([&]<int c>() {
                    seen[c] = fma(scan_load<some>(even_row + 16 * c, n), a, seen[c]);
                    odd[c] = fma(scan_load<some>(odd_row + 16 * c, n), b, odd[c]);
                });
            }
            if (i < t.n_keys)
                each<V>([&]<int c>() {
                    seen[c] = fma(scan_load<some>(from + i * width + 16 * c, n), set1(probe[i]), seen[c]);
                });
            each<V>([&]<int c>() { seen[c] = add(seen[c], odd[c]); });
            if constexpr (rule == ScanRule::delta)
                each<V>([&]<int c>() { value[c] = mul(sub(value[c], seen[c]), set1(t.beta[token])); });
        }
        F32 even[V], odd[V];
        each<V>([&]<int c>() { even[c] = odd[c] = zero(); });
        const auto key = [&](int64_t i, F32* sums) __attribute__((always_inline)) {
            const float* row = from + i * width;
            const F32 d = set1(decay[i]), k = set1(write[i]), q = set1(read[i]);
            each<V>([&]<int c>() {
                F32 s = fma(value[c], k, mul(scan_load<some>(row + 16 * c, n), d));
                if constexpr (rule == ScanRule::pair) s = fma(seen[c], set1(t.second[token * t.n_keys + i]), s);
                scan_store<some>(to + i * width + 16 * c, s, n);
                sums[c] = fma(s, q, sums[c]);
            });
        };
        int64_t i = 0;
        for (; i + 2 <= t.n_keys; i += 2) {
            key(i, even);
            key(i + 1, odd);
        }
        if (i < t.n_keys) key(i, even);
        each<V>([&]<int c>() { scan_store<some>(t.y + token * t.y_stride + j + 16 * c, add(even[c], odd[c]), n); });
    }
}

template <ScanRule rule>
inline void scan(const ScanTile& tile) {
    ScanTile t = tile;
    for (int64_t first = 0; first < tile.n_columns; first += kStateBlock) {
        const int64_t left = tile.n_columns - first, width = left < kStateBlock ? left : kStateBlock;
        t.from = tile.from + first * t.n_keys;
        t.state = tile.state + first * t.n_keys;
        t.v = tile.v + first;
        t.y = tile.y + first;
        int64_t j = 0;
        for (; j + 16 * kScanVectors <= width; j += 16 * kScanVectors)
            scan_columns<rule, kScanVectors, false>(t, width, j, 16);
        for (; j + 16 <= width; j += 16) scan_columns<rule, 1, false>(t, width, j, 16);
        if (j < width) scan_columns<rule, 1, true>(t, width, j, int(width - j));
    }
}

// Up to sixteen columns of the Mamba scan.
template <bool some>
inline void mamba_columns(const MambaTile& t, int64_t j, int n) {
    const F32 d = scan_load<some>(t.d + j, n);
    for (int64_t token = 0; token < t.n_tokens; ++token) {
        const float* from = (token == 0 ? t.from : t.state) + j;
        const F32 x = scan_load<some>(t.x + token * t.stride + j, n),
                  dt = scan_load<some>(t.dt + token * t.stride + j, n);
        const F32 push = mul(dt, x);
        F32 sum = zero();
        for (int64_t i = 0; i < t.n_states; ++i) {
            const F32 shrink = exp(mul(dt, scan_load<some>(t.a + i * t.stride + j, n)));
            const F32 s =
                fma(push, set1(t.b[token * t.n_states + i]), mul(shrink, scan_load<some>(from + i * t.stride, n)));
            scan_store<some>(t.state + i * t.stride + j, s, n);
            sum = fma(s, set1(t.c[token * t.n_states + i]), sum);
        }
        scan_store<some>(t.y + token * t.stride + j, fma(d, x, sum), n);
    }
}

inline void scan_mamba(const MambaTile& t) {
    int64_t j = 0;
    for (; j + 16 <= t.n_columns; j += 16) mamba_columns<false>(t, j, 16);
    if (j < t.n_columns) mamba_columns<true>(t, j, int(t.n_columns - j));
}

// y = sum of `kernel` rows times their weights, plus the bias (null: none), then silu if requested.
template <bool some>
[[gnu::always_inline]] inline void conv_columns(const ConvRow& t, int64_t i, int n) {
    F32 sum = mul(scan_load<some>(t.rows[0] + i, n), scan_load<some>(t.weights + i, n));
    for (int k = 1; k < t.kernel; ++k)
        sum = fma(scan_load<some>(t.rows[k] + i, n), scan_load<some>(t.weights + k * t.stride + i, n), sum);
    if (t.bias != nullptr) sum = add(sum, scan_load<some>(t.bias + i, n));
    if (t.silu) sum = div(sum, add(set1(1.0f), exp(sub(zero(), sum))));
    scan_store<some>(t.y + i, sum, n);
}

inline void conv(const ConvRow& t) {
    int64_t i = 0;
    for (; i + 16 <= t.n; i += 16) conv_columns<false>(t, i, 16);
    if (i < t.n) conv_columns<true>(t, i, int(t.n - i));
}

constexpr ScanTable make_scans() {
    return {{scan<ScanRule::plain>, scan<ScanRule::delta>, scan<ScanRule::pair>}, scan_mamba, conv};
}

}  // namespace woolly::WOOLLY_TARGET
