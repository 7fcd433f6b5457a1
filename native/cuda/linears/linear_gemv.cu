// GEMV: products of one row, which bound the speed of a single answer.
//
// Rows have up to 14,336 columns, a multiple of 4, and stay in the registers of a block. A model launches hundreds of
// these kernels in a row, so latency before the first tile counts as much as the tiles. Therefore the batch is not
// read, arguments of the first fetches come first, and the code is short because each kernel starts with a cold
// instruction cache.
#include "linears/tile_stream.cuh"

namespace {

// Panels per round; their sums are double-buffered in shared memory.
constexpr int PANELS_PER_ROUND = 8;

struct GemvParams {
    int n_columns, n_stages, n_early;  // n_early: stages fetched before the row is ready
    const float *x, *norm;
    float eps;
};

// 16-byte B fragments (of 8 per tile) kept in registers when all tiles of a warp have the same columns.
constexpr int X_WORDS_IN_REGISTERS = 4;

// Sum of an element over all slices.
__device__ __forceinline__ float sum_of(const float* from) {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < N_SLICES; s++) sum += from[s * 16];
    return sum;
}

// Multiplies the tiles of a slice; `columns` are this lane's B fragments.
template <bool IS_SINGLE, class Tiles, class Unpacker>
__device__ __forceinline__ void multiply_slice(Tiles& stream, Unpacker unpacker, float (&acc)[4], SliceCursor& c,
                                               const u8* columns, const Words4 (&x_registers)[X_WORDS_IN_REGISTERS]) {
#pragma unroll 1
    for (; c.tile < c.end; c.tile++, columns += 512)
        stream.multiply(unpacker, acc, [&](int k32) {
            return IS_SINGLE && k32 < X_WORDS_IN_REGISTERS ? x_registers[k32 % X_WORDS_IN_REGISTERS]
                                                           : *reinterpret_cast<const Words4*>(columns + k32 * 64);
        });
}

// The third matrix may have tile type U. IS_SINGLE: one tile per slice.
template <class T, class U, int FOURS_PER_THREAD, bool IS_SINGLE>
__device__ __forceinline__ void linear_gemv(const Matrix (&all)[3], const GemvParams& gemv, const EpilogueParams& epi) {
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x & 31, warp = __shfl_sync(ALL_LANES, int(threadIdx.x) >> 5, 0);
    const int g = lane >> 2, t = lane & 3, n_tiles = (gemv.n_columns + 255) / 256;

    // Shared memory: reductions and mbarriers (1 KB each), x as f16 [n_tiles * 8][64 bytes], sums, rings.
    float* reduced = reinterpret_cast<float*>(shared);
    u8* x_f16 = shared + 2048;
    float* sums = reinterpret_cast<float*>(x_f16 + n_tiles * 512);
    Stream<T, U, 1, IS_SINGLE> stream(all, n_tiles, warp, lane);
    stream.start(shared, reinterpret_cast<u8*>(sums + 2 * PANELS_PER_ROUND * N_SLICES * 16), gemv.n_stages);
#pragma unroll 1
    for (int i = 0; i < gemv.n_early; i++) stream.fetch(i);
    launch_dependents();

    RowToF16<FOURS_PER_THREAD, true, (FOURS_PER_THREAD <= 2)> to_f16(gemv.norm, gemv.n_columns, n_tiles * 256);
    wait_for_previous_kernel();
    const float inv_scale = to_f16.convert(
        gemv.x, gemv.eps, reduced,
        [&](int k, u32 low, u32 high) { *reinterpret_cast<Words2*>(x_f16 + f16_row_offset(k, 0, 1)) = {low, high}; },
        [&] {
    // Fetched after the row: issued earlier, they would delay it.
#pragma unroll 1
            for (int i = gemv.n_early; i < gemv.n_stages; i++) stream.fetch(i);
        });
    __syncthreads();

    const bool is_glu = epi.epilogue == GLU;
    const int n_each = is_glu ? 8 : 16, n_grid = int(gridDim.x);
    const u8* mine = x_f16 + t * 16;
    Words4 x_registers[X_WORDS_IN_REGISTERS];
    if (IS_SINGLE) {
#pragma unroll
        for (int k32 = 0; k32 < X_WORDS_IN_REGISTERS; k32++)
            x_registers[k32] = *reinterpret_cast<const Words4*>(mine + warp * 512 + k32 * 64);
    }
#pragma unroll 1
    for (int first = 0, buffer = 0; int(blockIdx.x) + first * n_grid < stream.n_panels;
         first += PANELS_PER_ROUND, buffer ^= 1) {
        float* sums_of_round = sums + buffer * PANELS_PER_ROUND * N_SLICES * 16;

        // Element that this thread finishes after the round; its operands load while tiles stream.
        const int round = int(threadIdx.x) >> (is_glu ? 3 : 4), e = int(threadIdx.x) & (n_each - 1);
        const int number = int(blockIdx.x) + (first + round) * n_grid;
        int which;
        const int panel = stream.panel_of(number, which);
        const EpilogueElement element(all, which, panel, e, 0, n_tiles, stream.bytes_of(which),
                                      round < PANELS_PER_ROUND && number < stream.n_panels, epi);

#pragma unroll 1
        for (int i = 0; i < PANELS_PER_ROUND && int(blockIdx.x) + (first + i) * n_grid < stream.n_panels; i++) {
            SliceCursor c;
            if (IS_SINGLE)
                c.panel = c.panel_at(first + i), c.tile = c.slice = warp, c.end = warp + 1;
            else
                c.seek(first + i, warp, n_tiles);
            float acc[4] = {0, 0, 0, 0};
            auto products = [&](auto unpacker) {
                multiply_slice<IS_SINGLE>(stream, unpacker, acc, c, mine + c.tile * 512, x_registers);
            };
            if (stream.IS_MIXED && c.panel >= stream.n_two)
                products(Tile<U>());
            else
                products(Tile<T>());
            float* sum = sums_of_round + (i * N_SLICES + c.slice) * 16 + g;
            if (t == 0) sum[0] = acc[0], sum[8] = acc[2];
        }
        __syncthreads();  // double-buffered sums: no second barrier needed
        if (!element.is_active) continue;
        element.store([&](int e) { return sum_of(sums_of_round + round * N_SLICES * 16 + e); }, e, inv_scale, epi);
    }
}

}  // namespace

// One row of x, up to three matrices. `_k4096`: 16 tiles of columns, `_long`: 4,097 to 14,336 columns. grid: blocks
// that share the panels.
#define LINEAR_GEMV_OF_HELD(name, Type, Other, FOURS_PER_THREAD, IS_SINGLE)                                            \
    KERNEL_THREADS(512, name)                                                                                          \
    (const Batch*, const u8* tiles0, int n_panels0, int n_columns, const u8* tiles1, int n_panels1, int n_stages,      \
     const u8* tiles2, int n_panels2, int n_early, const float* x, const float* norm, float eps, int n_rows0,          \
     int n_rows1, int n_rows2, const float* bias0, const float* bias1, const float* bias2, float* y0, float* y1,       \
     float* y2, EPILOGUE_PARAMS) {                                                                                     \
        const Matrix all[3] = {MATRIX_OF(0), MATRIX_OF(1), MATRIX_OF(2)};                                              \
        const EpilogueParams epi = EPILOGUE_ARGS;                                                                      \
        linear_gemv<Type, Other, FOURS_PER_THREAD, IS_SINGLE>(all, {n_columns, n_stages, n_early, x, norm, eps}, epi); \
    }
#define LINEAR_GEMV_MIXED(name, Type, Other)                               \
    LINEAR_GEMV_OF_HELD(linear_gemv__##name, Type, Other, 2, false)        \
    LINEAR_GEMV_OF_HELD(linear_gemv__##name##_k4096, Type, Other, 2, true) \
    LINEAR_GEMV_OF_HELD(linear_gemv__##name##_long, Type, Other, 7, false)
#define LINEAR_GEMV(name, Type) LINEAR_GEMV_MIXED(name, Type, Type)
#define LINEAR_GEMV_OF(name, Type) LINEAR_GEMV(name, Type)
// Mixed-type files have q and k of one type and v of the other.
#define GEMV_IS_MIXED_q4_k 1
#define GEMV_IS_MIXED_q5_k 1
#ifdef WOOLLY_TYPE
LINEAR_GEMV_OF(WOOLLY_NAME, WOOLLY_TYPE)
#define GEMV_WITH_Q6_K(name, Type) LINEAR_GEMV_MIXED(name##_q6_k, Type, Q6_K)
#define GEMV_NAMED_WITH_Q6_K(name, Type) GEMV_WITH_Q6_K(name, Type)
#if CONCAT(GEMV_IS_MIXED_, WOOLLY_NAME)
GEMV_NAMED_WITH_Q6_K(WOOLLY_NAME, WOOLLY_TYPE)
#endif
#else
TILE_TYPES(LINEAR_GEMV)
LINEAR_GEMV_MIXED(q4_k_q6_k, Q4_K, Q6_K)
LINEAR_GEMV_MIXED(q5_k_q6_k, Q5_K, Q6_K)
#endif
