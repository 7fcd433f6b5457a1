// The last product of experts for one row, with the sum over its experts. The arithmetic is that of moe_few.cu, and the
// sum that of moe_sum.
//
// A block has one strip of the matrices of all experts of the row, which it asks for before it waits: the experts were
// chosen before the kernel that it waits for.
#include "experts/moe.cuh"
#include "primitives/ring.cuh"

namespace {

struct Summed {
    const int* experts;
    const float *shares, *bias, *scale;  // shares are null if rows were weighed
    int n;                               // columns of the result
    float factor;
    const float* residual;
    float* y;
};

// Columns of all entries, to f16, by the block: four at a time.
__device__ __forceinline__ void halve_rows(const float* x, const u32* largests, int n_used, int n_columns, int n_tiles,
                                           u8* halves) {
    const int n_fours = n_tiles * 64;
    for (int i = threadIdx.x; i < n_used * n_fours; i += int(blockDim.x)) {
        const int entry = i / n_fours, k = (i - entry * n_fours) * 4;
        const float* row = x + u64(entry) * n_columns + k;
        const float times = power_for(__uint_as_float(__ldcg(largests + entry))).times;
        float4 v = make_float4(0, 0, 0, 0);
        if ((n_columns & 3) == 0) {
            if (k < n_columns) v = __ldcg(reinterpret_cast<const float4*>(row));
        } else {
            if (k < n_columns) v.x = __ldcg(row);
            if (k + 1 < n_columns) v.y = __ldcg(row + 1);
            if (k + 2 < n_columns) v.z = __ldcg(row + 2);
            if (k + 3 < n_columns) v.w = __ldcg(row + 3);
        }
        u8* place = halves + entry * n_tiles * 512;
        *reinterpret_cast<u32*>(place + halved_at(k)) = to_halves_saturated(v.x * times, v.y * times);
        *reinterpret_cast<u32*>(place + halved_at(k + 2)) = to_halves_saturated(v.z * times, v.w * times);
    }
}

// Shared: barriers in the second KB and the third, sums [entry][slice][16], numbers [entry][16], halves
// [entry][n_tiles][512 bytes], rings. `x` has a row of n_columns for each entry.
template <class T>
__device__ __forceinline__ void moe_one(int n_used, const float* x, const u32* largests, int n_columns,
                                        const Stack& stack, const Summed& to, int n_stages) {
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x & 31, warp = __shfl_sync(ALL_LANES, int(threadIdx.x) >> 5, 0);
    const int n_threads = blockDim.x, n_warps = n_threads >> 5, g = lane >> 2, t = lane & 3, strip = blockIdx.x;
    const int n_tiles = stack.n_tiles, n_slices = min(n_tiles, N_SLICES), n_units = n_used * n_slices;
    float* sums = reinterpret_cast<float*>(shared + 3072);
    float* numbers = sums + n_units * 16;
    u8* halves = reinterpret_cast<u8*>(numbers + n_used * 16);
    Ring ring;
    ring.start(shared, halves + n_used * n_tiles * 512, warp, lane, n_stages, Tile<T>::bytes);
    // What is asked for next: a tile of a slice of an entry.
    int unit = warp, tile = slice_start(warp % n_slices, n_tiles), stage = 0, phase = 0;
    auto fetch = [&](int place) {
        const u8* from = nullptr;
        if (unit < n_units) {
            from = stack.of(__ldcg(to.experts + unit / n_slices)) + (u64(strip) * n_tiles + tile) * Tile<T>::bytes;
            if (++tile == slice_start(unit % n_slices + 1, n_tiles))
                unit += n_warps, tile = slice_start(unit % n_slices, n_tiles);
        }
        ring.fetch(place, from, Tile<T>::bytes, lane);
    };
#pragma unroll 1
    for (int i = 0; i < n_stages; i++) fetch(i);
    // The element of an entry that this thread finishes.
    const int element = threadIdx.x & 15;
    auto factor_of = [&](int entry) {
        const u8* tiles = stack.of(__ldcg(to.experts + entry));
        return reinterpret_cast<const float*>(tiles +
                                              u64(stack.n_strips) * n_tiles * Tile<T>::bytes)[strip * 16 + element];
    };
    const float first_factor = int(threadIdx.x) < n_used * 16 ? factor_of(threadIdx.x >> 4) : 0.0f;
    let_next_kernel_begin();
    wait_for_kernel_before();

    halve_rows(x, largests, n_used, n_columns, n_tiles, halves);
    __syncthreads();
#pragma unroll 1
    for (int mine = warp; mine < n_units; mine += n_warps) {
        const int entry = mine / n_slices, slice = mine % n_slices;
        float acc[4] = {0, 0, 0, 0};
#pragma unroll 1
        for (int i = slice_start(slice, n_tiles); i < slice_start(slice + 1, n_tiles); i++) {
            const u8 *opened = ring.memory + stage * Tile<T>::bytes, *b = halves + (entry * n_tiles + i) * 512 + t * 16;
            ring.wait(stage, phase);
            const typename Tile<T>::Scales scales = Tile<T>::scales(opened, lane);
            Words4 two = {};
#pragma unroll
            for (int k16 = 0; k16 < 16; k16++) {
                u32 a[4];
                Tile<T>::open(opened, scales, lane, k16, a);
                if ((k16 & 1) == 0) two = *reinterpret_cast<const Words4*>(b + (k16 >> 1) * 64);
                mma(acc, a, k16 & 1 ? two.z : two.x, k16 & 1 ? two.w : two.y);
            }
            __syncwarp();
            fetch(stage);
            if (++stage == n_stages) stage = 0, phase ^= 1;
        }
        if (t == 0) sums[mine * 16 + g] = acc[0], sums[mine * 16 + g + 8] = acc[2];
    }
    __syncthreads();
    const int column = strip * 16 + element;
    for (int i = threadIdx.x; i < n_used * 16; i += n_threads) {
        const int entry = i >> 4, expert = __ldcg(to.experts + entry);
        float sum = 0;
        for (int slice = 0; slice < n_slices; slice++) sum += sums[(entry * n_slices + slice) * 16 + element];
        const float factor = i < n_threads ? first_factor : factor_of(entry);
        const float y = __fmul_rn(__fmul_rn(sum, factor), power_for(__uint_as_float(__ldcg(largests + entry))).back);
        if (column >= to.n) continue;
        const float v = given(y, 1.0f, expert, to.scale, to.bias, u64(expert) * to.n + column);
        numbers[i] = to.shares == nullptr ? v : __ldcg(to.shares + entry) * v;
    }
    __syncthreads();
    if (threadIdx.x >= 16 || column >= to.n) return;
    float sum = 0;
    for (int entry = 0; entry < n_used; entry++) sum += numbers[entry * 16 + element];
    if (to.factor != 1.0f) sum *= to.factor;
    to.y[column] = to.residual == nullptr ? sum : __ldcg(to.residual + column) + sum;
}

}  // namespace

// grid: strips.
#define MOE_ONE(name, Type)                                                                                  \
    KERNEL_OF(1024, moe_one__##name)                                                                         \
    (const Batch*, int n_used, const int* experts, STACK, int n_stages, const float* x, const u32* largests, \
     int n_columns, const float* shares, const float* bias, const float* scale, int n, float factor,         \
     const float* residual, float* y) {                                                                      \
        moe_one<Type>(n_used, x, largests, n_columns, STACK_OF,                                              \
                      {experts, shares, bias, scale, n, factor, residual, y}, n_stages);                     \
    }
#define MOE_ONE_OF(name, Type) MOE_ONE(name, Type)
#ifdef WOOLLY_TYPE
MOE_ONE_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(MOE_ONE)
#endif
