// Products of experts. The arithmetic is that of linears.cuh: 16 slices of the columns, a chain of m16n8k16 in each,
// and the slices in order. So a row's result is the same, alone or with others.
//
// What a product gives is not yet times the expert's scale and without bias: [entries][16 n_strips] packed rows.
#include "linears.cuh"
#include "moe.cuh"

namespace {

// Matrices of experts, `step` times 16 bytes apart.
struct Stack {
    const u8* tiles;
    int step, n_strips, n_tiles;
    __device__ __forceinline__ const u8* of(int expert) const { return tiles + u64(expert) * u32(step) * 16; }
};

// Few rows: an entry each, of which the weights are read. Warps of a block share the slices of some strips.
constexpr int FEW_WARPS = 8, FEW_STRIPS = 2;

template <class T>
__device__ __forceinline__ void moe_few(const Batch* batch, int kind, int n_used, const int* experts, const u8* halves,
                                        const float* backs, int per, const Stack& stack, float* y, int is_known) {
    typedef Tile<T> Opener;
    __shared__ float sums[FEW_STRIPS][N_SLICES][16];
    const int entry = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int n_tiles = stack.n_tiles, n_slices = min(n_tiles, N_SLICES), row = entry / per;
    const int first = int(blockIdx.y) * FEW_STRIPS, n_strips = min(FEW_STRIPS, stack.n_strips - first);
    const bool is_one = entry < batch->rows(kind) * n_used;
#if WOOLLY_BULK
    // The experts were chosen before the kernel that this one waits for: their tiles come meanwhile.
    if (is_known && is_one && threadIdx.x == 0)
        bulk_prefetch(stack.of(experts[entry]) + u64(first) * n_tiles * Opener::bytes,
                      n_strips * n_tiles * Opener::bytes);
#endif
    wait_for_kernel_before();
    let_next_kernel_begin();
    if (!is_one) return;
    const u8* tiles = stack.of(experts[entry]);
    const u8* b = halves + u64(row) * n_tiles * 512 + t * 16;
    for (int unit = warp; unit < n_strips * n_slices; unit += FEW_WARPS) {
        const int strip = unit / n_slices, slice = unit % n_slices;
        float acc[4] = {0, 0, 0, 0};
        for (int i = slice_start(slice, n_tiles); i < slice_start(slice + 1, n_tiles); i++) {
            const u8* tile = tiles + (u64(first + strip) * n_tiles + i) * Opener::bytes;
            const typename Opener::Scales scales = Opener::scales(tile, lane);
            Words4 two = {0, 0, 0, 0};  // all columns of the operand have the same row: one is stored
#pragma unroll
            for (int k16 = 0; k16 < 16; k16++) {
                u32 a[4];
                Opener::open(tile, scales, lane, k16, a);
                if ((k16 & 1) == 0) two = *reinterpret_cast<const Words4*>(b + i * 512 + (k16 >> 1) * 64);
                mma(acc, a, k16 & 1 ? two.z : two.x, k16 & 1 ? two.w : two.y);
            }
        }
        if (t == 0) sums[strip][slice][g] = acc[0], sums[strip][slice][g + 8] = acc[2];
    }
    __syncthreads();
    const float* factors = reinterpret_cast<const float*>(tiles + u64(stack.n_strips) * n_tiles * Opener::bytes);
    for (int i = threadIdx.x; i < n_strips * 16; i += FEW_WARPS * 32) {
        float sum = 0;
        for (int slice = 0; slice < n_slices; slice++) sum += sums[i >> 4][slice][i & 15];
        y[u64(entry) * stack.n_strips * 16 + first * 16 + i] = sum * factors[first * 16 + i] * backs[row];
    }
}

// Many rows: an item each, 64 rows of one expert; a warp for each strip.
constexpr int MANY_WARPS = 4;

template <class T>
__device__ __forceinline__ void moe_many(const int* members, const Bundle* items, const u8* halves, const float* backs,
                                         int per, const Stack& stack, float* y) {
    typedef Tile<T> Opener;
    constexpr int N = BUNDLE_ROWS / 8;
    const int lane = threadIdx.x & 31, strip = int(blockIdx.y) * MANY_WARPS + int(threadIdx.x >> 5);
    const int g = lane >> 2, t = lane & 3, n_tiles = stack.n_tiles;
    wait_for_kernel_before();
    let_next_kernel_begin();
    if (int(blockIdx.x) >= items[0].expert || strip >= stack.n_strips) return;
    const Bundle item = items[1 + blockIdx.x];
    const u8* tiles = stack.of(item.expert);
    u32 offsets[N];  // of rows, in pieces of 16 bytes
    float sum[N][4], acc[N][4];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int member = members[item.first + min(8 * i + g, item.n_rows - 1)];
        offsets[i] = u32(member / per) * u32(n_tiles) * 32 + t;
        for (int e = 0; e < 4; e++) sum[i][e] = 0;
    }
    for (int slice = 0; slice < min(n_tiles, N_SLICES); slice++) {
#pragma unroll
        for (int i = 0; i < N; i++)
            for (int e = 0; e < 4; e++) acc[i][e] = 0;
        for (int k = slice_start(slice, n_tiles); k < slice_start(slice + 1, n_tiles); k++) {
            const u8* tile = tiles + (u64(strip) * n_tiles + k) * Opener::bytes;
            const typename Opener::Scales scales = Opener::scales(tile, lane);
#pragma unroll
            for (int k32 = 0; k32 < 8; k32++) {
                u32 a[4], c[4];
                Opener::open(tile, scales, lane, 2 * k32, a);
                Opener::open(tile, scales, lane, 2 * k32 + 1, c);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    if (8 * i >= item.n_rows) break;
                    const Words4 two = reinterpret_cast<const Words4*>(halves)[u64(offsets[i]) + k * 32 + k32 * 4];
                    mma(acc[i], a, two.x, two.y);
                    mma(acc[i], c, two.z, two.w);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            for (int e = 0; e < 4; e++) sum[i][e] += acc[i][e];
    }
    const float* factors = reinterpret_cast<const float*>(tiles + u64(stack.n_strips) * n_tiles * Opener::bytes);
    const float low = factors[strip * 16 + g], high = factors[strip * 16 + g + 8];
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int which = 8 * i + 2 * t + e;
            if (which >= item.n_rows) continue;
            const int entry = members[item.first + which];
            const float back = backs[entry / per];
            float* to = y + u64(entry) * stack.n_strips * 16 + strip * 16 + g;
            to[0] = sum[i][e] * low * back;
            to[8] = sum[i][e + 2] * high * back;
        }
}

}  // namespace

// Rows of an entry are entry / per. moe_few: grid of entries, strips by 2; moe_many: of items, strips by 4.
#define MOE(name, Type)                                                                                           \
    KERNEL(moe_few__##name)                                                                                       \
    (const Batch* batch, int kind, int n_used, const int* experts, const u8* halves, const float* backs, int per, \
     const u8* tiles, int step, int n_strips, int n_tiles, float* y, int is_known) {                              \
        moe_few<Type>(batch, kind, n_used, experts, halves, backs, per, {tiles, step, n_strips, n_tiles}, y,      \
                      is_known);                                                                                  \
    }                                                                                                             \
    KERNEL(moe_many__##name)                                                                                      \
    (const Batch*, const int* members, const Bundle* items, const u8* halves, const float* backs, int per,        \
     const u8* tiles, int step, int n_strips, int n_tiles, float* y) {                                            \
        moe_many<Type>(members, items, halves, backs, per, {tiles, step, n_strips, n_tiles}, y);                  \
    }
#define MOE_OF(name, Type) MOE(name, Type)
#ifdef WOOLLY_TYPE
MOE_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(MOE)
#endif
