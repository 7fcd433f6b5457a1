// Packs GGUF blocks into tiles: measure_* chooses the row factors, pack_* writes one tile per warp.
//
// Source rows map to packed rows in one of three orders: 0: unchanged; 1: to the first eight rows of each 16-row panel;
// 2: to the other eight, into tiles that order 1 has written. So gate and up of a feature are rows g and g + 8.
#include "weights/pack_k.cuh"

// blockIdx.y selects the matrix: source_rows rows apart in the source, 16 * packed_step bytes when packed.
template <class T>
struct Source {
    const u8* at;
    int source_rows, n_rows, n_blocks, order;  // per matrix
    // Source row of a packed row; null if there is none.
    __device__ const u8* row(int packed) const {
        const int half = packed >> 3 & 1;
        const int row = order == 0 ? packed : packed / 16 * 8 + packed % 8;
        if ((order != 0 && order != half + 1) || row >= n_rows) return nullptr;
        return at + (u64(blockIdx.y) * source_rows + row) * n_blocks * Block<T>::bytes;
    }
};

// One warp per packed row.
template <class T>
__device__ void measure(const Source<T>& source, int n_panels, float* factors, int packed_step) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (row >= n_panels * 16 || source.order == 2 - (row >> 3 & 1)) return;
    const u8* at = source.row(row);
    int limit = NO_LIMIT;
    for (int i = lane; i < (at == nullptr ? 0 : source.n_blocks); i += 32)
        limit = larger(limit, Block<T>::limit(at + u64(i) * Block<T>::bytes));
    for (int bits = 16; bits > 0; bits >>= 1) limit = larger(limit, __shfl_xor_sync(ALL_LANES, limit, bits));
    if (lane != 0) return;
    const int exponent = limit == NO_LIMIT ? 0 : limit < -126 ? -126 : limit;
    factors[u64(blockIdx.y) * packed_step * 4 + row] = power_of_two(exponent);
}

template <class T>
__device__ void pack(const Source<T>& source, const u8* points, int n_panels, int n_tiles, const float* factors,
                     u8* tiles, int packed_step) {
    typedef typename Block<T>::Kind Kind;
    const u64 id = u64(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (id >= u64(n_panels) * n_tiles) return;
    const Out out = {tiles + u64(blockIdx.y) * packed_step * 16 + id * Tile<Kind>::bytes, int(threadIdx.x & 31),
                     source.order == 2};
    const int row = int(id / n_tiles) * 16 + out.g(), first = int(id % n_tiles) * (256 / Block<T>::columns);
    const float* of_rows = factors + u64(blockIdx.y) * packed_step * 4 + row;
    const Line a = {source.row(row), first, source.n_blocks, exponent_of(of_rows[0]), points};
    const Line b = {source.row(row + 8), first, source.n_blocks, exponent_of(of_rows[8]), points};
    Pack<Kind>::template tile<T>(out, a, b);
}

#define PACKERS(name, T)                                                                                         \
    KERNEL(measure_##name)(const u8* source, int source_rows, int n_rows, int n_blocks, int order, int n_panels, \
                           float* factors, int packed_step) {                                                    \
        measure<T>({source, source_rows, n_rows, n_blocks, order}, n_panels, factors, packed_step);              \
    }                                                                                                            \
    KERNEL(pack_##name)(const u8* source, int source_rows, int n_rows, int n_blocks, int order, int n_panels,    \
                        int n_tiles, const float* factors, u8* tiles, int packed_step, const u8* points) {       \
        pack<T>({source, source_rows, n_rows, n_blocks, order}, points, n_panels, n_tiles, factors, tiles,       \
                packed_step);                                                                                    \
    }
ALL_BLOCKS(PACKERS)
