// Products of experts for few rows, of which the weights of chosen experts are read once. The arithmetic is that of
// linears.cuh: 16 slices of the columns, a chain of m16n8k16 in each, and the slices in order.
//
// Entries of an expert go together, up to 8 in an item. Blocks have equal parts of the strips of all items, one after
// another; a warp has one slice of each, whose columns of the item's rows stay in its registers.
#include "experts/moe.cuh"
#include "primitives/ring.cuh"

namespace {

// How far rows of sums are apart in shared memory: so that lanes that store sums do not meet in a bank.
constexpr int APART = 20;
// Blocks of a multiprocessor: while one waits for its sums, the other computes.
#ifndef FEW_BLOCKS
#define FEW_BLOCKS 2
#endif
struct Work {
    const Bundle* items;
    const int* members;
    int n_used, group, n_held, n_stages, n_early;  // an item has up to 2^group rows; n_held: strips of a round
};
#define WORK const Bundle *items, const int *members, int n_used, int group, int n_held, int n_stages, int n_early
#define WORK_OF {items, members, n_used, group, n_held, n_stages, n_early}

// A warp's way over slices of the strips of its block: `n_active` slices on each time, so that a warp has the same
// slice of all strips if a strip's slices divide that number.
struct Place {
    int strip, slice, item, in_item;  // strip: counted over all items, in_item: in its own

    __device__ __forceinline__ void start(int begin, int unit, int n_slices, int n_strips) {
        strip = begin + unit / n_slices, slice = unit % n_slices;
        item = strip / n_strips, in_item = strip - item * n_strips;
    }
    __device__ __forceinline__ void go(int n_active, int n_slices, int n_strips) {
        int n = 0;
        for (slice += n_active; slice >= n_slices; slice -= n_slices) n++;
        strip += n, in_item += n;
        for (; in_item >= n_strips; in_item -= n_strips) item++;
    }
};

// Tiles of a warp from the strips of its block, as they come through a ring.
template <class T>
struct Strips {
    const Stack& stack;
    const Bundle* items;
    const int n_slices, n_active, lane;  // n_active: warps that share slices
    int begin, end;                      // strips of the block, counted over all items
    Ring ring;
    Place ahead;
    const u8 *base, *next;
    int left, held, stage, phase;  // left: tiles of the slice; held: the item of `base`

    __device__ __forceinline__ Strips(const Stack& stack, const Bundle* items, int n_warps, int lane)
        : stack(stack),
          items(items),
          n_slices(min(stack.n_tiles, N_SLICES)),
          n_active(n_warps < n_slices ? n_warps : n_warps / n_slices * n_slices),
          lane(lane),
          held(-1),
          stage(0),
          phase(0) {}
    __device__ __forceinline__ void start(int warp, int n_items) {
        const u32 total = u32(n_items) * stack.n_strips;
        begin = int(u64(total) * blockIdx.x / gridDim.x), end = int(u64(total) * (blockIdx.x + 1) / gridDim.x);
        ahead.start(begin, warp, n_slices, stack.n_strips);
        if (warp >= n_active) ahead.strip = end;
        seek();
    }
    __device__ __forceinline__ void seek() {
        next = nullptr;
        if (ahead.strip >= end) return;
        if (ahead.item != held) held = ahead.item, base = stack.of(__ldcg(&items[1 + held].expert));
        const int tile = slice_start(ahead.slice, stack.n_tiles);
        left = slice_start(ahead.slice + 1, stack.n_tiles) - tile;
        next = base + (u32(ahead.in_item) * stack.n_tiles + tile) * u64(Tile<T>::bytes);
    }
    __device__ __forceinline__ void fetch(int to) {
        ring.fetch(to, next, Tile<T>::bytes, lane);
        if (next == nullptr) return;
        next += Tile<T>::bytes;
        if (--left == 0) ahead.go(n_active, n_slices, stack.n_strips), seek();
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
            const int k = tile * 256 + t * 64 + i * 8;
            to[i] = {two(row, k, times), two(row, k + 2, times), two(row, k + 4, times), two(row, k + 6, times)};
        }
    }
    __device__ __forceinline__ float back(int entry) const { return power(entry).back; }
};

// What becomes of sums: numbers of packed rows, [entries][stride] ...
struct Packed {
    float* y;
    int stride;
    static constexpr int EACH = 16;
    __device__ __forceinline__ void finish(float low, float, int, int entry, int strip, int e, bool is_mine,
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
    __device__ __forceinline__ void finish(float gate, float up, int expert, int entry, int strip, int e, bool is_mine,
                                           int lane) const {
        const int column = strip * 8 + e;
        float v = 0.0f;
        is_mine = is_mine && column < n;
        if (is_mine) {
            v = between.of(gate, up, entry, expert, n, column);
            hidden[u64(entry) * n + column] = v;
        }
        float largest = fmaxf(0.0f, fabsf(v));
#pragma unroll
        for (int i = 4; i; i /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, i));
        // atomicMax does not depend on the order of threads.
        if (is_mine && (lane & 7) == 0) atomicMax(largests + entry, __float_as_uint(largest));
    }
};

// An element that a thread finishes: its item, its entry or -1, its factors and the inverse of its row's power.
struct Element {
    int expert, entry, in_item;
    float low, high, back;
};

// Element `at` of those of the strips from `first` on. EACH: elements of a strip.
template <bool IS_ONE, class T, int EACH, class Rows>
__device__ __forceinline__ Element element_of(const Work& work, const Stack& stack, const Rows& rows, int at, int first,
                                              int n_elements) {
    Element one = {0, -1, 0, 0, 0, 0};
    if (at >= n_elements) return one;
    const int strip = first + ((at / EACH) >> work.group), row = (at / EACH) & ((1 << work.group) - 1);
    const int number = strip / stack.n_strips;
    one.in_item = strip - number * stack.n_strips;
    if (IS_ONE) {
        one.expert = __ldcg(&work.items[1 + number].expert), one.entry = number;
    } else {
        const int4 v = __ldcg(reinterpret_cast<const int4*>(work.items + 1 + number));
        one.expert = v.x;
        if (row >= v.z) return one;
        one.entry = __ldcg(work.members + v.y + row);
    }
    const float* factors =
        reinterpret_cast<const float*>(stack.of(one.expert) + u64(stack.n_strips) * stack.n_tiles * Tile<T>::bytes) +
        one.in_item * 16 + at % EACH;
    one.low = factors[0];
    if (EACH == 8) one.high = factors[8];
    one.back = rows.back(one.entry);
    return one;
}

// IS_ONE: there is one row, and the items are its entries.
template <bool IS_ONE, class T, class Rows, class Out>
__device__ __forceinline__ void moe_few(const Work& work, const Stack& stack, const Rows& rows, const Out& out) {
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x & 31, warp = __shfl_sync(ALL_LANES, int(threadIdx.x) >> 5, 0);
    const int n_threads = blockDim.x, g = lane >> 2, t = lane & 3, n_tiles = stack.n_tiles, n_group = 1 << work.group;
    Strips<T> strips(stack, work.items, n_threads >> 5, lane);
    const int n_slices = strips.n_slices, apart = n_group * APART, n_place = work.n_held * n_slices * apart;
    // Shared: barriers in the second KB, sums [place][strip][slice][row][APART], rings.
    float* sums = reinterpret_cast<float*>(shared + 2048);
    strips.ring.start(shared, reinterpret_cast<u8*>(sums + 2 * n_place), warp, lane, work.n_stages, Tile<T>::bytes);
    const int n_early = Rows::IS_EARLY ? work.n_early : 0;
    if (!Rows::IS_EARLY) wait_for_kernel_before();
    let_next_kernel_begin();
    strips.start(warp, IS_ONE ? work.n_used : __ldcg(&work.items[0].expert));
#pragma unroll 1
    for (int i = 0; i < n_early; i++) strips.fetch(i);
    if (Rows::IS_EARLY) wait_for_kernel_before();
#pragma unroll 1
    for (int i = n_early; i < work.n_stages; i++) strips.fetch(i);
    Words4 columns[8];
    int held_item = -1, held_tile = -1, place = 0;
    Place mine;
    mine.start(strips.begin, warp, n_slices, stack.n_strips);
    if (warp >= strips.n_active) mine.strip = strips.end;
#pragma unroll 1
    for (int first = strips.begin; first < strips.end; first += work.n_held, place ^= 1) {
        float* held = sums + place * n_place;
        const int end = min(first + work.n_held, strips.end), n_elements = ((end - first) * Out::EACH) << work.group;
        // A single row waits for nothing but tiles.
        Element one = {0, -1, 0, 0, 0, 0};
        if (IS_ONE) one = element_of<IS_ONE, T, Out::EACH>(work, stack, rows, threadIdx.x, first, n_elements);
#pragma unroll 1
        for (; mine.strip < end; mine.go(strips.n_active, n_slices, stack.n_strips)) {
            float acc[4] = {0, 0, 0, 0};
#pragma unroll 1
            for (int tile = slice_start(mine.slice, n_tiles); tile < slice_start(mine.slice + 1, n_tiles); tile++) {
                if ((!IS_ONE || Rows::IS_EARLY) && mine.item != held_item) held_item = mine.item, held_tile = -1;
                if (tile != held_tile) {
                    held_tile = tile;
                    int entry = mine.item;
                    if (!IS_ONE) {
                        const int4 v = __ldcg(reinterpret_cast<const int4*>(work.items + 1 + mine.item));
                        entry = __ldcg(work.members + v.y + min(g, v.z - 1));  // rows behind the last repeat it
                    }
                    rows.load(columns, entry, tile, n_tiles, t);
                }
                strips.multiply(acc, columns);
            }
            float* sum = held + ((mine.strip - first) * n_slices + mine.slice) * apart + 2 * t * APART + g;
            if (2 * t < n_group) sum[0] = acc[0], sum[8] = acc[2];
            if (2 * t + 1 < n_group) sum[APART] = acc[1], sum[APART + 8] = acc[3];
        }
        __syncthreads();  // double-buffered sums: no barrier needed here
#pragma unroll 1
        for (int base = 0; base < n_elements; base += n_threads) {
            const int at = base + int(threadIdx.x), row = (at / Out::EACH) & (n_group - 1);
            if (!IS_ONE || base) one = element_of<IS_ONE, T, Out::EACH>(work, stack, rows, at, first, n_elements);
            auto summed = [&](int element, float factor) {
                const float* from = held + ((at / Out::EACH) >> work.group) * n_slices * apart + row * APART + element;
                float sum = 0;
#pragma unroll 4
                for (int s = 0; s < n_slices; s++) sum += from[s * apart];
                return __fmul_rn(__fmul_rn(sum, factor), one.back);
            };
            const bool is_mine = one.entry >= 0;
            const float a = is_mine ? summed(at % Out::EACH, one.low) : 0.0f;
            const float b = Out::EACH == 8 && is_mine ? summed(at % Out::EACH + 8, one.high) : 0.0f;
            out.finish(a, b, one.expert, one.entry, one.in_item, at % Out::EACH, is_mine, lane);
        }
    }
}

}  // namespace

// Products of halved rows, in packed rows or with what stands between; and of what stands between. grid: blocks that
// share the strips of all items.
#define MOE_PAIRS(declared, Type, IS_ONE)                                                                    \
    declared(const Batch*, WORK, STACK, const u8* halves, const float* backs, BETWEEN, int n, float* hidden, \
             u32* largests) {                                                                                \
        moe_few<IS_ONE, Type>(WORK_OF, STACK_OF, Halved{halves, backs, n_used},                              \
                              Paired{BETWEEN_OF, n, hidden, largests});                                      \
    }
#define MOE_FEW(name, Type)                                                                               \
    MOE_PAIRS(KERNEL_OF(512, moe_one_pairs__##name), Type, true)                                          \
    MOE_PAIRS(KERNEL_MANY(512, FEW_BLOCKS, moe_few_pairs__##name), Type, false)                           \
    KERNEL_MANY(512, FEW_BLOCKS, moe_few_rows__##name)                                                    \
    (const Batch*, WORK, STACK, const u8* halves, const float* backs, float* y) {                         \
        moe_few<false, Type>(WORK_OF, STACK_OF, Halved{halves, backs, n_used}, Packed{y, n_strips * 16}); \
    }                                                                                                     \
    KERNEL_MANY(512, FEW_BLOCKS, moe_few_hidden__##name)                                                  \
    (const Batch*, WORK, STACK, const float* x, const u32* largests, int n, float* y) {                   \
        moe_few<false, Type>(WORK_OF, STACK_OF, Hidden{x, largests, n}, Packed{y, n_strips * 16});        \
    }
#define MOE_FEW_OF(name, Type) MOE_FEW(name, Type)
#ifdef WOOLLY_TYPE
MOE_FEW_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(MOE_FEW)
#endif
