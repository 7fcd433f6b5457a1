// Top-n logits of each output row (ties by lowest id), and the sum of exp(logit - max). The order of sums depends only
// on the row width.
#include "primitives/common.cuh"

// One block ranks a part of a row, then one block merges the parts.
constexpr int PART = 4096, PART_THREADS = 512, ROW_THREADS = 1024;
constexpr float MAX_FLOAT = 3.402823466e38f;

__device__ inline float minus_infinity() { return __int_as_float((int)0xFF800000); }

// Result of a part, besides its keys.
struct Part {
    double sum;  // sum of exp(logit - top)
    float top;
    int is_sound;  // no NaN, no +inf
};

// Header of a result row, followed by n ids and n logits.
struct Head {
    double sum;
    int is_sound;
    int token;  // input token of the row
};

// Sampling parameters for a result row.
struct Pick {
    double u;
    float p, log_p, temperature;
    int k;  // 0: greedy
    int min_keep;
    int row;
};

// Sort key: larger logit first, then lower id. Adding zero merges -0 and +0. No logit has key 0.
__device__ inline u64 key_of(float logit, int id) {
    const int bits = __float_as_int(logit + 0.0f);
    const u32 high = (u32)(bits ^ ((bits >> 31) & 0x7FFFFFFF)) ^ 0x80000000u;
    return (u64)high << 32 | (0xFFFFFFFFu - (u32)id);
}

__device__ inline int id_of(u64 key) { return (int)(0xFFFFFFFFu - (u32)key); }

// Maximum key of the block, in every thread.
__device__ inline u64 block_best(u64 key) {
    __shared__ u64 parts[32];
    for (int n = 16; n; n /= 2) key = max(key, __shfl_xor_sync(ALL_LANES, key, n));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = key;
    __syncthreads();
    key = parts[0];
    for (int i = 1; i < (int)blockDim.x / 32; i++) key = max(key, parts[i]);
    return key;
}

// Number of threads with `holds`.
__device__ inline int block_count(bool holds) {
#ifdef WOOLLY_EMULATED
    __shared__ int n;
    __syncthreads();
    if (threadIdx.x == 0) n = 0;
    __syncthreads();
    n += holds;
    __syncthreads();
    return n;
#else
    return __syncthreads_count(holds);
#endif
}

// Bitonic sort of n keys (a power of two), descending.
__device__ inline void sort(u64* keys, int n) {
    for (int run = 2; run <= n; run *= 2)
        for (int apart = run / 2; apart; apart /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
                const int a = 2 * i - (i & (apart - 1)), b = a + apart;
                const u64 p = keys[a], q = keys[b];
                if ((p < q) == ((a & run) == 0)) {
                    keys[a] = q;
                    keys[b] = p;
                }
            }
        }
    __syncthreads();
}

// Selects the n largest of the threads' keys (n_own each) into `kept`, in order; n is at most the number of threads.
// The n-th largest of the threads' maxima is a lower bound: at least n keys reach it, in at most n threads. `kept` has
// room for those, rounded up to a power of two.
template <class Keys>
__device__ inline void select(Keys key_at, int n_own, int n, u64* kept) {
    __shared__ int n_kept;
    u64 best = 0, bound = 0;
    for (int i = 0; i < n_own; i++) best = max(best, key_at(i));
    if (threadIdx.x == 0) n_kept = 0;
    for (int bit = 63; bit >= 0; bit--) {
        const u64 higher = bound | (u64)1 << bit;
        const int n_reach = block_count(best >= higher);
        if (n_reach >= n) bound = higher;
        if (n_reach == n) break;
    }
    bound = max(bound, (u64)1);  // fewer than n threads have a key
    if (best >= bound)
        for (int i = 0; i < n_own; i++)
            if (const u64 key = key_at(i); key >= bound) kept[atomicAdd(&n_kept, 1)] = key;
    __syncthreads();
    int size = 1;
    while (size < n_kept || size < n) size *= 2;
    for (int i = n_kept + threadIdx.x; i < size; i += blockDim.x) kept[i] = 0;
    sort(kept, size);
}

// grid: (rows, parts), from row `first` on. `keys` receives the n largest of each part, `parts` its sums.
KERNEL_BOUNDS(PART_THREADS, 3, rank_parts)(const Batch* b, const float* logits, u64* keys, Part* parts, int width,
                                           int first, int n) {
    const int row = blockIdx.x, part = blockIdx.y;
    if (first + row >= b->n_output) return;
    constexpr int N = PART / PART_THREADS;
    __shared__ u64 kept[PART];
    __shared__ Part warps[PART_THREADS / 32];
    logits += (long long)(first + row) * width;
    float x[N];
    u64 best = 0;
    bool is_sound = true;
    for (int i = 0; i < N; i++) {
        const int id = part * PART + i * PART_THREADS + threadIdx.x;
        x[i] = id < width ? logits[id] : minus_infinity();
        is_sound = is_sound && x[i] <= MAX_FLOAT;
    }
    const auto key_at = [&](int i) {
        const int id = part * PART + i * PART_THREADS + threadIdx.x;
        return id < width ? key_of(x[i], id) : (u64)0;
    };
    for (int i = 0; i < N; i++) best = max(best, key_at(i));
    best = block_best(best);
    const float top = logits[id_of(best)];
    double sum = 0.0;
    if (top > minus_infinity())
        for (int i = 0; i < N; i++) sum += exp((double)x[i] - (double)top);
    for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, i);
    is_sound = __all_sync(ALL_LANES, is_sound);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = {sum, top, is_sound};
    __syncthreads();
    const long long at = (long long)row * gridDim.y + part;
    if (threadIdx.x == 0) {
        Part all = warps[0];
        for (int i = 1; i < PART_THREADS / 32; i++) {
            all.sum += warps[i].sum;
            all.is_sound = all.is_sound && warps[i].is_sound;
        }
        parts[at] = all;
    }
    if (n == 1) {
        if (threadIdx.x == 0) keys[at] = best;
        return;
    }
    select(key_at, N, n, kept);
    for (int i = threadIdx.x; i < n; i += PART_THREADS) keys[at * n + i] = kept[i];
}

// grid: rows, from row `first` on. `out` receives a Head, n ids and n logits per row.
KERNEL_THREADS(ROW_THREADS, rank_rows)(const Batch* b, const float* logits, const u64* keys, const Part* parts, u8* out,
                                       int width, int first, int n, int n_parts) {
    const int row = blockIdx.x;
    if (first + row >= b->n_output) return;
    DYNAMIC_SHARED(shared);
    u64* kept = (u64*)shared;
    double* sums = (double*)shared;
    logits += (long long)(first + row) * width;
    keys += (long long)row * n_parts * n;
    parts += (long long)row * n_parts;
    out += (long long)(first + row) * (sizeof(Head) + 8 * n);
    float top = minus_infinity();
    bool is_sound = true;
    for (int i = 0; i < n_parts; i++) {
        top = max(top, parts[i].top);
        is_sound = is_sound && parts[i].is_sound;
    }
    for (int i = threadIdx.x; i < n_parts; i += ROW_THREADS)
        sums[i] = parts[i].sum > 0.0 ? parts[i].sum * exp((double)parts[i].top - (double)top) : 0.0;
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0.0;
        for (int i = 0; i < n_parts; i++) sum += sums[i];
        *(Head*)out = {sum, is_sound, b->tokens ? b->tokens[b->output_rows[first + row]] : 0};
    }
    __syncthreads();
    const int n_keys = n_parts * n;
    const auto key_at = [&](int i) {
        const int at = i * ROW_THREADS + threadIdx.x;
        return at < n_keys ? keys[at] : (u64)0;
    };
    const int n_own = (n_keys + ROW_THREADS - 1) / ROW_THREADS;
    if (n == 1) {
        u64 best = 0;
        for (int i = 0; i < n_own; i++) best = max(best, key_at(i));
        best = block_best(best);
        if (threadIdx.x == 0) kept[0] = best;
        __syncthreads();
    } else {
        select(key_at, n_own, n, kept);
    }
    for (int i = threadIdx.x; i < n; i += ROW_THREADS) {
        const int id = id_of(kept[i]);
        ((int*)(out + sizeof(Head)))[i] = id;
        ((float*)(out + sizeof(Head)))[n + i] = logits[id];
    }
}

// Index that a chain of top-k, top-p, min-p and temperature samples from n descending logits. The host repeats it and
// decides: sums have the host's order, but exp may differ in its last bit.
__device__ inline int taken(const Pick& pick, const float* logits, const float* weights, const float* powers, int n) {
    int kept = n;
    float sum = 0.0f, share = 0.0f;
    for (int i = 0; i < n; i++) sum += weights[i];
    for (int i = 0; i < kept; i++) {
        share += weights[i] / sum;
        if (share >= pick.p) kept = max(i + 1, min(pick.min_keep, n));
    }
    const float least = logits[0] + pick.log_p;
    int above = 0;
    while (above < kept && logits[above] >= least) above++;
    kept = min(kept, max(above, pick.min_keep));
    double all = 0.0;
    for (int i = 0; i < kept; i++) all += (double)powers[i];
    const double target = pick.u * all;
    double passed = 0.0;
    for (int i = 0; i < kept; i++) {
        passed += (double)powers[i];
        if (passed >= target) return i;
    }
    return 0;
}

constexpr int FEED_THREADS = 64, MAX_RANKED = 256;

// grid: rows of the next batch, one per sequence. `heads`: output of rank_rows for the previous batch, n per row.
KERNEL_THREADS(FEED_THREADS, rank_feed)(const Batch* b, const u8* heads, const Pick* picks, int n) {
    const int row = blockIdx.x;
    if (row >= b->n_rows) return;
    __shared__ float own[MAX_RANKED], weights[MAX_RANKED], powers[MAX_RANKED];
    const Pick pick = picks[row];
    heads += (long long)pick.row * (sizeof(Head) + 8 * n) + sizeof(Head);
    const int* ids = (const int*)heads;
    const float* logits = (const float*)heads + n;
    const int k = min(pick.k, n);
    for (int i = threadIdx.x; i < k; i += FEED_THREADS) {
        own[i] = logits[i];
        weights[i] = expf(logits[i] - logits[0]);
        powers[i] = expf(logits[i] / pick.temperature - logits[0] / pick.temperature);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const int id = ids[k > 0 ? taken(pick, own, weights, powers, k) : 0];
        ((int*)b->tokens)[row] = max(id, 0);  // a row without valid logits has no token
    }
}
