// Shared by all matrix product kernels: split of K into slices, conversion of activations to f16, epilogues.
//
// Every kernel gives a row the same bits, alone or in a batch: the tiles of 256 columns are split into 16 slices; each
// slice is one chain of m16n8k16 in the order of places (tile.cuh), starting from zero; slices are added in order.
#pragma once

#include "primitives/activations.cuh"
#include "primitives/division.cuh"
#include "primitives/mma.cuh"
#include "weights/tile.cuh"

constexpr int N_SLICES = 16;
// Logical threads per row in norms; they define the order of its sum.
constexpr int ROW_THREADS = 512;

__device__ __forceinline__ int slice_start(int slice, int n_tiles) {
    return slice * (n_tiles / N_SLICES) + min(slice, n_tiles % N_SLICES);
}

// Power of two that scales the largest magnitude of a row to [2^13, 2^14), and its inverse.
struct RowScale {
    float value, inverse;
};
__device__ __forceinline__ RowScale row_scale_for(float largest) {
    const int exponent = max(14, int(__float_as_uint(largest) >> 23 & 255u));
    return {__uint_as_float(u32(267 - exponent) << 23), __uint_as_float(u32(exponent - 13) << 23)};
}

// Index of this thread within its row. A block may process several rows.
template <int PER_THREAD>
__device__ __forceinline__ int row_thread() {
    return PER_THREAD == 1 ? int(threadIdx.x) : int(threadIdx.x) & (ROW_THREADS / PER_THREAD - 1);
}
// Barrier over the threads of one row: the whole block (BARRIER 0) or a named barrier.
template <int PER_THREAD, int BARRIER>
__device__ __forceinline__ void row_barrier() {
    if constexpr (BARRIER == 0)
        __syncthreads();
    else
        named_barrier(BARRIER, ROW_THREADS / PER_THREAD);
}
// Sum and maximum over the ROW_THREADS logical threads of a row, in fixed order. A thread holds PER_THREAD of them,
// ROW_THREADS / PER_THREAD apart. `shared` has 2 floats per 32 logical threads; reusable after the next barrier.
template <int PER_THREAD, int BARRIER = 0>
__device__ __forceinline__ float reduce_row(float (&sum)[PER_THREAD], float& largest, float* shared) {
    constexpr int N = ROW_THREADS / 32;
#pragma unroll
    for (int o = 16; o; o >>= 1) {
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], o);
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, o));
    }
    const int warp = row_thread<PER_THREAD>() >> 5;
    if ((threadIdx.x & 31) == 0) {
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) shared[warp + i * (N / PER_THREAD)] = sum[i];
        shared[N + warp] = largest;
    }
    row_barrier<PER_THREAD, BARRIER>();
    float all = 0;
    largest = 0;
#pragma unroll
    for (int i = 0; i < N; i++) all += shared[i];
#pragma unroll
    for (int i = 0; i < N / PER_THREAD; i++) largest = fmaxf(largest, shared[N + i]);
    return all;
}

// Converts a row of f32 to f16, normed first if `norm` is not null, scaled by a power of two. The result does not
// depend on the template parameters:
// - FOURS_PER_THREAD: float4s of the row kept in registers per logical thread; longer rows are read twice
// - IS_ONE_PASS: the row fits into registers and is 16-byte aligned, a multiple of 4 long
// - NORM_IN_REGISTERS: norm weights stay in registers, else they are read twice
// - PER_THREAD: logical threads (of ROW_THREADS) per thread
// - BARRIER: named barrier of the row's threads, 0 for __syncthreads
template <int FOURS_PER_THREAD, bool IS_ONE_PASS = false, bool NORM_IN_REGISTERS = true, int PER_THREAD = 1,
          int BARRIER = 0>
struct RowToF16 {
    static constexpr int N = FOURS_PER_THREAD * PER_THREAD;
    const float* norm;
    int n, n_padded;  // columns; zero-padded to n_padded
    float4 w[NORM_IN_REGISTERS ? N : 1];

    __device__ __forceinline__ RowToF16(const float* norm, int n, int n_padded) : norm(norm), n(n), n_padded(n_padded) {
        weigh(0);
    }
    __device__ __forceinline__ int column(int pass, int i) const {
        return 4 * ((pass * FOURS_PER_THREAD + i / PER_THREAD) * ROW_THREADS +
                    i % PER_THREAD * (ROW_THREADS / PER_THREAD) + row_thread<PER_THREAD>());
    }
    // Issues all loads of a pass before any is used. Columns past the end repeat the last ones.
    template <class Load>
    __device__ __forceinline__ void fetch(float4 (&to)[N], const float* x, int pass, Load&& load) const {
        if (IS_ONE_PASS || ((n & 3) == 0 && (reinterpret_cast<u64>(x) & 15) == 0)) {
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
        if constexpr (NORM_IN_REGISTERS) {
            if (norm != nullptr) {
                fetch(w, norm, pass, [](auto* at) { return *at; });
            } else {
#pragma unroll
                for (int i = 0; i < N; i++) w[i] = make_float4(1, 1, 1, 1);
            }
        }
    }
    __device__ __forceinline__ float4 weight(int pass, int i) const {
        if constexpr (NORM_IN_REGISTERS) return w[i];
        const int k = column(pass, i);
        if ((n & 3) == 0) return *reinterpret_cast<const float4*>(norm + min(k, n - 4));
        return make_float4(norm[min(k, n - 1)], norm[min(k + 1, n - 1)], norm[min(k + 2, n - 1)],
                           norm[min(k + 3, n - 1)]);
    }
    // Calls put(k, low, high) with columns k to k + 3 as f16x2 pairs, k a multiple of 4, up to n_padded. `shared` is in
    // use until the next barrier. Returns the inverse scale.
    template <class Put>
    __device__ __forceinline__ float convert(const float* x, float eps, float* shared, Put&& put) {
        return convert(x, eps, shared, put, [] {});
    }
    // Same; calls on_loaded() after the loads of the row are issued.
    template <class Put, class OnLoaded>
    __device__ __forceinline__ float convert(const float* x, float eps, float* shared, Put&& put,
                                             OnLoaded&& on_loaded) {
        const int n_passes =
            IS_ONE_PASS ? 1 : (n_padded / 4 + FOURS_PER_THREAD * ROW_THREADS - 1) / (FOURS_PER_THREAD * ROW_THREADS);
        float4 v[N];
        float sum[PER_THREAD], largest = 0;
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) sum[i] = 0;
        auto load = [&](int pass) {
            // __ldcg bypasses L1, which may hold stale values from before the previous kernel.
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
        auto max_abs4 = [](float4 a) { return fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(a.z), fabsf(a.w))); };
        for (int pass = 0; pass < n_passes; pass++) {
            load(pass);
            if (pass == 0) on_loaded();
            if (norm == nullptr) {
#pragma unroll
                for (int i = 0; i < N; i++) largest = fmaxf(largest, max_abs4(v[i]));
                continue;
            }
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float4 wi = weight(pass, i);
                float& s = sum[i % PER_THREAD];
                s = __fmaf_rn(v[i].x, v[i].x, s), s = __fmaf_rn(v[i].y, v[i].y, s);
                s = __fmaf_rn(v[i].z, v[i].z, s), s = __fmaf_rn(v[i].w, v[i].w, s);
                largest =
                    fmaxf(largest, max_abs4(make_float4(v[i].x * wi.x, v[i].y * wi.y, v[i].z * wi.z, v[i].w * wi.w)));
            }
        }
        const float all = reduce_row<PER_THREAD, BARRIER>(sum, largest, shared);
        const float scale = norm == nullptr ? 1.f : scale_of_norm(all, float(n), eps);
        const RowScale row_scale = row_scale_for(largest * scale);
        auto scaled_half2 = [&](float a, float b, float wa, float wb) {
            return to_half2(__fmul_rn(__fmul_rn(a, scale), wa) * row_scale.value,
                            __fmul_rn(__fmul_rn(b, scale), wb) * row_scale.value);
        };
        for (int pass = 0; pass < n_passes; pass++) {
            if (n_passes > 1) load(pass);
            if (norm == nullptr) {
#pragma unroll
                for (int i = 0; i < N; i++)
                    if (const int k = column(pass, i); k < n_padded)
                        put(k, to_half2(v[i].x * row_scale.value, v[i].y * row_scale.value),
                            to_half2(v[i].z * row_scale.value, v[i].w * row_scale.value));
                continue;
            }
#pragma unroll
            for (int i = 0; i < N; i++) {
                const int k = column(pass, i);
                const float4 wi = weight(pass, i);
                if (k < n_padded)
                    put(k, scaled_half2(v[i].x, v[i].y, wi.x, wi.y), scaled_half2(v[i].z, v[i].w, wi.z, wi.w));
            }
        }
        return row_scale.inverse;
    }
};

// Offset, in f16, of a place (place_of) in prepared rows: [64-place block][n_stride rows][128 bytes], 16-byte chunks
// XOR-swizzled by row % 8, as wgmma reads without bank conflicts.
__device__ __forceinline__ u64 prepared_at(int row, int place, int n_stride) {
    return (u64(place >> 6) * n_stride + row) * 64 + ((((place & 63) >> 3) ^ (row & 7)) << 3) + (place & 7);
}

// One matrix of a step: tiles, then one f32 factor per packed row. With heads, both per head. With GLU, rows 0 to 7 of
// a panel belong to gate, 8 to 15 to up.
struct Matrix {
    const u8* tiles;
    const float* bias;
    float* y;
    int n_rows, n_panels;
};
// As kernel parameters.
#define MATRIX(i) const u8 *tiles##i, const float *bias##i, float *y##i, int n_rows##i, int n_panels##i
#define MATRIX_OF(i) {tiles##i, bias##i, y##i, n_rows##i, n_panels##i}

// Operation after the sum of an element.
enum Epilogue { PLAIN = 0, RESIDUAL = 1, GLU = 2 };

// Not inlined: in loops unrolled over many rows the rare gates would be most of the code.
static __device__ NEVER_INLINE float glu_outlined(int kind, float gate, float up, float limit) {
    return gated(kind, gate, up, limit);
}
__device__ __forceinline__ bool is_silu_glu(int kind, float limit) { return kind == SILU && limit == 0.f; }
__device__ __forceinline__ float silu_glu(float gate, float up) { return __fdividef(gate, 1.f + __expf(-gate)) * up; }
__device__ __forceinline__ float apply_glu(int kind, float limit, float gate, float up) {
    if (is_silu_glu(kind, limit)) return silu_glu(gate, up);
    return glu_outlined(kind, gate, up, limit);
}

// Epilogue of a step.
struct EpilogueParams {
    const float* residual;  // [rows][n_rows], if epilogue is RESIDUAL
    int epilogue, gate;
    float limit, scale;
};
#define EPILOGUE_PARAMS const float *residual, int epilogue, int gate, float limit, float scale
#define EPILOGUE_ARGS {residual, epilogue, gate, limit, scale}

// Sum of the slices, rescaled by the weight factor and the inverse activation scale, plus bias, times scale.
__device__ __forceinline__ float scale_and_bias(float sum, float factor, float inv_scale, bool has_bias, float bias,
                                                float scale) {
    float y = __fmul_rn(__fmul_rn(sum, factor), inv_scale);
    if (has_bias) y = __fadd_rn(y, bias);
    return __fmul_rn(y, scale);
}

// Work items of the GEMM kernels: 128 weight rows by NT activation rows, for one of n_splits parts of the slices.
struct Items {
    int n_w_blocks0, n_w_blocks1, n_w_blocks, n_x_blocks, n_splits;

    __device__ __forceinline__ Items(const Matrix (&all)[3], int n_rows, int width, int splits)
        : n_w_blocks0((all[0].n_panels + 7) / 8), n_w_blocks1((all[1].n_panels + 7) / 8), n_splits(splits) {
        n_w_blocks = n_w_blocks0 + n_w_blocks1 + (all[2].n_panels + 7) / 8;
        n_x_blocks = (n_rows + width - 1) / width;
    }
    __device__ __forceinline__ int count() const { return n_w_blocks * n_x_blocks * n_splits; }
};
struct Item {
    int split, x_block;
    int w_block, which;  // block of 128 rows of matrix `which`
    int packed;          // first of its 128 rows, counted over all matrices

    // Consecutive blocks share weight rows.
    __device__ __forceinline__ Item(const Items& items, int number)
        : Item(items, number / (items.n_splits * items.n_x_blocks), number % (items.n_splits * items.n_x_blocks)) {}
    __device__ __forceinline__ Item(const Items& items, int w_block_of_all, int number)
        : split(number % items.n_splits),
          x_block(number / items.n_splits),
          w_block(w_block_of_all),
          packed(w_block * 128) {
        which = w_block < items.n_w_blocks0 ? 0 : w_block < items.n_w_blocks0 + items.n_w_blocks1 ? 1 : 2;
        w_block -= which == 0 ? 0 : which == 1 ? items.n_w_blocks0 : items.n_w_blocks0 + items.n_w_blocks1;
    }
};
__device__ __forceinline__ Matrix matrix_at(const Matrix (&all)[3], int which) {
    return which == 0 ? all[0] : which == 1 ? all[1] : all[2];
}

// Row within the item of accumulators 4 (i / 2) + i % 2 and that + 2 (weight row + 8) of a lane.
__device__ __forceinline__ int row_in_item(int i) { return (i >> 1) * 8 + 2 * (threadIdx.x & 3) + (i & 1); }

// Output rows of a lane: `out` and `out + 8`; with GLU, gate and up of row `out`.
struct OutputRows {
    float factor_a, factor_b, bias_a, bias_b;
    int out;
    bool has_a, has_b, has_bias_a, has_bias_b;
};
// Specialized per epilogue to keep the unrolled code short. Residuals of CHUNK rows are loaded together; rows past the
// end repeat the last one.
template <int NT, int CHUNK, int EPILOGUE, class InvScale, class Gate>
__device__ __forceinline__ void store_rows(const float (&sum)[NT / 2], const Matrix& m, int first_row,
                                           const OutputRows& o, int n_rows, const EpilogueParams& epi,
                                           InvScale&& inv_scale_of, Gate&& gate) {
#pragma unroll
    for (int first = 0; first < NT / 4; first += CHUNK) {
        float kept[2 * CHUNK];
        if (EPILOGUE == RESIDUAL) {
#pragma unroll
            for (int i = 0; i < CHUNK; i++) {
                const int row = min(first_row + row_in_item(first + i), n_rows - 1);
                const float* from = epi.residual + u64(row) * m.n_rows;
                kept[2 * i] = __ldcg(from + min(o.out, m.n_rows - 1));
                kept[2 * i + 1] = __ldcg(from + min(o.out + 8, m.n_rows - 1));
            }
        }
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            const int row = first_row + row_in_item(first + i), at = ((first + i) >> 1) * 4 + (i & 1);
            const float inv_scale = inv_scale_of(row_in_item(first + i));
            float a = scale_and_bias(sum[at], o.factor_a, inv_scale, o.has_bias_a, o.bias_a, epi.scale);
            float b = scale_and_bias(sum[at + 2], o.factor_b, inv_scale, o.has_bias_b, o.bias_b, epi.scale);
            if (EPILOGUE == RESIDUAL) a = __fadd_rn(kept[2 * i], a), b = __fadd_rn(kept[2 * i + 1], b);
            if (EPILOGUE == GLU) a = gate(a, b);
            float* to = m.y + u64(row) * m.n_rows + o.out;
            if (row < n_rows && o.has_a) to[0] = a;
            if (EPILOGUE != GLU && row < n_rows && o.has_b) to[8] = b;
        }
    }
}
// Factors and biases of a lane for one panel.
template <bool HAS_GLU = true>
__device__ __forceinline__ OutputRows output_rows_of(const Matrix (&all)[3], const Matrix& m, int panel,
                                                     int panel_bytes, const EpilogueParams& epi) {
    const int g = threadIdx.x >> 2 & 7;
    const float* factors = reinterpret_cast<const float*>(m.tiles + u64(m.n_panels) * panel_bytes) + panel * 16 + g;
    const bool is_glu = HAS_GLU && epi.epilogue == GLU;
    const float* biases = is_glu ? all[1].bias : m.bias;
    OutputRows o;
    o.factor_a = factors[0], o.factor_b = factors[8];
    o.out = panel * (is_glu ? 8 : 16) + g;
    o.has_a = o.out < m.n_rows, o.has_b = o.out + (is_glu ? 0 : 8) < m.n_rows;
    o.has_bias_a = m.bias != nullptr, o.has_bias_b = biases != nullptr;
    o.bias_a = o.has_bias_a && o.has_a ? m.bias[o.out] : 0.f;
    o.bias_b = o.has_bias_b && o.has_b ? biases[o.out + (is_glu ? 0 : 8)] : 0.f;
    return o;
}
// Applies the epilogue to a warp's accumulators of an item, summed over all slices. inv_scale_of(row) is the inverse
// scale of an activation row.
template <int NT, int CHUNK, class InvScale>
__device__ __forceinline__ void store_item(const float (&sum)[NT / 2], const Matrix (&all)[3], const Item& item,
                                           int warp, int panel_bytes, int n_rows, const EpilogueParams& epi,
                                           InvScale&& inv_scale_of) {
    const Matrix m = matrix_at(all, item.which);
    const int panel = item.w_block * 8 + warp, first_row = item.x_block * NT;
    if (panel >= m.n_panels) return;
    const OutputRows o = output_rows_of(all, m, panel, panel_bytes, epi);
    auto none = [](float a, float) { return a; };
    if (epi.epilogue == RESIDUAL)
        store_rows<NT, CHUNK, RESIDUAL>(sum, m, first_row, o, n_rows, epi, inv_scale_of, none);
    else if (epi.epilogue != GLU)
        store_rows<NT, CHUNK, PLAIN>(sum, m, first_row, o, n_rows, epi, inv_scale_of, none);
    else if (is_silu_glu(epi.gate, epi.limit))
        store_rows<NT, CHUNK, GLU>(sum, m, first_row, o, n_rows, epi, inv_scale_of, silu_glu);
    else
        store_rows<NT, CHUNK, GLU>(sum, m, first_row, o, n_rows, epi, inv_scale_of,
                                   [&](float a, float b) { return glu_outlined(epi.gate, a, b, epi.limit); });
}
// Stores the accumulators of one slice, for linear_reduce.
template <int NT>
__device__ __forceinline__ void store_part(const float (&sum)[NT / 2], float* parts, const Items& items,
                                           const Item& item, int slice, int warp) {
    const int g = threadIdx.x >> 2 & 7, t = threadIdx.x & 3, n_packed = items.n_w_blocks * 128;
    float* part = parts + u64(slice * items.n_x_blocks + item.x_block) * NT * n_packed + item.packed + warp * 16 + g;
#pragma unroll
    for (int i = 0; i < NT / 2; i++)
        __stcg(part + u64((i >> 2) * 8 + 2 * t + (i & 1)) * n_packed + (i >> 1 & 1) * 8, sum[i]);
}
