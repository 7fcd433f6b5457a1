// Down projection of one row, fused with the weighted sum over its experts. Arithmetic of moe_rows8.cu and moe_sum.
//
// A block computes one panel of all experts of the row. It fetches weights before waiting for the previous kernel: the
// routing is older than that kernel.
#include "experts/moe_routing.cuh"
#include "linears/tile_stream.cuh"

namespace {

struct SumParams {
    const float *bias, *scale;
    bool is_weighed;  // router weights apply here; else they were applied to the input
    int n;            // output columns
    float factor;
    const float* residual;
    float* y;
};

// Columns of a tile of an entry, being loaded by the warp that multiplies them; written to shared memory as f16.
struct Columns {
    const float* x;
    const u32* max_abs;
    int n_columns;
    float4 v[2];  // columns 4 lane to 4 lane + 3, and the same + 128
    u32 row_max;

    __device__ __forceinline__ void load(int entry, int tile, int lane) {
        row_max = __ldcg(max_abs + entry);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int k = tile * 256 + 4 * lane + 128 * j;
            const float* row = x + u64(entry) * n_columns + k;
            v[j] = make_float4(0, 0, 0, 0);
            if ((n_columns & 3) == 0) {
                if (k < n_columns) v[j] = __ldcg(reinterpret_cast<const float4*>(row));
            } else {
                if (k < n_columns) v[j].x = __ldcg(row);
                if (k + 1 < n_columns) v[j].y = __ldcg(row + 1);
                if (k + 2 < n_columns) v[j].z = __ldcg(row + 2);
                if (k + 3 < n_columns) v[j].w = __ldcg(row + 3);
            }
        }
    }
    __device__ __forceinline__ void put(u8* x_f16, int lane) const {
        const float times = row_scale_for(__uint_as_float(row_max)).value;
        __syncwarp();  // the previous tile is multiplied
#pragma unroll
        for (int j = 0; j < 2; j++)
            *reinterpret_cast<Words2*>(x_f16 + f16_offset(4 * lane + 128 * j)) = {
                to_half2_saturated(v[j].x * times, v[j].y * times), to_half2_saturated(v[j].z * times, v[j].w * times)};
        __syncwarp();
    }
};

// Iterates over the tiles of a warp's units; a unit is a slice of an entry.
struct TileIterator {
    int n_units, n_warps, n_slices, n_tiles;
    int unit, entry, slice, tile, end;

    __device__ __forceinline__ TileIterator(int n_units, int n_warps, int n_slices, int n_tiles, int unit)
        : n_units(n_units), n_warps(n_warps), n_slices(n_slices), n_tiles(n_tiles), unit(unit) {
        seek();
    }
    __device__ __forceinline__ bool is_there() const { return unit < n_units; }
    __device__ __forceinline__ void seek() {
        entry = unit / n_slices, slice = unit - entry * n_slices;
        tile = slice_start(slice, n_tiles), end = slice_start(slice + 1, n_tiles);
    }
    __device__ __forceinline__ void go() {
        if (++tile == end) unit += n_warps, seek();
    }
};

// Factors of one element of this block's panel, for one entry.
struct Element {
    float factor, share;
    u32 row_max;  // of the entry's hidden row

    // Loads the factor of the weights and the router weight, both known before the hidden rows.
    template <class T>
    __device__ __forceinline__ void load_early(const Routing& from, const ExpertWeights& expert_weights,
                                               const int* experts, int at) {
        const u8* factors = expert_weights.of(experts[at >> 4]) +
                            u64(expert_weights.n_panels) * expert_weights.n_tiles * Tile<T>::bytes;
        factor = reinterpret_cast<const float*>(factors)[int(blockIdx.x) * 16 + (at & 15)];
        share = __ldcg(from.shares + (at >> 4));
    }
    __device__ __forceinline__ void load(const u32* max_abs, int at) { row_max = __ldcg(max_abs + (at >> 4)); }
};

// Sums the slices of each entry, then the entries. `first`: this thread's first element; `kept`: the residual.
template <class T>
__device__ __forceinline__ void finish_panel(const Routing& from, const ExpertWeights& expert_weights,
                                             const SumParams& to, const int* experts, const u32* max_abs, int n_slices,
                                             const float* sums, float* numbers, Element first, float kept) {
    const int n_used = from.router.n_used, element = threadIdx.x & 15, column = int(blockIdx.x) * 16 + element;
    for (int i = threadIdx.x; i < n_used * 16; i += int(blockDim.x)) {
        const int entry = i >> 4, expert = experts[entry];
        if (i != int(threadIdx.x)) first.load_early<T>(from, expert_weights, experts, i), first.load(max_abs, i);
        float sum = 0;
        for (int slice = 0; slice < n_slices; slice++) sum += sums[(entry * n_slices + slice) * 16 + element];
        const float y = __fmul_rn(__fmul_rn(sum, first.factor), row_scale_for(__uint_as_float(first.row_max)).inverse);
        if (column >= to.n) continue;
        const float v = scaled_and_biased(y, 1.0f, expert, to.scale, to.bias, u64(expert) * to.n + column);
        numbers[i] = to.is_weighed ? first.share * v : v;
    }
    __syncthreads();
    if (threadIdx.x >= 16 || column >= to.n) return;
    float sum = 0;
    for (int entry = 0; entry < n_used; entry++) sum += numbers[entry * 16 + element];
    if (to.factor != 1.0f) sum *= to.factor;
    to.y[column] = to.residual == nullptr ? sum : kept + sum;
}

// Shared memory: mbarriers (bytes 1024 to 3071), experts of entries (padded to 16 bytes), sums [entry][slice][16],
// numbers [entry][16], an f16 tile per warp, rings. `x`: [entries][n_columns].
template <class T>
__device__ __forceinline__ void moe_down_gemv(const Routing& from, const float* x, const u32* max_abs, int n_columns,
                                              const ExpertWeights& expert_weights, const SumParams& to, int n_stages) {
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x & 31, warp = __shfl_sync(ALL_LANES, int(threadIdx.x) >> 5, 0);
    const int n_threads = blockDim.x, n_warps = n_threads >> 5, g = lane >> 2, t = lane & 3, panel = blockIdx.x;
    const int n_used = from.router.n_used;
    const int n_tiles = expert_weights.n_tiles, n_slices = min(n_tiles, N_SLICES), n_units = n_used * n_slices;
    int* experts = reinterpret_cast<int*>(shared + 3072);
    float* sums = reinterpret_cast<float*>(experts + (n_used + 3) / 4 * 4);
    float* numbers = sums + n_units * 16;
    from.await();
    for (int i = threadIdx.x; i < n_used; i += n_threads) experts[i] = __ldcg(from.experts + i);
    __syncthreads();
    u8* x_f16 = reinterpret_cast<u8*>(numbers + n_used * 16);
    Ring ring;
    ring.start(shared, x_f16 + n_warps * 512, warp, lane, n_stages, Tile<T>::bytes);
    x_f16 += warp * 512;
    TileIterator ahead(n_units, n_warps, n_slices, n_tiles, warp), tiles_of_warp = ahead;
    int stage = 0, phase = 0;
    auto fetch = [&](int place) {
        const u8* tiles = nullptr;
        if (ahead.is_there()) {
            tiles = expert_weights.of(experts[ahead.entry]) + (u64(panel) * n_tiles + ahead.tile) * Tile<T>::bytes;
            ahead.go();
        }
        ring.fetch(place, tiles, Tile<T>::bytes, lane);
    };
#pragma unroll 1
    for (int i = 0; i < n_stages; i++) fetch(i);
    Element first = {};  // element that this thread finishes
    const bool has_first = int(threadIdx.x) < n_used * 16;
    if (has_first) first.load_early<T>(from, expert_weights, experts, threadIdx.x);
    launch_dependents();
    wait_for_previous_kernel();

    Columns columns{x, max_abs, n_columns, {}, 0};
    if (tiles_of_warp.is_there()) columns.load(tiles_of_warp.entry, tiles_of_warp.tile, lane);
    if (has_first) first.load(max_abs, threadIdx.x);
    const int column = panel * 16 + int(threadIdx.x);
    const float kept =
        threadIdx.x < 16 && column < to.n && to.residual != nullptr ? __ldcg(to.residual + column) : 0.0f;
    float acc[4] = {0, 0, 0, 0};
#pragma unroll 1
    while (tiles_of_warp.is_there()) {
        const int unit = tiles_of_warp.unit;
        columns.put(x_f16, lane);
        tiles_of_warp.go();
        if (tiles_of_warp.is_there()) columns.load(tiles_of_warp.entry, tiles_of_warp.tile, lane);
        const u8 *packed = ring.memory + stage * Tile<T>::bytes, *b = x_f16 + t * 16;
        ring.wait(stage, phase);
        const typename Tile<T>::Scales scales = Tile<T>::scales(packed, lane);
        Words4 two = {};
#pragma unroll
        for (int k16 = 0; k16 < 16; k16++) {
            u32 a[4];
            Tile<T>::unpack(packed, scales, lane, k16, a);
            if ((k16 & 1) == 0) two = *reinterpret_cast<const Words4*>(b + (k16 >> 1) * 64);
            mma(acc, a, k16 & 1 ? two.z : two.x, k16 & 1 ? two.w : two.y);
        }
        __syncwarp();
        fetch(stage);
        if (++stage == n_stages) stage = 0, phase ^= 1;
        if (tiles_of_warp.unit == unit) continue;
        if (t == 0) sums[unit * 16 + g] = acc[0], sums[unit * 16 + g + 8] = acc[2];
        acc[0] = acc[1] = acc[2] = acc[3] = 0.0f;
    }
    __syncthreads();
    finish_panel<T>(from, expert_weights, to, experts, max_abs, n_slices, sums, numbers, first, kept);
}

}  // namespace

// grid: panels.
#define MOE_DOWN_GEMV(name, Type)                                                                                   \
    KERNEL_THREADS(1024, moe_down_gemv__##name)                                                                     \
    (const Batch*, ROUTING_PARAMS, EXPERT_WEIGHTS, int n_stages, const float* x, const u32* max_abs, int n_columns, \
     int is_weighed, const float* bias, const float* scale, int n, float factor, const float* residual, float* y) { \
        moe_down_gemv<Type>(ROUTING_ARGS(1), x, max_abs, n_columns, EXPERT_WEIGHTS_ARGS,                            \
                            {bias, scale, is_weighed != 0, n, factor, residual, y}, n_stages);                      \
    }
#define MOE_DOWN_GEMV_OF(name, Type) MOE_DOWN_GEMV(name, Type)
#ifdef WOOLLY_TYPE
MOE_DOWN_GEMV_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(MOE_DOWN_GEMV)
#endif
