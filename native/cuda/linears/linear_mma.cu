// GEMM with mma, for GPUs without wgmma: 128 weight rows by NT activation rows per block.
//
// Each of 8 warps unpacks the tiles of one panel; prepared rows and tiles of 256 columns arrive through a multi-stage
// cp.async pipeline. Work items, order of sums, epilogue and bits are those of linear_wgmma.cu.
#include "linears/linears.cuh"

#ifndef __CUDA_ARCH_FEAT_SM90_ALL

namespace {

template <class T, int NT>
__device__ __forceinline__ void linear_mma(const Batch* batch, int kind, const u16* x, const float* inv_scales,
                                           int x_stride, int n_columns, const Matrix (&all)[3],
                                           const EpilogueParams& epi, float* parts, int n_splits, int n_stages) {
    typedef Tile<T> Unpacker;
    constexpr int ROW_BYTES = NT * 512, STAGE_BYTES = ROW_BYTES + 8 * Unpacker::bytes;
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int n_rows = batch->rows(kind), n_tiles = (n_columns + 255) / 256, n_each = N_SLICES / n_splits;
    const Items items(all, n_rows, NT, n_splits);
    launch_dependents();
    wait_for_previous_kernel();
    for (int number = blockIdx.x; number < items.count(); number += gridDim.x) {
        const Item item(items, number);
        const Matrix m = matrix_at(all, item.which);
        const int first = slice_start(item.split * n_each, n_tiles);
        const int end = slice_start((item.split + 1) * n_each, n_tiles);
        // Past the last panel: reload it; its results are discarded.
        const u8* from = m.tiles + u64(min(item.w_block * 8 + warp, m.n_panels - 1)) * n_tiles * Unpacker::bytes;
        auto fetch = [&](int tile) {
            u8* stage = shared + (tile - first) % n_stages * STAGE_BYTES;
            if (tile < end) {
                for (int i = threadIdx.x * 16; i < ROW_BYTES; i += 256 * 16) {
                    const int block = i / (NT * 128), in = i % (NT * 128);
                    cp_async16(stage + i, x + (u64(tile * 4 + block) * x_stride + item.x_block * NT) * 64 + in / 2);
                }
                for (int i = lane * 16; i < Unpacker::bytes; i += 512)
                    cp_async16(stage + ROW_BYTES + warp * Unpacker::bytes + i, from + u64(tile) * Unpacker::bytes + i);
            }
            cp_async_commit();
        };
        for (int i = 0; i < n_stages; i++) fetch(first + i);
        float sum[NT / 2], acc[NT / 2];
#pragma unroll
        for (int i = 0; i < NT / 2; i++) sum[i] = 0;
        for (int slice = item.split * n_each; slice < (item.split + 1) * n_each; slice++) {
#pragma unroll
            for (int i = 0; i < NT / 2; i++) acc[i] = 0;
            for (int tile = slice_start(slice, n_tiles); tile < slice_start(slice + 1, n_tiles); tile++) {
                cp_async_wait_stage(n_stages);
                __syncthreads();
                const u8* rows = shared + (tile - first) % n_stages * STAGE_BYTES;
                const u8* packed = rows + ROW_BYTES + warp * Unpacker::bytes;
                const typename Unpacker::Scales scales = Unpacker::scales(packed, lane);
#pragma unroll
                for (int k16 = 0; k16 < 16; k16++) {
                    u32 a[4];
                    Unpacker::unpack(packed, scales, lane, k16, a);
                    // 16-byte chunks are XOR-swizzled by row % 8, which is g.
                    const u8* b = rows + ((k16 >> 2) * NT + g) * 128 + t * 4;
                    const int low = ((k16 & 3) * 2 ^ g) * 16, high = (((k16 & 3) * 2 + 1) ^ g) * 16;
#pragma unroll
                    for (int j = 0; j < NT / 8; j++)
                        mma(*reinterpret_cast<float (*)[4]>(acc + 4 * j), a,
                            *reinterpret_cast<const u32*>(b + j * 1024 + low),
                            *reinterpret_cast<const u32*>(b + j * 1024 + high));
                }
                __syncthreads();
                fetch(tile + n_stages);
            }
            if (n_splits == 1) {
#pragma unroll
                for (int i = 0; i < NT / 2; i++) sum[i] += acc[i];
            } else {
                store_part<NT>(acc, parts, items, item, slice, warp);
            }
        }
        if (n_splits > 1) continue;
        store_item<NT, NT / 4 < 8 ? NT / 4 : 8>(
            sum, all, item, warp, n_tiles * Unpacker::bytes, n_rows, epi,
            [&](int row) { return __ldcg(inv_scales + min(item.x_block * NT + row, n_rows - 1)); });
    }
}

}  // namespace

// grid: blocks that share the work items. x: prepared rows, x_stride rows per 64-column block.
#define LINEAR_MMA(name, Type, NT)                                                                                  \
    KERNEL_THREADS(256, linear_mma__##name##_##NT)                                                                  \
    (const Batch* batch, int kind, const u16* x, const float* inv_scales, int x_stride, int n_columns, MATRIX(0),   \
     MATRIX(1), MATRIX(2), EPILOGUE_PARAMS, float* parts, int n_splits, int n_stages) {                             \
        const Matrix all[3] = {MATRIX_OF(0), MATRIX_OF(1), MATRIX_OF(2)};                                           \
        const EpilogueParams epi = EPILOGUE_ARGS;                                                                   \
        linear_mma<Type, NT>(batch, kind, x, inv_scales, x_stride, n_columns, all, epi, parts, n_splits, n_stages); \
    }
#define LINEAR_MMAS(name, Type) \
    LINEAR_MMA(name, Type, 16)  \
    LINEAR_MMA(name, Type, 64)
#define LINEAR_MMAS_OF(name, Type) LINEAR_MMAS(name, Type)
#ifdef WOOLLY_TYPE
LINEAR_MMAS_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(LINEAR_MMAS)
#endif

#endif
