// Support kernels of the GEMM kernels (prepare, reduce, norm, GLU), and products with f32 matrices.
#include "linears/linears.cuh"

// Prepares rows for the GEMM kernels: norm, f16 in the order of prepared_at, and the inverse scale of each row. One
// block per row. Rows of up to MAX_STAGED columns are reordered in shared memory, since a thread's columns end up in
// 4-byte pieces.
template <int FOURS_PER_THREAD, int PER_THREAD>
__device__ __forceinline__ void prepare(const Batch* batch, int kind, const float* x, int x_width, const float* norm,
                                        float eps, int n_columns, int n_stride, u16* prepared, float* inv_scales) {
    constexpr int MAX_STAGED = FOURS_PER_THREAD * ROW_THREADS * 4;
    __shared__ __align__(16) float reduced[2 * ROW_THREADS / 32];
    __shared__ __align__(16) u16 row_f16[MAX_STAGED];
    const int row = blockIdx.x, n_padded = (n_columns + 255) / 256 * 256;
    launch_dependents();
    RowToF16<FOURS_PER_THREAD, false, false, PER_THREAD> to_f16(norm, n_columns, n_padded);
    const int n_rows = batch->rows(kind);
    wait_for_previous_kernel();
    if (row >= n_rows) return;
    const bool is_staged = n_padded <= MAX_STAGED;
    const float inv_scale = to_f16.convert(x + u64(row) * x_width, eps, reduced, [&](int k, u32 low, u32 high) {
        const int at = place_of(k);
        if (is_staged) {
            *reinterpret_cast<u32*>(row_f16 + at) = low, *reinterpret_cast<u32*>(row_f16 + at + 8) = high;
            return;
        }
        *reinterpret_cast<u32*>(prepared + prepared_at(row, at, n_stride)) = low;
        *reinterpret_cast<u32*>(prepared + prepared_at(row, at + 8, n_stride)) = high;
    });
    if (threadIdx.x == 0) inv_scales[row] = inv_scale;
    if (!is_staged) return;
    __syncthreads();
    for (int at = 8 * int(threadIdx.x); at < n_padded; at += 8 * int(blockDim.x))
        *reinterpret_cast<Words4*>(prepared + prepared_at(row, at, n_stride)) =
            *reinterpret_cast<const Words4*>(row_f16 + at);
}
KERNEL_BOUNDS(128, 6, linear_prepare)
(const Batch* batch, int kind, const float* x, int x_width, const float* norm, float eps, int n_columns, int n_stride,
 u16* prepared, float* inv_scales) {
    prepare<2, 4>(batch, kind, x, x_width, norm, eps, n_columns, n_stride, prepared, inv_scales);
}
// Same, for rows of more than 4,096 columns.
KERNEL_BOUNDS(256, 2, linear_prepare_long)
(const Batch* batch, int kind, const float* x, int x_width, const float* norm, float eps, int n_columns, int n_stride,
 u16* prepared, float* inv_scales) {
    prepare<7, 2>(batch, kind, x, x_width, norm, eps, n_columns, n_stride, prepared, inv_scales);
}

// Reduces the slices in `parts`: [slice][n_stride rows][n_packed], where n_packed counts panels in groups of 128 rows,
// matrix after matrix. grid: (columns / 128, rows).
KERNEL_THREADS(128, linear_reduce)
(const Batch* batch, int kind, const float* parts, const float* inv_scales, int n_width, int panel_bytes, MATRIX(0),
 MATRIX(1), MATRIX(2), EPILOGUE_PARAMS) {
    const int n_rows = batch->rows(kind), row = blockIdx.y, column = int(blockIdx.x) * 128 + int(threadIdx.x);
    launch_dependents();
    wait_for_previous_kernel();
    if (row >= n_rows) return;
    const Matrix all[3] = {MATRIX_OF(0), MATRIX_OF(1), MATRIX_OF(2)};
    const Items items(all, n_rows, n_width, 1);
    const Item item(items, int(blockIdx.x) * items.n_x_blocks);
    const Matrix m = matrix_at(all, item.which);
    const int n_packed = items.n_w_blocks * 128;
    const int panel = item.w_block * 8 + (column >> 4 & 7), e = column & 15;
    const int out = epilogue == GLU ? panel * 8 + e : panel * 16 + e;
    if (panel >= m.n_panels || out >= m.n_rows || (epilogue == GLU && e >= 8)) return;
    const u64 n_all = u64(items.n_x_blocks) * n_width * n_packed;
    auto summed = [&](const float* part) {
        float v[N_SLICES], sum = 0;
#pragma unroll
        for (int i = 0; i < N_SLICES; i++) v[i] = __ldcg(part + i * n_all);
#pragma unroll
        for (int i = 0; i < N_SLICES; i++) sum += v[i];
        return sum;
    };
    const float* part = parts + u64(row) * n_packed + column;
    const float* factors = reinterpret_cast<const float*>(m.tiles + u64(m.n_panels) * panel_bytes) + panel * 16 + e;
    const float inv_scale = __ldcg(inv_scales + row);
    const float* second = all[1].bias;
    float y = scale_and_bias(summed(part), factors[0], inv_scale, m.bias != nullptr,
                             m.bias == nullptr ? 0.f : m.bias[out], scale);
    if (epilogue == GLU)
        y = apply_glu(gate, limit, y,
                      scale_and_bias(summed(part + 8), factors[8], inv_scale, second != nullptr,
                                     second == nullptr ? 0.f : second[out], scale));
    const u64 to = u64(row) * m.n_rows + out;
    m.y[to] = epilogue == RESIDUAL ? __fadd_rn(__ldcg(residual + to), y) : y;
}

// RMSNorm to f32, one block per row.
KERNEL_THREADS(512, linear_norm)
(const Batch* batch, int kind, const float* x, const float* norm, float eps, int n_columns, float* y) {
    __shared__ __align__(16) float reduced[2 * ROW_THREADS / 32];
    const int row = blockIdx.x;
    launch_dependents();
    wait_for_previous_kernel();
    if (row >= batch->rows(kind)) return;
    const float* from = x + u64(row) * n_columns;
    float sum[1] = {0}, largest = 0;
    for (int k = threadIdx.x; k < n_columns; k += ROW_THREADS)
        sum[0] = __fmaf_rn(__ldcg(from + k), __ldcg(from + k), sum[0]);
    const float all = reduce_row(sum, largest, reduced);
    const float scale = scale_of_norm(all, float(n_columns), eps);
    for (int k = threadIdx.x; k < n_columns; k += ROW_THREADS)
        y[u64(row) * n_columns + k] = __fmul_rn(__fmul_rn(__ldcg(from + k), scale), norm[k]);
}

// f32 matrix: a warp multiplies one weight row with up to 8 activation rows; lane l accumulates columns l, l + 32, ...
// grid: (weight rows / 8, rows / 8, heads).
KERNEL_THREADS(256, linear_f32)
(const Batch* batch, int kind, const float* x, int x_stride, int n_columns, const float* w, const float* bias, float* y,
 int y_stride, int n_out, EPILOGUE_PARAMS) {
    const int lane = threadIdx.x & 31, out = int(blockIdx.x) * 8 + int(threadIdx.x >> 5), head = blockIdx.z;
    const int first = int(blockIdx.y) * 8, n_rows = min(8, batch->rows(kind) - first);
    launch_dependents();
    wait_for_previous_kernel();
    if (out >= n_out || n_rows <= 0) return;
    w += (u64(head) * n_out + out) * n_columns;
    x += u64(first) * x_stride + u64(head) * n_columns;
    float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int k = lane; k < n_columns; k += 32) {
        const float weight = w[k];
#pragma unroll
        for (int r = 0; r < 8; r++)
            if (r < n_rows) sums[r] = __fmaf_rn(weight, __ldcg(x + u64(r) * x_stride + k), sums[r]);
    }
#pragma unroll
    for (int r = 0; r < 8; r++) {
        if (r >= n_rows) break;
        float sum = sums[r];
#pragma unroll
        for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, o);
        if (lane != 0) continue;
        sum = scale_and_bias(sum, 1.f, 1.f, bias != nullptr, bias == nullptr ? 0.f : bias[out], scale);
        const u64 to = u64(first + r) * y_stride + u64(head) * n_out + out;
        y[to] = epilogue == RESIDUAL ? __fadd_rn(__ldcg(residual + to), sum) : sum;
    }
}

// GLU of two values: act(a) * b. grid: (columns / 256, rows).
KERNEL(linear_glu)
(const Batch* batch, int kind, const float* a, const float* b, float* y, int n_columns, int gate, float limit) {
    const int column = int(blockIdx.x) * 256 + int(threadIdx.x), row = blockIdx.y;
    launch_dependents();
    wait_for_previous_kernel();
    if (row >= batch->rows(kind) || column >= n_columns) return;
    const u64 at = u64(row) * n_columns + column;
    y[at] = apply_glu(gate, limit, __ldcg(a + at), __ldcg(b + at));
}
