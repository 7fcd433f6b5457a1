// Expert products of large batches, for GPUs without wgmma. Arithmetic of linears.cuh (16 slices in order), so a row
// gives the same bits in every batch.
//
// The output is [entries][16 n_panels] packed rows, before the expert's scale and bias.
#include "experts/moe.cuh"

#ifndef __CUDA_ARCH_FEAT_SM90_ALL

namespace {

// A block computes an item, up to 64 rows of one expert; a warp per panel.
constexpr int WARPS = 4, ITEM_ROWS = 64;

template <class T>
__device__ __forceinline__ void moe_mma(const int* members, const ExpertRows* items, const u8* x_f16,
                                        const float* inv_scales, int per, const ExpertWeights& expert_weights,
                                        float* y) {
    typedef Tile<T> Unpacker;
    constexpr int N = ITEM_ROWS / 8;
    const int lane = threadIdx.x & 31, panel = int(blockIdx.y) * WARPS + int(threadIdx.x >> 5);
    const int g = lane >> 2, t = lane & 3, n_tiles = expert_weights.n_tiles;
    wait_for_previous_kernel();
    launch_dependents();
    if (int(blockIdx.x) >= items[0].expert || panel >= expert_weights.n_panels) return;
    const ExpertRows item = items[1 + blockIdx.x];
    const u8* tiles = expert_weights.of(item.expert);
    u32 offsets[N];  // of rows, in units of 16 bytes
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
            const u8* tile = tiles + (u64(panel) * n_tiles + k) * Unpacker::bytes;
            const typename Unpacker::Scales scales = Unpacker::scales(tile, lane);
#pragma unroll
            for (int k32 = 0; k32 < 8; k32++) {
                u32 a[4], c[4];
                Unpacker::unpack(tile, scales, lane, 2 * k32, a);
                Unpacker::unpack(tile, scales, lane, 2 * k32 + 1, c);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    if (8 * i >= item.n_rows) break;
                    const Words4 two = reinterpret_cast<const Words4*>(x_f16)[u64(offsets[i]) + k * 32 + k32 * 4];
                    mma(acc[i], a, two.x, two.y);
                    mma(acc[i], c, two.z, two.w);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            for (int e = 0; e < 4; e++) sum[i][e] += acc[i][e];
    }
    const float* factors =
        reinterpret_cast<const float*>(tiles + u64(expert_weights.n_panels) * n_tiles * Unpacker::bytes);
    const float low = factors[panel * 16 + g], high = factors[panel * 16 + g + 8];
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int which = 8 * i + 2 * t + e;
            if (which >= item.n_rows) continue;
            const int entry = members[item.first + which];
            const float inv_scale = inv_scales[entry / per];
            float* to = y + u64(entry) * expert_weights.n_panels * 16 + panel * 16 + g;
            to[0] = sum[i][e] * low * inv_scale;
            to[8] = sum[i][e + 2] * high * inv_scale;
        }
}

}  // namespace

// The input row of an entry is entry / per. grid: (items, panels / 4).
#define MOE_MMA(name, Type)                                                                                        \
    KERNEL(moe_mma__##name)                                                                                        \
    (const Batch*, const int* members, const ExpertRows* items, const u8* x_f16, const float* inv_scales, int per, \
     EXPERT_WEIGHTS, float* y) {                                                                                   \
        moe_mma<Type>(members, items, x_f16, inv_scales, per, EXPERT_WEIGHTS_ARGS, y);                             \
    }
#define MOE_MMA_OF(name, Type) MOE_MMA(name, Type)
#ifdef WOOLLY_TYPE
MOE_MMA_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(MOE_MMA)
#endif

#endif
