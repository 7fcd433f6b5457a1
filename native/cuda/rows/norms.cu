// Norms and other row reductions. grid: (rows, groups of columns).
#include "primitives/block_reduce.cuh"

__device__ inline float4 times(float4 x, float factor) {
    return make_float4(__fmul_rn(x.x, factor), __fmul_rn(x.y, factor), __fmul_rn(x.z, factor), __fmul_rn(x.w, factor));
}
__device__ inline float4 times(float4 x, float4 y) {
    return make_float4(__fmul_rn(x.x, y.x), __fmul_rn(x.y, y.y), __fmul_rn(x.z, y.z), __fmul_rn(x.w, y.w));
}

// y = x * factor, times the weight if not null.
__device__ inline void weigh(const float* x, float factor, const float* weight, float* y, int n) {
    if (n % 4 == 0) {  // all are 16-byte aligned
        for (int i = 4 * threadIdx.x; i < n; i += 4 * blockDim.x) {
            const float4 v = times(*(const float4*)(x + i), factor);
            *(float4*)(y + i) = weight ? times(v, *(const float4*)(weight + i)) : v;
        }
        return;
    }
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float v = __fmul_rn(x[i], factor);
        y[i] = weight ? __fmul_rn(v, weight[i]) : v;
    }
}

__device__ inline void norm_row(const float* x, const float* weight, float* y, int n, float eps) {
    const float mean = sum_of_squares(x, n) / float(n);
    weigh(x, 1.0f / sqrtf(mean + eps), weight, y, n);
}

// RMSNorm of each group of n columns.
KERNEL(rms_norm)(const Batch* b, const float* x, const float* weight, float* y, int kind, int n, float eps) {
    if ((int)blockIdx.x >= b->rows(kind)) return;
    const long long at = ((long long)blockIdx.x * gridDim.y + blockIdx.y) * n;
    norm_row(x + at, weight, y + at, n, eps);
}

// Hidden states from the batch, normed if there is a weight and they do not come from a draft.
KERNEL(hidden)(const Batch* b, const float* weight, float* y, int n, float eps) {
    if ((int)blockIdx.x >= b->n_rows) return;
    const long long at = (long long)blockIdx.x * n;
    if (weight && !b->is_hidden_normed) return norm_row(b->hidden + at, weight, y + at, n, eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[at + i] = b->hidden[at + i];
}

// Mean of n numbers, its rounding error, and the variance.
struct Spread {
    float mean, rest, square;
};

__device__ inline Spread spread_of(const float* x, int n) {
    float sum = 0.0f, rest = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    const float mean = block_sum(sum) / float(n);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float d = x[i] - mean;
        rest += d;
        squares = fmaf(d, d, squares);
    }
    const SumPair both = block_sum2(rest, squares);
    rest = both.a / float(n);
    const float square = both.b / float(n) - rest * rest;
    return {mean, rest, square < 0.0f ? 0.0f : square};
}

// Calls f(float4, column) for this thread's columns of a group in registers.
constexpr int FOURS = 4;
template <class F>
__device__ inline void each_four(float4 (&v)[FOURS], int n, F f) {
#pragma unroll
    for (int i = 0; i < FOURS; i++)
        if (const int c = 4 * (int(threadIdx.x) + i * int(blockDim.x)); c < n) f(v[i], c);
}
// layer_norm of a group in registers, read once.
__device__ inline void norm_fours(const float* x, const float* weight, const float* bias, float* y, int n, float eps) {
    float4 v[FOURS];
    float sum = 0.0f, rest = 0.0f, squares = 0.0f;
    each_four(v, n, [&](float4& a, int c) { a = *(const float4*)(x + c); });
    each_four(v, n, [&](float4& a, int) { sum += (a.x + a.y) + (a.z + a.w); });
    const float mean = block_sum(sum) / float(n);
    each_four(v, n, [&](float4& a, int) {
        a = make_float4(a.x - mean, a.y - mean, a.z - mean, a.w - mean);
        rest += (a.x + a.y) + (a.z + a.w);
        squares = fmaf(a.x, a.x, squares), squares = fmaf(a.y, a.y, squares);
        squares = fmaf(a.z, a.z, squares), squares = fmaf(a.w, a.w, squares);
    });
    const SumPair both = block_sum2(rest, squares);
    rest = both.a / float(n);
    const float square = both.b / float(n) - rest * rest;
    const float factor = 1.0f / sqrtf((square < 0.0f ? 0.0f : square) + eps);
    each_four(v, n, [&](float4& a, int c) {
        a = times(make_float4(a.x - rest, a.y - rest, a.z - rest, a.w - rest), factor);
        if (weight) a = times(a, *(const float4*)(weight + c));
        if (bias) {
            const float4 b = *(const float4*)(bias + c);
            a = make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
        }
        *(float4*)(y + c) = a;
    });
}

// LayerNorm of each group of n columns. The weights of group i start at i * step.
KERNEL(layer_norm)(const Batch* b, const float* x, const float* weight, const float* bias, float* y, int kind, int n,
                   int step, float eps) {
    if ((int)blockIdx.x >= b->rows(kind)) return;
    const long long at = ((long long)blockIdx.x * gridDim.y + blockIdx.y) * n;
    const int first = blockIdx.y * step;
    if (n % 4 == 0 && n <= 4 * FOURS * int(blockDim.x)) {
        norm_fours(x + at, weight ? weight + first : nullptr, bias ? bias + first : nullptr, y + at, n, eps);
        return;
    }
    const Spread s = spread_of(x + at, n);
    const float factor = 1.0f / sqrtf(s.square + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = __fmul_rn(x[at + i] - s.mean - s.rest, factor);
        if (weight) v = __fmul_rn(v, weight[first + i]);
        y[at + i] = bias ? __fadd_rn(v, bias[first + i]) : v;
    }
}

// max(0, x - (mean + deviations * standard deviation)) of a row.
KERNEL(gaussian_topk)(const Batch* b, const float* x, float* y, int kind, int n, float deviations) {
    if ((int)blockIdx.x >= b->rows(kind)) return;
    const long long at = (long long)blockIdx.x * n;
    const Spread s = spread_of(x + at, n);
    const float floor = s.mean + s.rest + deviations * sqrtf(s.square);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float above = x[at + i] - floor;
        y[at + i] = above < 0.0f ? 0.0f : above;
    }
}

// Scales each stream of n columns to the mean square of `like`.
KERNEL(match_rms)(const Batch* b, const float* x, const float* like, float* y, int kind, int n, float least) {
    if ((int)blockIdx.x >= b->rows(kind)) return;
    const long long at = ((long long)blockIdx.x * gridDim.y + blockIdx.y) * n;
    const float own = sum_of_squares(x + at, n) / float(n);
    const float wanted = sum_of_squares(like + (long long)blockIdx.x * n, n) / float(n);
    weigh(x + at, sqrtf(wanted / (own < least ? least : own)), nullptr, y + at, n);
}

// Dot product of each group of n columns.
KERNEL(vecdot)(const Batch* b, const float* p, const float* q, float* y, int kind, int n) {
    if ((int)blockIdx.x >= b->rows(kind)) return;
    const long long group = (long long)blockIdx.x * gridDim.y + blockIdx.y;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum = fmaf(p[group * n + i], q[group * n + i], sum);
    sum = block_sum(sum);
    if (threadIdx.x == 0) y[group] = sum;
}

// Output stream j: sum over input streams i of (coefs[j * streams + i] + plus) * x_i.
KERNEL(mix_streams)(const Batch* b, const float* x, const float* coefs, float* y, int kind, int n, int streams,
                    float plus) {
    if ((int)blockIdx.x >= b->rows(kind)) return;
    const long long row = blockIdx.x;
    x += row * streams * n;
    coefs += (row * gridDim.y + blockIdx.y) * streams;
    for (int c = threadIdx.x; c < n; c += blockDim.x) {
        float sum = 0.0f;
        for (int i = 0; i < streams; i++) sum = fmaf(coefs[i] + plus, x[i * n + c], sum);
        y[(row * gridDim.y + blockIdx.y) * n + c] = sum;
    }
}

// Pools the sequence of each output row: mean of its rows (0), the first (1) or the last (2).
KERNEL(pool)(const Batch* b, const float* x, float* y, int n, int which) {
    if ((int)blockIdx.x >= b->n_output) return;
    const int text = b->sequences[b->output_rows[blockIdx.x]], first = b->offsets[text], last = b->offsets[text + 1];
    for (int c = blockIdx.y * blockDim.x + threadIdx.x; c < n; c += gridDim.y * blockDim.x) {
        float value;
        if (which == 0) {
            double sum = 0.0;  // cancellation needs f64
            for (int row = first; row < last; row++) sum += double(x[(long long)row * n + c]);
            value = float(sum / double(last - first));
        } else {
            value = x[(long long)(which == 1 ? first : last - 1) * n + c];
        }
        y[(long long)blockIdx.x * n + c] = value;
    }
}
