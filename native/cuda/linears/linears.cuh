// What all kernels of matrix products share: slices of K, rows of activations as halves, and what follows a sum.
//
// A product is the same whatever kernel computes it, alone or in a batch: the columns (tiles of 256) are cut into 16
// slices; in each a chain of m16n8k16 runs in the order of places (tile.cuh), from zero; the slices are added in order.
#pragma once

#include "primitives/activations.cuh"
#include "primitives/division.cuh"
#include "primitives/mma.cuh"
#include "weights/tile.cuh"

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

// Index of this thread within its row. A block may hold the threads of several rows.
template <int EACH>
__device__ __forceinline__ int row_thread() {
    return EACH == 1 ? int(threadIdx.x) : int(threadIdx.x) & (ROW_THREADS / EACH - 1);
}
// Waits for all threads of a row, which are the block, or those that name a barrier.
template <int EACH, int BARRIER>
__device__ __forceinline__ void row_barrier() {
    if constexpr (BARRIER == 0)
        __syncthreads();
    else
        named_barrier(BARRIER, ROW_THREADS / EACH);
}
// Reduces ROW_THREADS numbers to their sum and maximum, in one order. A thread holds EACH of them, ROW_THREADS / EACH
// apart. `shared` has 2 floats for each 32 numbers; the caller may reuse it after the next barrier.
template <int EACH, int BARRIER = 0>
__device__ __forceinline__ float reduce_row(float (&sum)[EACH], float& largest, float* shared) {
    constexpr int N = ROW_THREADS / 32;
#pragma unroll
    for (int o = 16; o; o >>= 1) {
#pragma unroll
        for (int i = 0; i < EACH; i++) sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], o);
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
    }
    const int warp = row_thread<EACH>() >> 5;
    if ((threadIdx.x & 31) == 0) {
#pragma unroll
        for (int i = 0; i < EACH; i++) shared[warp + i * (N / EACH)] = sum[i];
        shared[N + warp] = largest;
    }
    row_barrier<EACH, BARRIER>();
    float all = 0;
    largest = 0;
#pragma unroll
    for (int i = 0; i < N; i++) all += shared[i];
#pragma unroll
    for (int i = 0; i < N / EACH; i++) largest = fmaxf(largest, shared[N + i]);
    return all;
}

// Converts a row of f32 to f16 times a power of two, after its norm if it has one. All threads of a block work on it,
// or the threads of one of the block's rows. One thread does the work of EACH of the ROW_THREADS that define the order
// of sums. It keeps 4 x HELD columns for each of them in registers; a longer row is read twice. IS_WHOLE: the row is
// not longer and comes in aligned fours, which needs less code. HOLDS_NORM: the norm stays in registers, too, otherwise
// it is read twice. BARRIER: of its threads, if the block has others. The bits depend on none of this.
template <int HELD, bool IS_WHOLE = false, bool HOLDS_NORM = true, int EACH = 1, int BARRIER = 0>
struct RowHalver {
    static constexpr int N = HELD * EACH;
    const float* norm;
    int n, n_padded;  // columns; behind them come zeros
    float4 w[HOLDS_NORM ? N : 1];

    __device__ __forceinline__ RowHalver(const float* norm, int n, int n_padded)
        : norm(norm), n(n), n_padded(n_padded) {
        weigh(0);
    }
    __device__ __forceinline__ int column(int pass, int i) const {
        return 4 * ((pass * HELD + i / EACH) * ROW_THREADS + i % EACH * (ROW_THREADS / EACH) + row_thread<EACH>());
    }
    // Loads all columns of a pass. No load waits for another; columns past the end repeat the last ones.
    template <class Load>
    __device__ __forceinline__ void fetch(float4 (&to)[N], const float* x, int pass, Load&& load) const {
        if (IS_WHOLE || ((n & 3) == 0 && (reinterpret_cast<u64>(x) & 15) == 0)) {
#pragma unroll
            for (int i = 0; i < N; i++) to[i] = load(reinterpret_cast<const float4*>(x + min(column(pass, i), n - 4)));
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) {
                const int k = column(pass, i);
                to[i] = make_float4(load(x + min(k, n - 1)), load(x + min(k + 1, n - 1)), load(x + min(k + 2, n - 1)),
                                    load(x + min(k + 3, n - 1)));
            }
        }
    }
    __device__ __forceinline__ void weigh(int pass) {
        if constexpr (HOLDS_NORM) {
            if (norm != nullptr) {
                fetch(w, norm, pass, [](auto* at) { return *at; });
            } else {
#pragma unroll
                for (int i = 0; i < N; i++) w[i] = make_float4(1, 1, 1, 1);
            }
        }
    }
    __device__ __forceinline__ float4 weight(int pass, int i) const {
        if constexpr (HOLDS_NORM) return w[i];
        const int k = column(pass, i);
        if ((n & 3) == 0) return *reinterpret_cast<const float4*>(norm + min(k, n - 4));
        return make_float4(norm[min(k, n - 1)], norm[min(k + 1, n - 1)], norm[min(k + 2, n - 1)],
                           norm[min(k + 3, n - 1)]);
    }
    // Calls put(k, low, high) for columns k (a multiple of 4) and k + 1, k + 2 and k + 3, up to n_padded. `shared` is
    // used until the next barrier. Returns the inverse of the power.
    template <class Put>
    __device__ __forceinline__ float halve(const float* x, float eps, float* shared, Put&& put) {
        return halve(x, eps, shared, put, [] {});
    }
    // ... and calls asked() when the row is on its way.
    template <class Put, class Asked>
    __device__ __forceinline__ float halve(const float* x, float eps, float* shared, Put&& put, Asked&& asked) {
        const int n_passes = IS_WHOLE ? 1 : (n_padded / 4 + HELD * ROW_THREADS - 1) / (HELD * ROW_THREADS);
        float4 v[N];
        float sum[EACH], largest = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) sum[i] = 0;
        auto load = [&](int pass) {
            // What the kernel before wrote comes from the second-level cache: the first may hold older numbers.
            fetch(v, x, pass, [](auto* at) { return __ldcg(at); });
            if (n_passes > 1) weigh(pass);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const int k = column(pass, i);
                if (k >= n) v[i].x = 0;
                if (k + 1 >= n) v[i].y = 0;
                if (k + 2 >= n) v[i].z = 0;
                if (k + 3 >= n) v[i].w = 0;
            }
        };
        auto most = [](float4 a) { return fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(a.z), fabsf(a.w))); };
        for (int pass = 0; pass < n_passes; pass++) {
            load(pass);
            if (pass == 0) asked();
            if (norm == nullptr) {
#pragma unroll
                for (int i = 0; i < N; i++) largest = fmaxf(largest, most(v[i]));
                continue;
            }
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float4 wi = weight(pass, i);
                float& s = sum[i % EACH];
                s = __fmaf_rn(v[i].x, v[i].x, s), s = __fmaf_rn(v[i].y, v[i].y, s);
                s = __fmaf_rn(v[i].z, v[i].z, s), s = __fmaf_rn(v[i].w, v[i].w, s);
                largest = fmaxf(largest, most(make_float4(v[i].x * wi.x, v[i].y * wi.y, v[i].z * wi.z, v[i].w * wi.w)));
            }
        }
        const float all = reduce_row<EACH, BARRIER>(sum, largest, shared);
        const float scale = norm == nullptr ? 1.f : scale_of_norm(all, float(n), eps);
        const Power power = power_for(largest * scale);
        auto halves = [&](float a, float b, float wa, float wb) {
            return to_half2(__fmul_rn(__fmul_rn(a, scale), wa) * power.times,
                            __fmul_rn(__fmul_rn(b, scale), wb) * power.times);
        };
        for (int pass = 0; pass < n_passes; pass++) {
            if (n_passes > 1) load(pass);
            if (norm == nullptr) {
#pragma unroll
                for (int i = 0; i < N; i++)
                    if (const int k = column(pass, i); k < n_padded)
                        put(k, to_half2(v[i].x * power.times, v[i].y * power.times),
                            to_half2(v[i].z * power.times, v[i].w * power.times));
                continue;
            }
#pragma unroll
            for (int i = 0; i < N; i++) {
                const int k = column(pass, i);
                const float4 wi = weight(pass, i);
                if (k < n_padded) put(k, halves(v[i].x, v[i].y, wi.x, wi.y), halves(v[i].z, v[i].w, wi.z, wi.w));
            }
        }
        return power.back;
    }
};

// Where prepared rows keep a place (place_of): blocks of 64; in a block every row has 128 bytes, whose pieces of 16 are
// swapped by the row's number, as wgmma reads them without conflicts. Counted in halves; `n_stride` rows in a block.
__device__ __forceinline__ u64 prepared_at(int row, int place, int n_stride) {
    return (u64(place >> 6) * n_stride + row) * 64 + ((((place & 63) >> 3) ^ (row & 7)) << 3) + (place & 7);
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
__device__ __forceinline__ bool is_usual(int kind, float limit) { return kind == SILU && limit == 0.f; }
__device__ __forceinline__ float usual_gate(float gate, float up) { return __fdividef(gate, 1.f + __expf(-gate)) * up; }
__device__ __forceinline__ float gated_sum(int kind, float limit, float gate, float up) {
    if (is_usual(kind, limit)) return usual_gate(gate, up);
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
    return __fmul_rn(y, scale);
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
    __device__ __forceinline__ Item(const Items& items, int number)
        : Item(items, number / (items.n_splits * items.n_wide), number % (items.n_splits * items.n_wide)) {}
    __device__ __forceinline__ Item(const Items& items, int high_of_all, int number)
        : split(number % items.n_splits), wide(number / items.n_splits), high(high_of_all), packed(high * 128) {
        which = high < items.n_high0 ? 0 : high < items.n_high0 + items.n_high1 ? 1 : 2;
        high -= which == 0 ? 0 : which == 1 ? items.n_high0 : items.n_high0 + items.n_high1;
    }
};
__device__ __forceinline__ Matrix chosen(const Matrix (&all)[3], int which) {
    return which == 0 ? all[0] : which == 1 ? all[1] : all[2];
}

// The row of an item whose sums a lane has at 4 (i / 2) + i % 2 and, of the row of weights 8 on, two further.
__device__ __forceinline__ int row_in_item(int i) { return (i >> 1) * 8 + 2 * (threadIdx.x & 3) + (i & 1); }

// Where a warp stores what it has of an item: rows out and out + 8 of the matrix; in pairs, row `out` of both.
struct Out {
    float factor_a, factor_b, bias_a, bias_b;
    int out;
    bool has_a, has_b, has_bias_a, has_bias_b;
};
// For one of the ways to finish: code for each element of a warp should be short. Residuals of CHUNK rows are under way
// together; rows behind the last repeat it.
template <int NT, int CHUNK, int EPILOGUE, class Back, class Gate>
__device__ __forceinline__ void store_rows(const float (&sum)[NT / 2], const Matrix& m, int first_row, const Out& o,
                                           int n_rows, const Finish& finish, Back&& back_of, Gate&& gate) {
#pragma unroll
    for (int first = 0; first < NT / 4; first += CHUNK) {
        float kept[2 * CHUNK];
        if (EPILOGUE == RESIDUAL) {
#pragma unroll
            for (int i = 0; i < CHUNK; i++) {
                const int row = min(first_row + row_in_item(first + i), n_rows - 1);
                const float* from = finish.residual + u64(row) * m.n_rows;
                kept[2 * i] = __ldcg(from + min(o.out, m.n_rows - 1));
                kept[2 * i + 1] = __ldcg(from + min(o.out + 8, m.n_rows - 1));
            }
        }
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            const int row = first_row + row_in_item(first + i), at = ((first + i) >> 1) * 4 + (i & 1);
            const float back = back_of(row_in_item(first + i));
            float a = finished(sum[at], o.factor_a, back, o.has_bias_a, o.bias_a, finish.scale);
            float b = finished(sum[at + 2], o.factor_b, back, o.has_bias_b, o.bias_b, finish.scale);
            if (EPILOGUE == RESIDUAL) a = __fadd_rn(kept[2 * i], a), b = __fadd_rn(kept[2 * i + 1], b);
            if (EPILOGUE == GLU) a = gate(a, b);
            float* to = m.y + u64(row) * m.n_rows + o.out;
            if (row < n_rows && o.has_a) to[0] = a;
            if (EPILOGUE != GLU && row < n_rows && o.has_b) to[8] = b;
        }
    }
}
// What a lane needs for a strip of its matrix.
template <bool HAS_GLU = true>
__device__ __forceinline__ Out out_of(const Matrix (&all)[3], const Matrix& m, int strip, int strip_bytes,
                                      const Finish& finish) {
    const int g = threadIdx.x >> 2 & 7;
    const float* factors = reinterpret_cast<const float*>(m.tiles + u64(m.n_strips) * strip_bytes) + strip * 16 + g;
    const bool is_glu = HAS_GLU && finish.epilogue == GLU;
    const float* biases = is_glu ? all[1].bias : m.bias;
    Out o;
    o.factor_a = factors[0], o.factor_b = factors[8];
    o.out = strip * (is_glu ? 8 : 16) + g;
    o.has_a = o.out < m.n_rows, o.has_b = o.out + (is_glu ? 0 : 8) < m.n_rows;
    o.has_bias_a = m.bias != nullptr, o.has_bias_b = biases != nullptr;
    o.bias_a = o.has_bias_a && o.has_a ? m.bias[o.out] : 0.f;
    o.bias_b = o.has_bias_b && o.has_b ? biases[o.out + (is_glu ? 0 : 8)] : 0.f;
    return o;
}
// Stores what a warp has of an item, sums as mma gives them: of all slices, with what follows ... `back_of` gives the
// inverse of the power of a row of the item.
template <int NT, int CHUNK, class Back>
__device__ __forceinline__ void store_item(const float (&sum)[NT / 2], const Matrix (&all)[3], const Item& item,
                                           int warp, int strip_bytes, int n_rows, const Finish& finish,
                                           Back&& back_of) {
    const Matrix m = chosen(all, item.which);
    const int strip = item.high * 8 + warp, first_row = item.wide * NT;
    if (strip >= m.n_strips) return;
    const Out o = out_of(all, m, strip, strip_bytes, finish);
    auto none = [](float a, float) { return a; };
    if (finish.epilogue == RESIDUAL)
        store_rows<NT, CHUNK, RESIDUAL>(sum, m, first_row, o, n_rows, finish, back_of, none);
    else if (finish.epilogue != GLU)
        store_rows<NT, CHUNK, PLAIN>(sum, m, first_row, o, n_rows, finish, back_of, none);
    else if (is_usual(finish.gate, finish.limit))
        store_rows<NT, CHUNK, GLU>(sum, m, first_row, o, n_rows, finish, back_of, usual_gate);
    else
        store_rows<NT, CHUNK, GLU>(sum, m, first_row, o, n_rows, finish, back_of,
                                   [&](float a, float b) { return gated_by(finish.gate, a, b, finish.limit); });
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
