// Products of experts for few rows, of which the weights of chosen experts are read once. The arithmetic is that of
// linears.cuh: 16 slices of the columns, a chain of m16n8k16 in each, and the slices in order.
//
// Entries of an expert go together, up to 8 in an item. Blocks have equal parts of the strips of all items, one after
// another; a warp has one slice of each, whose columns of the item's rows stay in its registers.
#include "moe.cuh"
#include "ring.cuh"

namespace {

// How far rows of sums are apart in shared memory: so that lanes that store sums do not meet in a bank.
constexpr int APART = 20;
// Elements that a thread finishes in a round, at most.
constexpr int FINISHED = 4;

struct Work {
    const Bundle* items;
    const int* members;
    int n_known;                             // items, if that is known; else they are counted
    int n_group, n_held, n_stages, n_early;  // n_group: most rows of an item; n_held: strips of a round
};
#define WORK const Bundle *items, const int *members, int n_known, int n_group, int n_held, int n_stages, int n_early
#define WORK_OF {items, members, n_known, n_group, n_held, n_stages, n_early}

// Tiles of a warp from the strips of its block, as they come through a ring.
template <class T>
struct Strips {
    const Stack& stack;
    const Bundle* items;
    const int n_slices, n_active;  // n_active: warps that share slices
    int begin, end, lane;          // strips of the block, counted over all items
    Ring ring;
    const u8* base;
    int unit, tile, last, item, stage, phase;

    __device__ __forceinline__ Strips(const Stack& stack, const Bundle* items, int n_warps, int lane)
        : stack(stack),
          items(items),
          n_slices(min(stack.n_tiles, N_SLICES)),
          n_active(n_warps < n_slices ? n_warps : n_warps / n_slices * n_slices),
          lane(lane),
          item(-1),
          stage(0),
          phase(0) {}
    __device__ __forceinline__ void start(int warp, int n_items) {
        const u32 total = u32(n_items) * stack.n_strips;
        begin = int(u64(total) * blockIdx.x / gridDim.x), end = int(u64(total) * (blockIdx.x + 1) / gridDim.x);
        unit = warp < n_active ? warp : (end - begin) * n_slices;
        seek();
    }
    __device__ __forceinline__ void seek() {
        tile = slice_start(unit % n_slices, stack.n_tiles), last = slice_start(unit % n_slices + 1, stack.n_tiles);
        const int strip = begin + unit / n_slices;
        if (strip >= end || strip / stack.n_strips == item) return;
        item = strip / stack.n_strips;
        base = stack.of(__ldcg(&items[1 + item].expert));
    }
    __device__ __forceinline__ void fetch(int to) {
        const int strip = begin + unit / n_slices;
        const bool is_left = strip < end;
        const u8* from = base + (u64(strip - item * stack.n_strips) * stack.n_tiles + tile) * Tile<T>::bytes;
        ring.fetch(to, is_left ? from : nullptr, Tile<T>::bytes, lane);
        if (is_left && ++tile == last) unit += n_active, seek();
    }
    __device__ __forceinline__ void multiply(float (&acc)[4], const Words4 (&columns)[8]) {
        const u8* opened = ring.memory + stage * Tile<T>::bytes;
        ring.wait(stage, phase);
        const typename Tile<T>::Scales scales = Tile<T>::scales(opened, lane);
#pragma unroll
        for (int k16 = 0; k16 < 16; k16++) {
            u32 a[4];
            Tile<T>::open(opened, scales, lane, k16, a);
            const Words4& two = columns[k16 >> 1];
            mma(acc, a, k16 & 1 ? two.z : two.x, k16 & 1 ? two.w : two.y);
        }
        __syncwarp();
        fetch(stage);
        if (++stage == ring.n_stages) stage = 0, phase ^= 1;
    }
};

// Columns of a tile as two mma want them, of halved rows ...
struct Halved {
    const u8* halves;
    const float* backs;
    int n_used;
    static constexpr bool IS_EARLY = false;
    __device__ __forceinline__ void load(Words4 (&to)[8], int entry, int tile, int n_tiles, int t) const {
        const u8* from = halves + (u64(entry / n_used) * n_tiles + tile) * 512 + t * 16;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint4 v = __ldcg(reinterpret_cast<const uint4*>(from + i * 64));
            to[i] = {v.x, v.y, v.z, v.w};
        }
    }
    __device__ __forceinline__ float back(int entry) const { return __ldcg(backs + entry / n_used); }
};
// ... or of rows of f32 whose largest magnitude is known.
struct Hidden {
    const float* x;
    const u32* largests;
    int n;
    static constexpr bool IS_EARLY = true;  // items are known before the kernel that this one waits for
    __device__ __forceinline__ Power power(int entry) const {
        return power_for(__uint_as_float(__ldcg(largests + entry)));
    }
    __device__ __forceinline__ u32 two(const float* row, int k, float times) const {
        if ((n & 1) == 0) {
            if (k >= n) return 0;
            const float2 v = __ldcg(reinterpret_cast<const float2*>(row + k));
            return to_halves_saturated(v.x * times, v.y * times);
        }
        return to_halves_saturated(k < n ? __ldcg(row + k) * times : 0.0f,
                                   k + 1 < n ? __ldcg(row + k + 1) * times : 0.0f);
    }
    __device__ __forceinline__ void load(Words4 (&to)[8], int entry, int tile, int, int t) const {
        const float* row = x + u64(entry) * n;
        const float times = power(entry).times;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int k = tile * 256 + i * 32 + 2 * t;
            to[i] = {two(row, k, times), two(row, k + 8, times), two(row, k + 16, times), two(row, k + 24, times)};
        }
    }
    __device__ __forceinline__ float back(int entry) const { return power(entry).back; }
};

// What becomes of sums: numbers of packed rows, [entries][stride] ...
struct Packed {
    float* y;
    int stride;
    static constexpr int EACH = 16;
    __device__ __forceinline__ void finish(float low, float, const Bundle&, int entry, int strip, int e, bool is_mine,
                                           int) const {
        if (is_mine) y[u64(entry) * stride + strip * 16 + e] = low;
    }
};
// ... or what stands between the products, of pairs.
struct Paired {
    Between between;
    int n;
    float* hidden;
    u32* largests;
    static constexpr int EACH = 8;
    __device__ __forceinline__ void finish(float gate, float up, const Bundle& item, int entry, int strip, int e,
                                           bool is_mine, int lane) const {
        const int column = strip * 8 + e;
        float v = 0.0f;
        is_mine = is_mine && column < n;
        if (is_mine) {
            v = between.of(gate, up, entry, item.expert, n, column);
            hidden[u64(entry) * n + column] = v;
        }
        float largest = fmaxf(0.0f, fabsf(v));
#pragma unroll
        for (int i = 4; i; i /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, i));
        // Whoever comes first, the largest is the same.
        if (is_mine && (lane & 7) == 0) atomicMax(largests + entry, __float_as_uint(largest));
    }
};

// Memory that a later kernel reads, of all items: what is asked for here is nearer then.
struct Later {
    const u8* tiles;
    int step, n_bytes;  // of a matrix
};

template <class T, class Rows, class Out>
__device__ __forceinline__ void moe_few(const Work& work, const Stack& stack, const Rows& rows, const Out& out,
                                        const Later& later) {
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x & 31, warp = __shfl_sync(ALL_LANES, int(threadIdx.x) >> 5, 0);
    const int n_threads = blockDim.x, g = lane >> 2, t = lane & 3, n_tiles = stack.n_tiles, n_group = work.n_group;
    Strips<T> strips(stack, work.items, n_threads >> 5, lane);
    const int n_slices = strips.n_slices, apart = n_group * APART, n_place = work.n_held * n_slices * apart;
    // Shared: barriers in the second KB, sums [place][strip][slice][row][APART], rings.
    float* sums = reinterpret_cast<float*>(shared + 2048);
    strips.ring.start(shared, reinterpret_cast<u8*>(sums + 2 * n_place), warp, lane, work.n_stages, Tile<T>::bytes);
    const int n_early = Rows::IS_EARLY ? work.n_early : 0;
    if (!Rows::IS_EARLY) wait_for_kernel_before();
    let_next_kernel_begin();
    strips.start(warp, work.n_known ? work.n_known : __ldcg(&work.items[0].expert));
#pragma unroll 1
    for (int i = 0; i < n_early; i++) strips.fetch(i);
    if (Rows::IS_EARLY) wait_for_kernel_before();
#pragma unroll 1
    for (int i = n_early; i < work.n_stages; i++) strips.fetch(i);
#if WOOLLY_BULK
    if (later.tiles != nullptr && threadIdx.x == 0) {
        // This block's part of each matrix, in whole pieces of 128 bytes.
        const u32 n_pieces = u32(later.n_bytes) / 128, first = n_pieces * blockIdx.x / gridDim.x,
                  n = n_pieces * (blockIdx.x + 1) / gridDim.x - first;
        for (int i = 0; n && i < work.n_known; i++)
            bulk_prefetch(later.tiles + u64(__ldcg(&work.items[1 + i].expert)) * u32(later.step) * 16 + first * 128,
                          n * 128);
    }
#endif

    Words4 columns[8];
    int held_item = -1, held_tile = -1, place = 0;
    int unit = warp < strips.n_active ? warp : (strips.end - strips.begin) * n_slices;
#pragma unroll 1
    for (int first = strips.begin; first < strips.end; first += work.n_held, place ^= 1) {
        float* held = sums + place * n_place;
        const int n_now = min(work.n_held, strips.end - first);

        // Elements that this thread finishes after the round; what they need comes while tiles do.
        const int n_elements = n_now * Out::EACH * n_group;
        Bundle item[FINISHED];
        int entry[FINISHED];
        float low[FINISHED], high[FINISHED], back[FINISHED];
#pragma unroll
        for (int i = 0; i < FINISHED; i++) {
            const int at = int(threadIdx.x) + i * n_threads, row = at / Out::EACH % n_group;
            entry[i] = -1, low[i] = high[i] = back[i] = 0;
            item[i] = {0, 0, 0, 0};
            if (at >= n_elements) continue;
            const int strip = first + at / (Out::EACH * n_group), number = strip / stack.n_strips;
            const int4 v = __ldcg(reinterpret_cast<const int4*>(work.items + 1 + number));
            item[i] = {v.x, v.y, v.z, v.w};
            if (row >= item[i].n_rows) continue;
            entry[i] = __ldcg(work.members + item[i].first + row);
            const float* factors = reinterpret_cast<const float*>(stack.of(item[i].expert) +
                                                                  u64(stack.n_strips) * n_tiles * Tile<T>::bytes) +
                                   (strip - number * stack.n_strips) * 16 + at % Out::EACH;
            low[i] = factors[0];
            if (Out::EACH == 8) high[i] = factors[8];
            back[i] = rows.back(entry[i]);
        }

#pragma unroll 1
        for (; unit < (first - strips.begin + n_now) * n_slices; unit += strips.n_active) {
            const int strip = strips.begin + unit / n_slices, slice = unit % n_slices;
            const int number = strip / stack.n_strips;
            float acc[4] = {0, 0, 0, 0};
#pragma unroll 1
            for (int tile = slice_start(slice, n_tiles); tile < slice_start(slice + 1, n_tiles); tile++) {
                if (number != held_item || tile != held_tile) {
                    held_item = number, held_tile = tile;
                    const int4 v = __ldcg(reinterpret_cast<const int4*>(work.items + 1 + number));
                    // Rows behind the last repeat it.
                    rows.load(columns, __ldcg(work.members + v.y + min(g, v.z - 1)), tile, n_tiles, t);
                }
                strips.multiply(acc, columns);
            }
            float* sum = held + ((strip - first) * n_slices + slice) * apart + 2 * t * APART + g;
            if (2 * t < n_group) sum[0] = acc[0], sum[8] = acc[2];
            if (2 * t + 1 < n_group) sum[APART] = acc[1], sum[APART + 8] = acc[3];
        }
        __syncthreads();  // another place of the sums is free: who comes here has read it
#pragma unroll
        for (int i = 0; i < FINISHED; i++) {
            const int at = int(threadIdx.x) + i * n_threads;
            if (at - int(threadIdx.x) >= n_elements) break;
            const int e = at % Out::EACH, row = at / Out::EACH % n_group, strip = first + at / (Out::EACH * n_group);
            auto summed = [&](int element, float factor) {
                const float* from = held + (strip - first) * n_slices * apart + row * APART + element;
                float sum = 0;
                for (int s = 0; s < n_slices; s++) sum += from[s * apart];
                return __fmul_rn(__fmul_rn(sum, factor), back[i]);
            };
            const bool is_mine = entry[i] >= 0;
            const float a = is_mine ? summed(e, low[i]) : 0.0f;
            const float b = Out::EACH == 8 && is_mine ? summed(e + 8, high[i]) : 0.0f;
            out.finish(a, b, item[i], entry[i], strip % stack.n_strips, e, is_mine, lane);
        }
    }
}

}  // namespace

// Products of halved rows, in packed rows or with what stands between; and of what stands between. grid: blocks that
// share the strips of all items.
#define MOE_FEW(name, Type)                                                                                           \
    KERNEL_OF(512, moe_few_pairs__##name)                                                                             \
    (const Batch*, WORK, STACK, const u8* halves, const float* backs, int n_used, BETWEEN, int n, float* hidden,      \
     u32* largests, const u8* later, int later_step, int later_bytes) {                                               \
        moe_few<Type>(WORK_OF, STACK_OF, Halved{halves, backs, n_used}, Paired{BETWEEN_OF, n, hidden, largests},      \
                      {later, later_step, later_bytes});                                                              \
    }                                                                                                                 \
    KERNEL_OF(512, moe_few_rows__##name)                                                                              \
    (const Batch*, WORK, STACK, const u8* halves, const float* backs, int n_used, float* y) {                         \
        moe_few<Type>(WORK_OF, STACK_OF, Halved{halves, backs, n_used}, Packed{y, n_strips * 16}, {nullptr, 0, 0});   \
    }                                                                                                                 \
    KERNEL_OF(512, moe_few_hidden__##name)                                                                            \
    (const Batch*, WORK, STACK, const float* x, const u32* largests, int n, float* y) {                               \
        moe_few<Type>(WORK_OF, STACK_OF, Hidden{x, largests, n}, Packed{y, n_strips * 16}, {nullptr, 0, 0});          \
    }
#define MOE_FEW_OF(name, Type) MOE_FEW(name, Type)
#ifdef WOOLLY_TYPE
MOE_FEW_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(MOE_FEW)
#endif
