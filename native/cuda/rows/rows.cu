// Elementwise ops. grid: (rows, chunks of columns), four adjacent columns per thread.
#include "primitives/activations.cuh"
#include "primitives/mma.cuh"
#include "rows/each.cuh"

// y = f(x), elementwise.
template <class F>
__device__ inline void map(const Batch* b, int kind, int width, const float* x, float* y, F f) {
    const int row = blockIdx.x;
    if (row >= b->rows(kind)) return;
    x += (long long)row * width;
    y += (long long)row * width;
    const int first = 4 * (blockIdx.y * blockDim.x + threadIdx.x), stride = 4 * gridDim.y * blockDim.x;
    if (width % 4 == 0) {
        for (int c = first; c < width; c += stride) {
            const float4 v = *(const float4*)(x + c);
            *(float4*)(y + c) = make_float4(f(v.x), f(v.y), f(v.z), f(v.w));
        }
    } else {
        for (int c = first; c < width; c += stride)
            for (int j = c; j < c + 4 && j < width; j++) y[j] = f(x[j]);
    }
}

// y = f(p, q), elementwise.
template <class F>
__device__ inline void map2(const Batch* b, int kind, int width, const float* p, const float* q, float* y, F f) {
    const int row = blockIdx.x;
    if (row >= b->rows(kind)) return;
    p += (long long)row * width;
    q += (long long)row * width;
    y += (long long)row * width;
    const int first = 4 * (blockIdx.y * blockDim.x + threadIdx.x), stride = 4 * gridDim.y * blockDim.x;
    if (width % 4 == 0) {
        for (int c = first; c < width; c += stride) {
            const float4 u = *(const float4*)(p + c), v = *(const float4*)(q + c);
            *(float4*)(y + c) = make_float4(f(u.x, v.x), f(u.y, v.y), f(u.z, v.z), f(u.w, v.w));
        }
    } else {
        for (int c = first; c < width; c += stride)
            for (int j = c; j < c + 4 && j < width; j++) y[j] = f(p[j], q[j]);
    }
}

KERNEL(add)(const Batch* b, const float* p, const float* q, float* y, int width, int kind) {
    map2(b, kind, width, p, q, y, [](float u, float v) { return u + v; });
}

KERNEL(scale)(const Batch* b, const float* x, float* y, int width, int kind, float factor) {
    map(b, kind, width, x, y, [=](float v) { return v * factor; });
}

KERNEL(clamp)(const Batch* b, const float* x, float* y, int width, int kind, float limit) {
    map(b, kind, width, x, y, [=](float v) { return v < -limit ? -limit : v > limit ? limit : v; });
}

KERNEL(clip)(const Batch* b, const float* x, float* y, int width, int kind, float low, float high) {
    map(b, kind, width, x, y, [=](float v) { return v < low ? low : v > high ? high : v; });
}

KERNEL(softcap)(const Batch* b, const float* x, float* y, int width, int kind, float cap) {
    map(b, kind, width, x, y, [=](float v) { return cap * tanhf(v / cap); });
}

KERNEL(unary)(const Batch* b, const float* x, float* y, int width, int kind, int which) {
    map(b, kind, width, x, y, [=](float v) { return activation(which, v); });
}

KERNEL(xielu)(const Batch* b, const float* x, float* y, int width, int kind, float alpha_p, float alpha_n, float beta,
              float eps) {
    map(b, kind, width, x, y, [=](float v) {
        const float bent = v > 0.0f ? alpha_p * v * v : alpha_n * (expm1f(v < eps ? v : eps) - v);
        return bent + beta * v;
    });
}

KERNEL(glu)(const Batch* b, const float* gate, const float* up, float* y, int width, int kind, int which, float limit) {
    map2(b, kind, width, gate, up, y, [=](float g, float u) { return gated(which, g, u, limit); });
}

// y = p * q, where each element of q serves `run` columns.
KERNEL(mul)(const Batch* b, const float* p, const float* q, float* y, int width, int kind, int run) {
    if (run == 1) return map2(b, kind, width, p, q, y, [](float u, float v) { return u * v; });
    each(b, kind, width, [=](long long at, int row, int c) { y[at] = p[at] * q[row * (width / run) + c / run]; });
}

// y = x * weight, where each of the n weights serves `run` columns, cyclically.
KERNEL(mul_weight)(const Batch* b, const float* x, const float* weight, float* y, int width, int kind, int n, int run) {
    each(b, kind, width, [=](long long at, int, int c) { y[at] = x[at] * weight[c / run % n]; });
}

// y = x + weight of n elements, cyclically.
KERNEL(add_weight)(const Batch* b, const float* x, const float* weight, float* y, int width, int kind, int n) {
    each(b, kind, width, [=](long long at, int, int c) { y[at] = x[at] + weight[c % n]; });
}

// y = p + (q - p) * weight; the weight may have several rows' worth of columns.
KERNEL(lerp)(const Batch* b, const float* p, const float* q, const float* weight, float* y, int width, int kind,
             int n) {
    each(b, kind, width, [=](long long at, int row, int c) {
        const float from = p[(long long)row * n + c % n], to = q[(long long)row * n + c % n];
        y[at] = __fadd_rn(from, __fmul_rn(to - from, weight[c]));
    });
}

// y = columns [first, first + part) of each `run` columns of x.
KERNEL(slice)(const Batch* b, const float* x, float* y, int width, int kind, int width_x, int run, int first,
              int part) {
    each(b, kind, width, [=](long long at, int row, int c) {
        y[at] = x[(long long)row * width_x + c / part * run + first + c % part];
    });
}

// Concatenates heads: n_p columns of p, then n_q of q; is_shared: q has one head for all.
KERNEL(concat)(const Batch* b, const float* p, const float* q, float* y, int width, int kind, int n_p, int n_q,
               int is_shared) {
    const int heads = width / (n_p + n_q);
    each(b, kind, width, [=](long long at, int row, int c) {
        const int head = c / (n_p + n_q), i = c % (n_p + n_q);
        if (i < n_p)
            y[at] = p[((long long)row * heads + head) * n_p + i];
        else
            y[at] = q[(is_shared ? (long long)row : (long long)row * heads + head) * n_q + i - n_p];
    });
}

KERNEL(output_rows)(const Batch* b, const float* x, float* y, int width) {
    launch_dependents();
    wait_for_previous_kernel();
    each(b, 1, width,
         [=](long long at, int row, int c) { y[at] = __ldcg(x + (long long)b->output_rows[row] * width + c); });
}

// LoRA: y = x + factor * scale of the sequence's adapter * added. A zero scale leaves x unchanged.
KERNEL(add_lora)(const Batch* b, const float* x, const float* added, float* y, int width, int kind, int adapter,
                 float factor) {
    each(b, kind, width, [=](long long at, int row, int c) {
        const int sequence = b->sequences[kind ? b->output_rows[row] : row];
        const float scale = b->n_adapters ? b->adapters[sequence * b->n_adapters + adapter] : 1.0f;
        const float times = __fmul_rn(scale, factor);
        y[at] = times == 0.0f ? x[at] : __fadd_rn(x[at], __fmul_rn(times, added[at]));
    });
}

// RoPE of heads of `head` columns; the first n_rot rotate in pairs.
KERNEL(rope)(const Batch* b, const float* x, float* y, int width, int kind, int head, int n_rot, int is_adjacent,
             int column) {
    each(b, kind, width, [=](long long at, int row, int c) {
        const int i = c % head, half = n_rot / 2;
        if (i >= n_rot) {
            y[at] = x[at];
            return;
        }
        const bool is_first = is_adjacent ? i % 2 == 0 : i < half;
        const int pair = is_adjacent ? i / 2 : i % half, other = is_adjacent ? 1 : half;
        const long long angles =
            (long long)b->rope_rows[kind ? b->output_rows[row] : row] * b->rope_width + column + pair;
        const float cosine = b->cosines[angles], sine = b->sines[angles];
        y[at] = is_first ? x[at] * cosine - x[at + other] * sine : x[at - other] * sine + x[at] * cosine;
    });
}
