// What all kernels of matrix products share: slices of K, rows of activations as halves, and what follows a sum.
//
// A product is the same whatever kernel computes it, alone or in a batch: the columns (tiles of 256) are cut into 16
// slices; in each a chain of m16n8k16 runs in the order of the columns, from zero; the slices are added in order.
#pragma once

#include "activations.cuh"
#include "mma.cuh"
#include "tile.cuh"

constexpr int N_SLICES = 16;
// Threads that norm one row: the order of its sum depends on them.
constexpr int ROW_THREADS = 512;

__device__ __forceinline__ int slice_start(int slice, int n_tiles) {
    return slice * (n_tiles / N_SLICES) + min(slice, n_tiles % N_SLICES);
}

// A power of two that brings the largest magnitude of a row to 2^13 .. 2^14, and its inverse.
struct Power {
    float times, back;
};
__device__ __forceinline__ Power power_for(float largest) {
    const int exponent = max(14, int(__float_as_uint(largest) >> 23 & 255u));
    return {__uint_as_float(u32(267 - exponent) << 23), __uint_as_float(u32(exponent - 13) << 23)};
}

// Sum and largest of all threads of the block, in one order. `shared` has 2 floats for each warp; it is free again
// after the next barrier of the block.
__device__ __forceinline__ void reduce_row(float& sum, float& largest, float* shared) {
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        sum += __shfl_xor_sync(ALL_LANES, sum, o);
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
    }
    const int warp = threadIdx.x >> 5;
    float2* pairs = reinterpret_cast<float2*>(shared);
    if ((threadIdx.x & 31) == 0) pairs[warp] = make_float2(sum, largest);
    __syncthreads();
    sum = largest = 0;
#pragma unroll
    for (int i = 0; i < ROW_THREADS / 32; i++) sum += pairs[i].x, largest = fmaxf(largest, pairs[i].y);
}

// A row of f32, normed if there is a norm, as halves times a power of two, by all ROW_THREADS threads of a block. Each
// holds HELD times 4 columns between the passes over the row; of a longer row, both passes read. IS_WHOLE: the row is
// not longer, and of aligned fours, which needs less code. The bits depend on neither.
template <int HELD, bool IS_WHOLE = false>
struct RowHalver {
    const float* norm;
    int n, n_padded;  // columns; behind them come zeros
    float4 w[HELD];   // of the norm

    __device__ __forceinline__ RowHalver(const float* norm, int n, int n_padded)
        : norm(norm), n(n), n_padded(n_padded) {
        weigh(0);
    }
    __device__ __forceinline__ int column(int pass, int i) const {
        return 4 * ((pass * HELD + i) * ROW_THREADS + int(threadIdx.x));
    }
    // Columns k to k + 3. Loads are not in branches, so that they are under way together; behind the row they repeat
    // it.
    template <class Load>
    __device__ __forceinline__ float4 four(const float* x, int k, bool is_aligned, Load&& load) const {
        if (IS_WHOLE || is_aligned) return load(reinterpret_cast<const float4*>(x + min(k, n - 4)));
        return make_float4(load(x + min(k, n - 1)), load(x + min(k + 1, n - 1)), load(x + min(k + 2, n - 1)),
                           load(x + min(k + 3, n - 1)));
    }
    __device__ __forceinline__ void weigh(int pass) {
#pragma unroll
        for (int i = 0; i < HELD; i++)
            w[i] = norm == nullptr ? make_float4(1, 1, 1, 1)
                                   : four(norm, column(pass, i), (n & 3) == 0, [](auto* at) { return *at; });
    }
    // Calls put(k, low, high) for columns k (a multiple of 4) and k + 1, k + 2 and k + 3, up to n_padded. `shared` is
    // used until the next barrier. Gives the inverse of the power.
    template <class Put>
    __device__ __forceinline__ float halve(const float* x, float eps, float* shared, Put&& put) {
        return halve(x, eps, shared, put, [] {});
    }
    // ... and calls asked() when the row is on its way.
    template <class Put, class Asked>
    __device__ __forceinline__ float halve(const float* x, float eps, float* shared, Put&& put, Asked&& asked) {
        const int n_passes = IS_WHOLE ? 1 : (n_padded / 4 + HELD * ROW_THREADS - 1) / (HELD * ROW_THREADS);
        const bool is_aligned = (n & 3) == 0 && (reinterpret_cast<u64>(x) & 15) == 0;
        float4 v[HELD];
        float sum = 0, largest = 0;
        auto load = [&](int pass) {
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                const int k = column(pass, i);
                // What the kernel before wrote comes from the second-level cache: the first may hold older numbers.
                v[i] = four(x, k, is_aligned, [](auto* at) { return __ldcg(at); });
                if (k >= n) v[i].x = 0;
                if (k + 1 >= n) v[i].y = 0;
                if (k + 2 >= n) v[i].z = 0;
                if (k + 3 >= n) v[i].w = 0;
            }
            if (n_passes > 1) weigh(pass);
        };
        for (int pass = 0; pass < n_passes; pass++) {
            load(pass);
            if (pass == 0) asked();
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                sum = __fmaf_rn(v[i].x, v[i].x, sum), sum = __fmaf_rn(v[i].y, v[i].y, sum);
                sum = __fmaf_rn(v[i].z, v[i].z, sum), sum = __fmaf_rn(v[i].w, v[i].w, sum);
                largest = fmaxf(largest, fmaxf(fmaxf(fabsf(v[i].x * w[i].x), fabsf(v[i].y * w[i].y)),
                                               fmaxf(fabsf(v[i].z * w[i].z), fabsf(v[i].w * w[i].w))));
            }
        }
        reduce_row(sum, largest, shared);
        const float scale = norm == nullptr ? 1.f : __fdiv_rn(1.f, __fsqrt_rn(__fdiv_rn(sum, float(n)) + eps));
        const Power power = power_for(largest * scale);
        auto halves = [&](float a, float b, float wa, float wb) {
            return to_halves(__fmul_rn(__fmul_rn(a, scale), wa) * power.times,
                             __fmul_rn(__fmul_rn(b, scale), wb) * power.times);
        };
        for (int pass = 0; pass < n_passes; pass++) {
            if (n_passes > 1) load(pass);
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                const int k = column(pass, i);
                if (k < n_padded)
                    put(k, halves(v[i].x, v[i].y, w[i].x, w[i].y), halves(v[i].z, v[i].w, w[i].z, w[i].w));
            }
        }
        return power.back;
    }
};

// Where prepared rows keep column k: blocks of 64 columns; in a block every row has 128 bytes, whose pieces of 16 are
// swapped by the row's number, as wgmma reads them without conflicts. Counted in halves; `n_stride` rows in a block.
__device__ __forceinline__ u64 prepared_at(int row, int k, int n_stride) {
    return (u64(k >> 6) * n_stride + row) * 64 + ((((k & 63) >> 3) ^ (row & 7)) << 3) + (k & 7);
}

// One matrix of a step: tiles, then a factor for each packed row; a matrix of heads has both for each head. In pairs
// (GLU), rows 0 to 7 of a strip are of the gate, 8 to 15 of the matrix that it gates.
struct Matrix {
    const u8* tiles;
    const float* bias;
    float* y;
    int n_rows, n_strips;
};
// As kernels take them.
#define MATRIX(i) const u8 *tiles##i, const float *bias##i, float *y##i, int n_rows##i, int n_strips##i
#define MATRIX_OF(i) {tiles##i, bias##i, y##i, n_rows##i, n_strips##i}

// What follows the sum of an element.
enum Epilogue { PLAIN = 0, RESIDUAL = 1, GLU = 2 };

// Gates but the usual one are a call: in a loop that is unrolled for many rows they would be most of the kernel.
static __device__ NEVER_INLINE float gated_by(int kind, float gate, float up, float limit) {
    return gated(kind, gate, up, limit);
}
__device__ __forceinline__ float gated_sum(int kind, float limit, float gate, float up) {
    if (kind == SILU && limit == 0.f) return __fdividef(gate, 1.f + __expf(-gate)) * up;
    return gated_by(kind, gate, up, limit);
}

// What follows the sums of a step.
struct Finish {
    const float* residual;  // where `epilogue` says so, of the shape of the only value
    int epilogue, gate;
    float limit, scale;
};
#define FINISH const float *residual, int epilogue, int gate, float limit, float scale
#define FINISH_OF {residual, epilogue, gate, limit, scale}

// The sum of slices put back into its range, plus bias, times scale.
__device__ __forceinline__ float finished(float sum, float factor, float back, bool has_bias, float bias, float scale) {
    float y = __fmul_rn(__fmul_rn(sum, factor), back);
    if (has_bias) y = __fadd_rn(y, bias);
    return scale == 1.f ? y : __fmul_rn(y, scale);
}

// The work of kernels of many rows, in items: 128 rows of a matrix by NT rows of activations, for a part of the slices.
struct Items {
    int n_high0, n_high1, n_high, n_wide, n_splits;

    __device__ __forceinline__ Items(const Matrix (&all)[3], int n_rows, int width, int splits)
        : n_high0((all[0].n_strips + 7) / 8), n_high1((all[1].n_strips + 7) / 8), n_splits(splits) {
        n_high = n_high0 + n_high1 + (all[2].n_strips + 7) / 8;
        n_wide = (n_rows + width - 1) / width;
    }
    __device__ __forceinline__ int count() const { return n_high * n_wide * n_splits; }
};
struct Item {
    int split, wide;
    int high, which;  // rows of which matrix
    int packed;       // the first of its 128 rows, counted over all matrices

    // Blocks that follow one another share rows of weights.
    __device__ __forceinline__ Item(const Items& items, int number) {
        split = number % items.n_splits;
        wide = number / items.n_splits % items.n_wide;
        high = number / items.n_splits / items.n_wide;
        packed = high * 128;
        which = high < items.n_high0 ? 0 : high < items.n_high0 + items.n_high1 ? 1 : 2;
        high -= which == 0 ? 0 : which == 1 ? items.n_high0 : items.n_high0 + items.n_high1;
    }
};
__device__ __forceinline__ Matrix chosen(const Matrix (&all)[3], int which) {
    return which == 0 ? all[0] : which == 1 ? all[1] : all[2];
}

// Stores what a warp has of an item, sums as mma gives them: of all slices, with what follows ...
template <int NT>
__device__ __forceinline__ void store_item(const float (&sum)[NT / 2], const Matrix (&all)[3], const Item& item,
                                           int warp, int strip_bytes, const float* backs, int n_rows,
                                           const Finish& finish) {
    const Matrix m = chosen(all, item.which);
    const int strip = item.high * 8 + warp, g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3;
    if (strip >= m.n_strips) return;
    const float* factors = reinterpret_cast<const float*>(m.tiles + u64(m.n_strips) * strip_bytes) + strip * 16 + g;
    const float factor_a = factors[0], factor_b = factors[8];
    const int n_each = finish.epilogue == GLU ? 8 : 16, out_a = strip * n_each + g, out_b = out_a + 8;
    const bool has_a = out_a < m.n_rows, has_b = out_b < m.n_rows;
    const float* biases = finish.epilogue == GLU ? all[1].bias : m.bias;
    const float bias_a = m.bias != nullptr && has_a ? m.bias[out_a] : 0.f;
    const float bias_b = biases != nullptr && (finish.epilogue == GLU ? has_a : has_b)
                             ? biases[finish.epilogue == GLU ? out_a : out_b]
                             : 0.f;
    auto row_of = [&](int i) { return item.wide * NT + (i >> 1) * 8 + 2 * t + (i & 1); };
    constexpr int CHUNK = NT / 4 < 8 ? NT / 4 : 8;
#pragma unroll
    for (int first = 0; first < NT / 4; first += CHUNK) {
        // Loads first, outside of branches: they are under way together. Rows behind the last repeat it.
        float back[CHUNK], kept[2 * CHUNK];
#pragma unroll
        for (int i = 0; i < CHUNK; i++) back[i] = __ldcg(backs + min(row_of(first + i), n_rows - 1));
        if (finish.epilogue == RESIDUAL) {
#pragma unroll
            for (int i = 0; i < CHUNK; i++) {
                const float* from = finish.residual + u64(min(row_of(first + i), n_rows - 1)) * m.n_rows;
                kept[2 * i] = __ldcg(from + min(out_a, m.n_rows - 1));
                kept[2 * i + 1] = __ldcg(from + min(out_b, m.n_rows - 1));
            }
        }
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            const int row = row_of(first + i), at = ((first + i) >> 1) * 4 + (i & 1);
            float a = finished(sum[at], factor_a, back[i], m.bias != nullptr, bias_a, finish.scale);
            float b = finished(sum[at + 2], factor_b, back[i], biases != nullptr, bias_b, finish.scale);
            if (finish.epilogue == RESIDUAL) a = __fadd_rn(kept[2 * i], a), b = __fadd_rn(kept[2 * i + 1], b);
            if (finish.epilogue == GLU) a = gated_sum(finish.gate, finish.limit, a, b);
            float* to = m.y + u64(row) * m.n_rows + out_a;
            if (row < n_rows && has_a) to[0] = a;
            if (row < n_rows && has_b && finish.epilogue != GLU) to[8] = b;
        }
    }
}
// ... or of one slice, for linear_sum.
template <int NT>
__device__ __forceinline__ void store_part(const float (&sum)[NT / 2], float* parts, const Items& items,
                                           const Item& item, int slice, int warp) {
    const int g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3, n_packed = items.n_high * 128;
    float* part = parts + u64(slice * items.n_wide + item.wide) * NT * n_packed + item.packed + warp * 16 + g;
#pragma unroll
    for (int i = 0; i < NT / 2; i++)
        __stcg(part + u64((i >> 2) * 8 + 2 * t + (i & 1)) * n_packed + (i >> 1 & 1) * 8, sum[i]);
}
