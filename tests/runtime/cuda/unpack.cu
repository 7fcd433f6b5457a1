// Opens every tile of a matrix by the openers of native/cuda: f32 [packed rows][columns], not yet times the factors.
#include "weights/tile.cuh"

template <class T>
__device__ void unpack_tiles(const u8* tiles, int n_tiles, float* out) {
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4, panel = blockIdx.x / n_tiles, tile = blockIdx.x % n_tiles;
    const u8* at = tiles + u64(blockIdx.x) * Tile<T>::bytes;
    const typename Tile<T>::Scales scales = Tile<T>::scales(at, lane);
    for (int k16 = 0; k16 < 16; ++k16) {
        u32 a[4];
        Tile<T>::unpack(at, scales, lane, k16, a);
        for (int i = 0; i < 4; ++i) {
            const int row = panel * 16 + g + (i & 1) * 8;
            const int column = tile * 256 + column_at(16 * k16 + 2 * t + (i >> 1) * 8);
            out[u64(row) * n_tiles * 256 + column] = low_float(a[i]);
            out[u64(row) * n_tiles * 256 + column + 1] = high_float(a[i]);
        }
    }
}
#define UNPACK(name, T)                                                                                     \
    KERNEL(unpack_##name)(const u8* tiles, int n_tiles, float* out) { unpack_tiles<T>(tiles, n_tiles, out); } \
    KERNEL(size_##name)(int* out) { *out = Tile<T>::bytes; }
TILE_TYPES(UNPACK)
