// Products of one row: how fast a single answer comes.
//
// For what a model has most: a row of aligned fours that the registers of a block hold. A model has
// hundreds of such kernels, one after another, so what stands before the first tile counts as much as the tiles:
// nothing of the batch is read, since there is one row; the arguments that the first fetches need come first; and the
// code is short, because each kernel finds the instruction cache full of another's.
#include "primitives/ring.cuh"

namespace {

// Strips whose sums wait in shared memory, in each of two halves.
constexpr int HELD_STRIPS = 8;

struct One {
    int n_columns, n_stages, n_early;  // n_early: stages that are fetched before the row is there
    const float *x, *norm;
    float eps;
};

// How many of the 16 bytes that a lane loads for two mma of a tile stay in registers if all tiles of a warp have the
// same columns.
constexpr int KEPT = 4;

// Sums of all slices of an element.
__device__ __forceinline__ float sum_of(const float* from) {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < N_SLICES; s++) sum += from[s * 16];
    return sum;
}

// The tiles of a slice times the row, of which `columns` are this lane's.
template <bool IS_SINGLE, class Tiles, class Opener>
__device__ __forceinline__ void multiply_slice(Tiles& stream, Opener opener, float (&acc)[4], Cursor& c,
                                               const u8* columns, const Words4 (&kept)[KEPT]) {
#pragma unroll 1
    for (; c.tile < c.end; c.tile++, columns += 512)
        stream.multiply(opener, acc, [&](int k32) {
            return IS_SINGLE && k32 < KEPT ? kept[k32 % KEPT] : *reinterpret_cast<const Words4*>(columns + k32 * 64);
        });
}

// The third matrix may be of another kind, U. A thread holds HELD times 4 columns. IS_SINGLE: slices are a tile each.
template <class T, class U, int HELD, bool IS_SINGLE>
__device__ __forceinline__ void linear_one(const Matrix (&all)[3], const One& one, const Finish& finish) {
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x & 31, warp = __shfl_sync(ALL_LANES, int(threadIdx.x) >> 5, 0);
    const int g = lane >> 2, t = lane & 3, n_tiles = (one.n_columns + 255) / 256;

    // Shared: reductions and barriers in 1 KB each, halves [n_tiles * 8][64 bytes], sums, rings.
    float* reduced = reinterpret_cast<float*>(shared);
    u8* halves = shared + 2048;
    float* sums = reinterpret_cast<float*>(halves + n_tiles * 512);
    Stream<T, U, 1, IS_SINGLE> stream(all, n_tiles, warp, lane);
    stream.start(shared, reinterpret_cast<u8*>(sums + 2 * HELD_STRIPS * N_SLICES * 16), one.n_stages);
#pragma unroll 1
    for (int i = 0; i < one.n_early; i++) stream.fetch(i);
    launch_dependents();

    RowHalver<HELD, true, (HELD <= 2)> halver(one.norm, one.n_columns, n_tiles * 256);
    wait_for_previous_kernel();
    const float back = halver.halve(
        one.x, one.eps, reduced,
        [&](int k, u32 low, u32 high) { *reinterpret_cast<Words2*>(halves + half_at(k, 0, 1)) = {low, high}; },
        [&] {
    // Behind the row, which would wait for them.
#pragma unroll 1
            for (int i = one.n_early; i < one.n_stages; i++) stream.fetch(i);
        });
    __syncthreads();

    const bool is_glu = finish.epilogue == GLU;
    const int n_each = is_glu ? 8 : 16, n_grid = int(gridDim.x);
    const u8* mine = halves + t * 16;
    Words4 kept[KEPT];
    if (IS_SINGLE) {
#pragma unroll
        for (int k32 = 0; k32 < KEPT; k32++) kept[k32] = *reinterpret_cast<const Words4*>(mine + warp * 512 + k32 * 64);
    }
#pragma unroll 1
    for (int first = 0, half = 0; int(blockIdx.x) + first * n_grid < stream.n_strips; first += HELD_STRIPS, half ^= 1) {
        float* held = sums + half * HELD_STRIPS * N_SLICES * 16;

        // The element that this thread finishes after the round; what it needs comes while tiles do.
        const int round = int(threadIdx.x) >> (is_glu ? 3 : 4), e = int(threadIdx.x) & (n_each - 1);
        const int number = int(blockIdx.x) + (first + round) * n_grid;
        int which;
        const int strip = stream.strip_of(number, which);
        const Element element(all, which, strip, e, 0, n_tiles, stream.bytes_of(which),
                              round < HELD_STRIPS && number < stream.n_strips, finish);

#pragma unroll 1
        for (int i = 0; i < HELD_STRIPS && int(blockIdx.x) + (first + i) * n_grid < stream.n_strips; i++) {
            Cursor c;
            if (IS_SINGLE)
                c.strip = c.strip_at(first + i), c.tile = c.slice = warp, c.end = warp + 1;
            else
                c.seek(first + i, warp, n_tiles);
            float acc[4] = {0, 0, 0, 0};
            auto products = [&](auto opener) {
                multiply_slice<IS_SINGLE>(stream, opener, acc, c, mine + c.tile * 512, kept);
            };
            if (stream.IS_MIXED && c.strip >= stream.n_two)
                products(Tile<U>());
            else
                products(Tile<T>());
            float* sum = held + (i * N_SLICES + c.slice) * 16 + g;
            if (t == 0) sum[0] = acc[0], sum[8] = acc[2];
        }
        __syncthreads();  // double-buffered sums: no second barrier needed
        if (!element.is_mine) continue;
        element.store([&](int e) { return sum_of(held + round * N_SLICES * 16 + e); }, e, back, finish);
    }
}

}  // namespace

// The only row of x to up to three values; `_single` for 16 tiles of columns, `_long` for more than 4096 columns, up to
// 14336. grid: blocks that share the strips.
#define LINEAR_ONE_OF_HELD(name, Type, Other, HELD, IS_SINGLE)                                                    \
    KERNEL_THREADS(512, name)                                                                                     \
    (const Batch*, const u8* tiles0, int n_strips0, int n_columns, const u8* tiles1, int n_strips1, int n_stages, \
     const u8* tiles2, int n_strips2, int n_early, const float* x, const float* norm, float eps, int n_rows0,     \
     int n_rows1, int n_rows2, const float* bias0, const float* bias1, const float* bias2, float* y0, float* y1,  \
     float* y2, FINISH) {                                                                                         \
        const Matrix all[3] = {MATRIX_OF(0), MATRIX_OF(1), MATRIX_OF(2)};                                         \
        const Finish finish = FINISH_OF;                                                                          \
        linear_one<Type, Other, HELD, IS_SINGLE>(all, {n_columns, n_stages, n_early, x, norm, eps}, finish);      \
    }
#define LINEAR_ONE_MIXED(name, Type, Other)                               \
    LINEAR_ONE_OF_HELD(linear_one__##name, Type, Other, 2, false)         \
    LINEAR_ONE_OF_HELD(linear_one__##name##_single, Type, Other, 2, true) \
    LINEAR_ONE_OF_HELD(linear_one__##name##_long, Type, Other, 7, false)
#define LINEAR_ONE(name, Type) LINEAR_ONE_MIXED(name, Type, Type)
#define LINEAR_ONE_OF(name, Type) LINEAR_ONE(name, Type)
// Files of mixed types have q and k of one kind and v of the other.
#define ONE_IS_MIXED_q4_k 1
#define ONE_IS_MIXED_q5_k 1
#ifdef WOOLLY_TYPE
LINEAR_ONE_OF(WOOLLY_NAME, WOOLLY_TYPE)
#define ONE_WITH_Q6_K(name, Type) LINEAR_ONE_MIXED(name##_q6_k, Type, Q6_K)
#define ONE_NAMED_WITH_Q6_K(name, Type) ONE_WITH_Q6_K(name, Type)
#if CONCAT(ONE_IS_MIXED_, WOOLLY_NAME)
ONE_NAMED_WITH_Q6_K(WOOLLY_NAME, WOOLLY_TYPE)
#endif
#else
TILE_TYPES(LINEAR_ONE)
LINEAR_ONE_MIXED(q4_k_q6_k, Q4_K, Q6_K)
LINEAR_ONE_MIXED(q5_k_q6_k, Q5_K, Q6_K)
#endif
