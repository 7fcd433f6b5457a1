// Per-head products: each head has its own matrix. They process 1 to 8 rows at a time, which every block converts to
// f16 itself.
#include "linears/tile_stream.cuh"

namespace {

// Panels times rows per round; their sums are double-buffered in shared memory.
constexpr int SUMS_PER_ROUND = 16;

template <class T>
__device__ __forceinline__ void linear_heads(const Batch* batch, int kind, const float* x, int n_columns,
                                             const Matrix& matrix, int head_bytes, int n_group, int n_stages) {
    DYNAMIC_SHARED(shared);
    const int first_row = int(blockIdx.z) * n_group, n_rows = min(n_group, batch->rows(kind) - first_row);
    if (n_rows <= 0) {
        wait_for_previous_kernel();  // the next kernel relies on the previous one as well
        return;
    }
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.y, n_heads = gridDim.y;
    const int n_tiles = (n_columns + 255) / 256, g = lane >> 2, t = lane & 3, n_grid = int(gridDim.x);
    const u8* tiles = matrix.tiles + u64(head) * head_bytes;
    const Matrix all[3] = {{tiles, nullptr, matrix.y, matrix.n_rows, matrix.n_panels}, {}, {}};

    // Shared memory: reductions and mbarriers (1 KB each), x as f16 [n_tiles * 8][n_group][64 bytes], sums, rings.
    float* reduced = reinterpret_cast<float*>(shared);
    u8* x_f16 = shared + 2048;
    float* sums = reinterpret_cast<float*>(x_f16 + n_tiles * 512 * n_group);
    Stream<T, T> stream(all, n_tiles, warp, lane);
    stream.start(shared, reinterpret_cast<u8*>(sums + 2 * SUMS_PER_ROUND * N_SLICES * 16), n_stages);
    for (int i = 0; i < n_stages; i++) stream.fetch(i);
    launch_dependents();

    float* inv_scales = reduced + 64;  // [n_group]
    RowToF16<2> to_f16(nullptr, n_columns, n_tiles * 256);
    wait_for_previous_kernel();
    for (int r = 0; r < n_rows; r++) {
        const float* row = x + (u64(first_row + r) * n_heads + head) * n_columns;
        const float inv_scale = to_f16.convert(row, 0, reduced + r % 2 * 32, [&](int k, u32 low, u32 high) {
            *reinterpret_cast<Words2*>(x_f16 + f16_row_offset(k, r, n_group)) = {low, high};
        });
        if (threadIdx.x == 0) inv_scales[r] = inv_scale;
    }
    __syncthreads();

    const int per_round = SUMS_PER_ROUND / n_group;
    const u8* mine = x_f16 + min(g, n_rows - 1) * 64 + t * 16;
    for (int first = 0, buffer = 0; int(blockIdx.x) + first * n_grid < matrix.n_panels;
         first += per_round, buffer ^= 1) {
        float* sums_of_round = sums + buffer * SUMS_PER_ROUND * N_SLICES * 16;
        for (int i = 0; i < per_round && int(blockIdx.x) + (first + i) * n_grid < matrix.n_panels; i++) {
            SliceCursor c;
            c.seek(first + i, warp, n_tiles);
            float acc[4] = {0, 0, 0, 0};
            for (; c.tile < c.end; c.tile++)
                stream.multiply(Tile<T>(), acc, [&](int k32) {
                    return *reinterpret_cast<const Words4*>(mine + (c.tile * 8 + k32) * 64 * n_group);
                });
            float* sum = sums_of_round + (i * N_SLICES + c.slice) * 16 * n_group + 2 * t * 16 + g;
            if (2 * t < n_rows) sum[0] = acc[0], sum[8] = acc[2];
            if (2 * t + 1 < n_rows) sum[16] = acc[1], sum[24] = acc[3];
        }
        __syncthreads();  // double-buffered sums: no second barrier needed
        const int e = threadIdx.x & 15, row = int(threadIdx.x) / 16 % n_rows, i = int(threadIdx.x) / (16 * n_rows);
        const int panel = int(blockIdx.x) + (first + i) * n_grid, out = panel * 16 + e;
        if (i >= per_round || panel >= matrix.n_panels || out >= matrix.n_rows) continue;
        const float* from = sums_of_round + i * N_SLICES * 16 * n_group + row * 16 + e;
        float sum = 0;
#pragma unroll
        for (int s = 0; s < N_SLICES; s++) sum += from[s * 16 * n_group];
        const float* factors = reinterpret_cast<const float*>(tiles + u64(matrix.n_panels) * n_tiles * Tile<T>::bytes);
        matrix.y[(u64(first_row + row) * n_heads + head) * matrix.n_rows + out] =
            scale_and_bias(sum, factors[out], inv_scales[row], false, 0, 1);
    }
}

}  // namespace

// [rows][heads][columns] to [rows][heads][n_rows]. grid: (blocks that share the panels, heads, groups of rows).
#define LINEAR_HEADS(name, Type)                                                                                       \
    KERNEL_THREADS(512, linear_heads__##name)                                                                          \
    (const Batch* batch, int kind, const float* x, int n_columns, const u8* tiles, float* y, int n_rows, int n_panels, \
     int head_bytes, int n_group, int n_stages) {                                                                      \
        linear_heads<Type>(batch, kind, x, n_columns, {tiles, nullptr, y, n_rows, n_panels}, head_bytes, n_group,      \
                           n_stages);                                                                                  \
    }
#define LINEAR_HEADS_OF(name, Type) LINEAR_HEADS(name, Type)
#ifdef WOOLLY_TYPE
LINEAR_HEADS_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(LINEAR_HEADS)
#endif
