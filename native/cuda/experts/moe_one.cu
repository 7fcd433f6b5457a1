// The last product of experts for one row, with the sum over its experts. The arithmetic is that of moe_few.cu, and the
// sum that of moe_sum.
//
// A block has one strip of the matrices of all experts of the row, which it asks for before it waits: what the experts
// are chosen from was there before the kernel that it waits for.
#include "experts/moe_items.cuh"
#include "linears/tile_stream.cuh"

namespace {

struct Summed {
    const float *bias, *scale;
    bool is_weighed;  // by shares; else rows were weighed before
    int n;            // columns of the result
    float factor;
    const float* residual;
    float* y;
};

// Columns of a tile of an entry, on their way to the warp that multiplies them, and its own as halves.
struct Columns {
    const float* x;
    const u32* largests;
    int n_columns;
    float4 v[2];  // columns 4 lane to 4 lane + 3, and 128 further
    u32 largest;

    __device__ __forceinline__ void ask(int entry, int tile, int lane) {
        largest = __ldcg(largests + entry);
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
    __device__ __forceinline__ void put(u8* halves, int lane) const {
        const float times = row_scale_for(__uint_as_float(largest)).value;
        __syncwarp();  // the tile before is multiplied
#pragma unroll
        for (int j = 0; j < 2; j++)
            *reinterpret_cast<Words2*>(halves + halved_at(4 * lane + 128 * j)) = {
                to_half2_saturated(v[j].x * times, v[j].y * times), to_half2_saturated(v[j].z * times, v[j].w * times)};
        __syncwarp();
    }
};

// A warp's way over the tiles of its units: slices of entries.
struct Way {
    int n_units, n_warps, n_slices, n_tiles;
    int unit, entry, slice, tile, end;

    __device__ __forceinline__ Way(int n_units, int n_warps, int n_slices, int n_tiles, int unit)
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

// What an element of an entry of this block's strip is multiplied by.
struct Element {
    float factor, share;
    u32 largest;  // of the entry's columns

    // What is known before the columns: of the weights, and of the choice.
    template <class T>
    __device__ __forceinline__ void ask_early(const Source& from, const Stack& stack, const int* experts, int at) {
        const u8* factors = stack.of(experts[at >> 4]) + u64(stack.n_panels) * stack.n_tiles * Tile<T>::bytes;
        factor = reinterpret_cast<const float*>(factors)[int(blockIdx.x) * 16 + (at & 15)];
        share = __ldcg(from.shares + (at >> 4));
    }
    __device__ __forceinline__ void ask(const u32* largests, int at) { largest = __ldcg(largests + (at >> 4)); }
};

// Sums of slices of each entry, and of these the row's result. `first` is the thread's first element; `kept` is added.
template <class T>
__device__ __forceinline__ void finish_panel(const Source& from, const Stack& stack, const Summed& to,
                                             const int* experts, const u32* largests, int n_slices, const float* sums,
                                             float* numbers, Element first, float kept) {
    const int n_used = from.choice.n_used, element = threadIdx.x & 15, column = int(blockIdx.x) * 16 + element;
    for (int i = threadIdx.x; i < n_used * 16; i += int(blockDim.x)) {
        const int entry = i >> 4, expert = experts[entry];
        if (i != int(threadIdx.x)) first.ask_early<T>(from, stack, experts, i), first.ask(largests, i);
        float sum = 0;
        for (int slice = 0; slice < n_slices; slice++) sum += sums[(entry * n_slices + slice) * 16 + element];
        const float y = __fmul_rn(__fmul_rn(sum, first.factor), row_scale_for(__uint_as_float(first.largest)).inverse);
        if (column >= to.n) continue;
        const float v = given(y, 1.0f, expert, to.scale, to.bias, u64(expert) * to.n + column);
        numbers[i] = to.is_weighed ? first.share * v : v;
    }
    __syncthreads();
    if (threadIdx.x >= 16 || column >= to.n) return;
    float sum = 0;
    for (int entry = 0; entry < n_used; entry++) sum += numbers[entry * 16 + element];
    if (to.factor != 1.0f) sum *= to.factor;
    to.y[column] = to.residual == nullptr ? sum : kept + sum;
}

// Shared: barriers in the second KB and the third, experts of entries (in whole 16 bytes), sums [entry][slice][16],
// numbers [entry][16], halves of a tile for each warp, rings. `x` has a row of n_columns for each entry.
template <class T>
__device__ __forceinline__ void moe_one(const Source& from, const float* x, const u32* largests, int n_columns,
                                        const Stack& stack, const Summed& to, int n_stages) {
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x & 31, warp = __shfl_sync(ALL_LANES, int(threadIdx.x) >> 5, 0);
    const int n_threads = blockDim.x, n_warps = n_threads >> 5, g = lane >> 2, t = lane & 3, panel = blockIdx.x;
    const int n_used = from.choice.n_used;
    const int n_tiles = stack.n_tiles, n_slices = min(n_tiles, N_SLICES), n_units = n_used * n_slices;
    int* experts = reinterpret_cast<int*>(shared + 3072);
    float* sums = reinterpret_cast<float*>(experts + (n_used + 3) / 4 * 4);
    float* numbers = sums + n_units * 16;
    from.await();
    for (int i = threadIdx.x; i < n_used; i += n_threads) experts[i] = __ldcg(from.experts + i);
    __syncthreads();
    u8* halves = reinterpret_cast<u8*>(numbers + n_used * 16);
    Ring ring;
    ring.start(shared, halves + n_warps * 512, warp, lane, n_stages, Tile<T>::bytes);
    halves += warp * 512;
    Way ahead(n_units, n_warps, n_slices, n_tiles, warp), way = ahead;
    int stage = 0, phase = 0;
    auto fetch = [&](int place) {
        const u8* tiles = nullptr;
        if (ahead.is_there()) {
            tiles = stack.of(experts[ahead.entry]) + (u64(panel) * n_tiles + ahead.tile) * Tile<T>::bytes;
            ahead.go();
        }
        ring.fetch(place, tiles, Tile<T>::bytes, lane);
    };
#pragma unroll 1
    for (int i = 0; i < n_stages; i++) fetch(i);
    Element first = {};  // that this thread finishes
    const bool has_first = int(threadIdx.x) < n_used * 16;
    if (has_first) first.ask_early<T>(from, stack, experts, threadIdx.x);
    launch_dependents();
    wait_for_previous_kernel();

    Columns columns{x, largests, n_columns, {}, 0};
    if (way.is_there()) columns.ask(way.entry, way.tile, lane);
    if (has_first) first.ask(largests, threadIdx.x);
    const int column = panel * 16 + int(threadIdx.x);
    const float kept =
        threadIdx.x < 16 && column < to.n && to.residual != nullptr ? __ldcg(to.residual + column) : 0.0f;
    float acc[4] = {0, 0, 0, 0};
#pragma unroll 1
    while (way.is_there()) {
        const int unit = way.unit;
        columns.put(halves, lane);
        way.go();
        if (way.is_there()) columns.ask(way.entry, way.tile, lane);
        const u8 *packed = ring.memory + stage * Tile<T>::bytes, *b = halves + t * 16;
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
        if (way.unit == unit) continue;
        if (t == 0) sums[unit * 16 + g] = acc[0], sums[unit * 16 + g + 8] = acc[2];
        acc[0] = acc[1] = acc[2] = acc[3] = 0.0f;
    }
    __syncthreads();
    finish_panel<T>(from, stack, to, experts, largests, n_slices, sums, numbers, first, kept);
}

}  // namespace

// grid: strips.
#define MOE_ONE(name, Type)                                                                                         \
    KERNEL_THREADS(1024, moe_one__##name)                                                                           \
    (const Batch*, SOURCE, STACK, int n_stages, const float* x, const u32* largests, int n_columns, int is_weighed, \
     const float* bias, const float* scale, int n, float factor, const float* residual, float* y) {                 \
        moe_one<Type>(SOURCE_OF(1), x, largests, n_columns, STACK_OF,                                               \
                      {bias, scale, is_weighed != 0, n, factor, residual, y}, n_stages);                            \
    }
#define MOE_ONE_OF(name, Type) MOE_ONE(name, Type)
#ifdef WOOLLY_TYPE
MOE_ONE_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(MOE_ONE)
#endif
