// Recurrent layers: scan over the rows of a sequence, which reads one state slot and writes others. Columns of the
// state are independent: eight lanes keep one column in registers from the first row to the last.
#include "primitives/common.cuh"

constexpr int LANES = 8;     // per column
constexpr int COLUMNS = 16;  // per block

// Sum over the lanes of a column, in every lane.
__device__ inline float over_lanes(float x) {
    for (int n = 1; n < LANES; n *= 2) x += __shfl_xor_sync(ALL_LANES, x, n);
    return x;
}

// State column of n_keys numbers: lane l has keys l, l + LANES, ...; zero past the end.
template <int EACH>
struct Column {
    float s[EACH];
    int n_keys, lane, at, step;  // key i is at slot[at + i * step]
    bool is_real;                // false past the last column; such lanes still take part in shuffles

    __device__ Column(int n_keys, int at, int step, bool is_real)
        : n_keys(n_keys), lane(threadIdx.x % LANES), at(at), step(step), is_real(is_real) {}

    __device__ int key(int m) const { return lane + m * LANES; }
    __device__ bool has(int m) const { return key(m) < n_keys; }
    // Key m of this lane.
    __device__ float of(const float* row, int m) const { return has(m) ? row[key(m)] : 0.0f; }

    __device__ void load(const float* slot) {
        for (int m = 0; m < EACH; m++) s[m] = slot && is_real && has(m) ? slot[at + key(m) * step] : 0.0f;
    }
    __device__ void store(float* slot) const {
        for (int m = 0; m < EACH; m++)
            if (is_real && has(m)) slot[at + key(m) * step] = s[m];
    }
    // One lane writes the value that all lanes have.
    __device__ void write(float* to, float value) const {
        if (is_real && lane == 0) *to = value;
    }
};

// Scans the rows of the block's sequences and saves the state where the batch asks for it. fetch(row) loads the inputs
// of a row, advance(row, inputs) updates the column; loads run one row ahead.
template <int EACH, class Fetch, class Advance>
__device__ inline void scan(const Batch* b, int entry, long long numbers, Column<EACH>& column, Fetch fetch,
                            Advance advance) {
    float* const slots = b->slots[entry];
    for (int s = blockIdx.z; s < b->n_sequences; s += gridDim.z) {
        const int source = b->slots_in[s], last = b->offsets[s + 1] - 1;
        column.load(source < 0 ? nullptr : slots + source * numbers);
        auto next = fetch(b->offsets[s]);
        for (int row = b->offsets[s]; row <= last; row++) {
            const auto brought = next;
            if (row < last) next = fetch(row + 1);
            advance(row, brought);
            for (int i = 0; i < b->n_snapshots; i++)
                if (b->snapshots[2 * i] == row) column.store(slots + b->snapshots[2 * i + 1] * numbers);
        }
        column.store(slots + b->slots_out[s] * numbers);
    }
}

// Inputs of a row: N key vectors, one value of the column, two scalars.
template <int EACH, int N>
struct Brought {
    float keys[N][EACH];
    float value, first, second;

    __device__ void read(const Column<EACH>& column, int n, const float* row) {
        for (int m = 0; m < EACH; m++) keys[n][m] = column.of(row, m);
    }
};

// Gated delta rule. grid: (columns, V heads, sequences).
template <int EACH, bool IS_WIDE>
__device__ inline void delta_net(const Batch* b, const float* q, const float* k, const float* v, const float* decay,
                                 const float* beta, float* y, int entry, int heads_k, int heads_v, int head, int head_v,
                                 int is_mod, float eps) {
    const int h = blockIdx.y, j = blockIdx.x * COLUMNS + threadIdx.x / LANES;
    const int serves = is_mod ? h % heads_k : h / (heads_v / heads_k);
    const float shrink_q = 1.0f / sqrtf(float(head));
    Column<EACH> column(head, h * head * head_v + j, head_v, j < head_v);
    typedef Brought<EACH, IS_WIDE ? 3 : 2> Row;
    const auto fetch = [&](int row) {
        Row r;
        const long long at = (long long)row * heads_v + h;
        r.read(column, 0, k + ((long long)row * heads_k + serves) * head);
        r.read(column, 1, q + ((long long)row * heads_k + serves) * head);
        if constexpr (IS_WIDE) r.read(column, 2, decay + at * head);
        r.value = column.is_real ? v[at * head_v + j] : 0.0f;
        r.first = beta[at];
        r.second = IS_WIDE ? 0.0f : decay[at];
        return r;
    };
    scan(b, entry, (long long)heads_v * head * head_v, column, fetch, [&](int row, const Row& r) {
        float square_q = 0.0f, square_k = 0.0f;
        for (int m = 0; m < EACH; m++) {
            square_k = fmaf(r.keys[0][m], r.keys[0][m], square_k);
            square_q = fmaf(r.keys[1][m], r.keys[1][m], square_q);
        }
        const float norm_k = 1.0f / sqrtf(over_lanes(square_k) + eps);
        const float norm_q = 1.0f / sqrtf(over_lanes(square_q) + eps) * shrink_q;
        const float fade = IS_WIDE ? 0.0f : expf(r.second);
        float seen = 0.0f;
        for (int m = 0; m < EACH; m++) {
            if constexpr (IS_WIDE)
                column.s[m] *= expf(r.keys[2][m]);
            else
                column.s[m] *= fade;
            seen = fmaf(column.s[m], r.keys[0][m] * norm_k, seen);
        }
        const float delta = r.first * (r.value - over_lanes(seen));
        float sum = 0.0f;
        for (int m = 0; m < EACH; m++) {
            column.s[m] = fmaf(r.keys[0][m] * norm_k, delta, column.s[m]);
            sum = fmaf(column.s[m], r.keys[1][m] * norm_q, sum);
        }
        column.write(y + ((long long)row * heads_v + h) * head_v + j, over_lanes(sum));
    });
}

// Mamba: one state per column, [width][n]. grid: (columns, 1, sequences).
template <int EACH>
__device__ inline void scan_mamba(const Batch* b, const float* x, const float* dt, const float* in, const float* out,
                                  const float* a, const float* d, float* y, int entry, int width, int n) {
    const int j = blockIdx.x * COLUMNS + threadIdx.x / LANES;
    Column<EACH> column(n, j * n, 1, j < width);
    float rates[EACH];
    for (int m = 0; m < EACH; m++) rates[m] = column.is_real ? column.of(a + (long long)j * n, m) : 0.0f;
    const float skip = column.is_real ? d[j] : 0.0f;
    typedef Brought<EACH, 2> Row;
    const auto fetch = [&](int row) {
        Row r;
        r.read(column, 0, in + (long long)row * n);
        r.read(column, 1, out + (long long)row * n);
        r.value = column.is_real ? x[(long long)row * width + j] : 0.0f;
        r.first = column.is_real ? dt[(long long)row * width + j] : 0.0f;
        return r;
    };
    scan(b, entry, (long long)width * n, column, fetch, [&](int row, const Row& r) {
        float sum = 0.0f;
        for (int m = 0; m < EACH; m++) {
            column.s[m] = fmaf(column.s[m], expf(r.first * rates[m]), r.first * r.value * r.keys[0][m]);
            sum = fmaf(column.s[m], r.keys[1][m], sum);
        }
        column.write(y + (long long)row * width + j, fmaf(skip, r.value, over_lanes(sum)));
    });
}

// Mamba 2: S = e^(dt a) S + b (dt x)^T per head. grid: (columns, heads, sequences).
template <int EACH>
__device__ inline void scan_mamba2(const Batch* b, const float* x, const float* dt, const float* in, const float* out,
                                   const float* a, const float* d, float* y, int entry, int heads, int groups, int n,
                                   int head) {
    const int h = blockIdx.y, j = blockIdx.x * COLUMNS + threadIdx.x / LANES;
    const int group = h / (heads / groups);
    const float rate = a[h], skip = d[h];
    Column<EACH> column(n, h * n * head + j, head, j < head);
    typedef Brought<EACH, 2> Row;
    const auto fetch = [&](int row) {
        Row r;
        r.read(column, 0, in + ((long long)row * groups + group) * n);
        r.read(column, 1, out + ((long long)row * groups + group) * n);
        r.value = column.is_real ? x[((long long)row * heads + h) * head + j] : 0.0f;
        r.first = dt[(long long)row * heads + h];
        return r;
    };
    scan(b, entry, (long long)heads * n * head, column, fetch, [&](int row, const Row& r) {
        const float fade = expf(r.first * rate), added = r.first * r.value;
        float sum = 0.0f;
        for (int m = 0; m < EACH; m++) {
            column.s[m] = fmaf(column.s[m], fade, added * r.keys[0][m]);
            sum = fmaf(column.s[m], r.keys[1][m], sum);
        }
        column.write(y + ((long long)row * heads + h) * head + j, fmaf(skip, r.value, over_lanes(sum)));
    });
}

// RWKV-7: S = e^w S + k v^T + p (S^T a)^T per head. grid: (columns, heads, sequences).
template <int EACH>
__device__ inline void wkv7(const Batch* b, const float* r, const float* w, const float* k, const float* v,
                            const float* a, const float* p, float* y, int entry, int heads, int head) {
    const int h = blockIdx.y, j = blockIdx.x * COLUMNS + threadIdx.x / LANES;
    Column<EACH> column(head, h * head * head + j, head, j < head);
    typedef Brought<EACH, 5> Row;
    const auto fetch = [&](int row) {
        Row one;
        const long long at = ((long long)row * heads + h) * head;
        one.read(column, 0, r + at);
        one.read(column, 1, w + at);
        one.read(column, 2, k + at);
        one.read(column, 3, a + at);
        one.read(column, 4, p + at);
        one.value = column.is_real ? v[at + j] : 0.0f;
        return one;
    };
    scan(b, entry, (long long)heads * head * head, column, fetch, [&](int row, const Row& one) {
        float seen = 0.0f, sum = 0.0f;
        for (int m = 0; m < EACH; m++) seen = fmaf(column.s[m], one.keys[3][m], seen);
        seen = over_lanes(seen);
        for (int m = 0; m < EACH; m++) {
            const float kept = fmaf(column.s[m], expf(one.keys[1][m]), one.keys[2][m] * one.value);
            column.s[m] = fmaf(one.keys[4][m], seen, kept);
            sum = fmaf(column.s[m], one.keys[0][m], sum);
        }
        column.write(y + ((long long)row * heads + h) * head + j, over_lanes(sum));
    });
}

// Lightning attention: S = fade S + k v^T per head. grid: (columns, heads, sequences).
template <int EACH>
__device__ inline void lightning(const Batch* b, const float* q, const float* k, const float* v, const float* fades,
                                 float* y, int entry, int heads, int head) {
    const int h = blockIdx.y, j = blockIdx.x * COLUMNS + threadIdx.x / LANES;
    Column<EACH> column(head, h * head * head + j, head, j < head);
    const float fade = fades[h];
    typedef Brought<EACH, 2> Row;
    const auto fetch = [&](int row) {
        Row r;
        const long long at = ((long long)row * heads + h) * head;
        r.read(column, 0, k + at);
        r.read(column, 1, q + at);
        r.value = column.is_real ? v[at + j] : 0.0f;
        return r;
    };
    scan(b, entry, (long long)heads * head * head, column, fetch, [&](int row, const Row& r) {
        float sum = 0.0f;
        for (int m = 0; m < EACH; m++) {
            column.s[m] = fmaf(column.s[m], fade, r.keys[0][m] * r.value);
            sum = fmaf(column.s[m], r.keys[1][m], sum);
        }
        column.write(y + ((long long)row * heads + h) * head + j, over_lanes(sum));
    });
}

// Instances for states of up to 8 * each keys; with more than two key vectors, registers suffice for 128 keys.
#define SCANS(each)                                                                                                \
    KERNEL(scan_mamba_##each)(const Batch* b, const float* x, const float* dt, const float* in, const float* out,  \
                              const float* a, const float* d, float* y, int entry, int width, int n) {             \
        scan_mamba<each>(b, x, dt, in, out, a, d, y, entry, width, n);                                             \
    }                                                                                                              \
    KERNEL(scan_mamba2_##each)(const Batch* b, const float* x, const float* dt, const float* in, const float* out, \
                               const float* a, const float* d, float* y, int entry, int heads, int groups, int n,  \
                               int head) {                                                                         \
        scan_mamba2<each>(b, x, dt, in, out, a, d, y, entry, heads, groups, n, head);                              \
    }                                                                                                              \
    KERNEL(lightning_attention_##each)(const Batch* b, const float* q, const float* k, const float* v,             \
                                       const float* fades, float* y, int entry, int heads, int head) {             \
        lightning<each>(b, q, k, v, fades, y, entry, heads, head);                                                 \
    }
#define LONG_SCANS(each)                                                                                             \
    KERNEL(delta_net_##each)(const Batch* b, const float* q, const float* k, const float* v, const float* decay,     \
                             const float* beta, float* y, int entry, int heads_k, int heads_v, int head, int head_v, \
                             int is_mod, int is_wide, float eps) {                                                   \
        if (is_wide)                                                                                                 \
            delta_net<each, true>(b, q, k, v, decay, beta, y, entry, heads_k, heads_v, head, head_v, is_mod, eps);   \
        else                                                                                                         \
            delta_net<each, false>(b, q, k, v, decay, beta, y, entry, heads_k, heads_v, head, head_v, is_mod, eps);  \
    }                                                                                                                \
    KERNEL(wkv7_##each)(const Batch* b, const float* r, const float* w, const float* k, const float* v,              \
                        const float* a, const float* p, float* y, int entry, int heads, int head) {                  \
        wkv7<each>(b, r, w, k, v, a, p, y, entry, heads, head);                                                      \
    }

SCANS(2)
SCANS(4)
SCANS(8)
SCANS(16)
SCANS(32)
LONG_SCANS(2)
LONG_SCANS(4)
LONG_SCANS(8)
LONG_SCANS(16)

// Input `back` rows before a row; before the sequence from its slot, [tail][width].
__device__ inline float earlier(const Batch* b, const float* x, const float* slot, int row, int back, int tail,
                                int width, int c) {
    const int first = b->offsets[b->sequences[row]];
    if (row - back >= first) return x[(long long)(row - back) * width + c];
    return slot ? slot[(tail + row - back - first) * width + c] : 0.0f;
}

// Calls f(slot) for each slot that saves the state after this row.
template <class F>
__device__ inline void leave(const Batch* b, int entry, int row, long long numbers, F f) {
    const int s = b->sequences[row];
    for (int i = 0; i < b->n_snapshots; i++)
        if (b->snapshots[2 * i] == row) f(b->slots[entry] + b->snapshots[2 * i + 1] * numbers);
    if (row + 1 == b->offsets[s + 1]) f(b->slots[entry] + b->slots_out[s] * numbers);
}

__device__ inline const float* source_of(const Batch* b, int entry, int row, long long numbers) {
    const int source = b->slots_in[b->sequences[row]];
    return source < 0 ? nullptr : b->slots[entry] + source * numbers;
}

// Causal depthwise convolution over `taps` rows. grid: (rows, columns).
KERNEL(causal_conv1d)(const Batch* b, const float* x, const float* weight, const float* bias, float* y, int width,
                      int entry, int taps, int is_silu) {
    const int row = blockIdx.x, tail = taps - 1, c = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= b->n_rows || c >= width) return;
    const long long numbers = (long long)tail * width;
    const float* const slot = source_of(b, entry, row, numbers);
    float sum = 0.0f;
    for (int i = 0; i < taps; i++)
        sum = fmaf(earlier(b, x, slot, row, tail - i, tail, width, c), weight[c * taps + i], sum);
    if (bias) sum += bias[c];
    y[(long long)row * width + c] = is_silu ? sum / (1.0f + expf(-sum)) : sum;
    leave(b, entry, row, numbers, [=](float* to) {
        for (int i = 0; i < tail; i++) to[i * width + c] = earlier(b, x, slot, row, tail - 1 - i, tail, width, c);
    });
}

// Previous row of the sequence, zero before the first.
KERNEL(token_shift)(const Batch* b, const float* x, float* y, int width, int entry) {
    const int row = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= b->n_rows || c >= width) return;
    const float* const slot = source_of(b, entry, row, width);
    y[(long long)row * width + c] = earlier(b, x, slot, row, 1, 1, width, c);
    leave(b, entry, row, width, [=](float* to) { to[c] = x[(long long)row * width + c]; });
}
