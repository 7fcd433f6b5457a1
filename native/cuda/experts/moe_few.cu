// Products of experts for few rows, of which the weights of chosen experts are read once. The arithmetic is that of
// linears.cuh: 16 slices of the columns, a chain of m16n8k16 in each, and the slices in order.
//
// Entries of an expert go together, up to 8 in an item. Blocks have equal parts of the strips of all items, one after
// another; a warp has one slice of each, whose columns of the item's rows stay in its registers.
#include "experts/moe_items.cuh"
#include "linears/tile_stream.cuh"

namespace {

// How far rows of sums are apart in shared memory: so that lanes that store sums do not meet in a bank.
constexpr int APART = 20;
// Blocks of a multiprocessor: while one waits for its sums, the other computes.
#ifndef FEW_BLOCKS
#define FEW_BLOCKS 2
#endif
struct Work {
    Source from;
    // An item has up to 2^group rows; n_near: most items of a block; n_space: bytes of sums; n_held: strips of a round.
    int group, n_near, n_space, n_held, n_stages, n_early;
};
#define WORK SOURCE, int group, int n_near, int n_space, int n_held, int n_stages, int n_early
#define WORK_OF {SOURCE_OF(logits == nullptr ? 0 : b->rows(kind)), group, n_near, n_space, n_held, n_stages, n_early}

// A warp's way over slices of the strips of its block: `n_active` slices on each time, so that a warp has the same
// slice of all strips if a strip's slices divide that number.
struct Place {
    int panel, slice, item;  // strip: counted over all items

    __device__ __forceinline__ void start(int begin, int unit, int n_slices, int n_panels) {
        panel = begin + unit / n_slices, slice = unit % n_slices, item = panel / n_panels;
    }
    __device__ __forceinline__ void go(int n_active, int n_slices, int n_panels) {
        for (slice += n_active; slice >= n_slices; slice -= n_slices) panel++;
        while (panel >= (item + 1) * n_panels) item++;
    }
};

// Tiles of a warp from the strips of its block, as they come through a ring.
template <class T>
struct PanelStream {
    const Stack& stack;
    const Near* near;
    const int n_slices, n_active, lane;  // n_active: warps that share slices
    int begin, end, first;               // strips of the block, counted over all items, and their first item
    Ring ring;
    Place ahead;
    const u8 *base, *next;
    int left, held, stage, phase;  // left: tiles of the slice; held: the item of `base`

    __device__ __forceinline__ PanelStream(const Stack& stack, const Near* near, int n_warps, int lane)
        : stack(stack),
          near(near),
          n_slices(min(stack.n_tiles, N_SLICES)),
          n_active(n_warps < n_slices ? n_warps : n_warps / n_slices * n_slices),
          lane(lane),
          held(-1),
          stage(0),
          phase(0) {}
    __device__ __forceinline__ void start(int warp, const Own& own) {
        begin = own.begin, end = own.end, first = own.first;
        ahead.start(begin, warp, n_slices, stack.n_panels);
        if (warp >= n_active) ahead.panel = end;
        seek();
    }
    __device__ __forceinline__ void seek() {
        next = nullptr;
        if (ahead.panel >= end) return;
        if (ahead.item != held) held = ahead.item, base = stack.of(near[held - first].expert);
        const int tile = slice_start(ahead.slice, stack.n_tiles);
        left = slice_start(ahead.slice + 1, stack.n_tiles) - tile;
        next = base + (u32(ahead.panel - ahead.item * stack.n_panels) * stack.n_tiles + tile) * u64(Tile<T>::bytes);
    }
    __device__ __forceinline__ void fetch(int to) {
        ring.fetch(to, next, Tile<T>::bytes, lane);
        if (next == nullptr) return;
        next += Tile<T>::bytes;
        if (--left == 0) ahead.go(n_active, n_slices, stack.n_panels), seek();
    }
    __device__ __forceinline__ void multiply(float (&acc)[4], const Words4 (&columns)[8]) {
        const u8* packed = ring.memory + stage * Tile<T>::bytes;
        ring.wait(stage, phase);
        const typename Tile<T>::Scales scales = Tile<T>::scales(packed, lane);
#pragma unroll
        for (int k16 = 0; k16 < 16; k16++) {
            u32 a[4];
            Tile<T>::unpack(packed, scales, lane, k16, a);
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
    static constexpr bool IS_EARLY = false;
    __device__ __forceinline__ void load(Words4 (&to)[8], const Near& item, int i, int tile, int n_tiles, int t) const {
        const u8* from = halves + (u64(item.rows[i]) * n_tiles + tile) * 512 + t * 16;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint4 v = __ldcg(reinterpret_cast<const uint4*>(from + i * 64));
            to[i] = {v.x, v.y, v.z, v.w};
        }
    }
    __device__ __forceinline__ float back(int row) const { return __ldcg(backs + row); }
};
// ... or of rows of f32 whose largest magnitude is known.
struct Hidden {
    const float* x;
    const u32* largests;
    int n;
    static constexpr bool IS_EARLY = true;  // items are known before the kernel that this one waits for
    __device__ __forceinline__ float at(const float* row, int k) const { return k < n ? __ldcg(row + k) : 0.0f; }
    __device__ __forceinline__ void load(Words4 (&to)[8], Near& item, int i, int tile, int, int t) const {
        const float* row = x + u64(item.entries[i]) * n;
        const RowScale row_scale = row_scale_for(__uint_as_float(__ldcg(largests + item.entries[i])));
        const float times = row_scale.value;
        if (t == 0) item.backs[i] = row_scale.inverse;  // other warps write the same
        const bool is_even = (n & 7) == 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int k = tile * 256 + t * 64 + j * 8;
            float4 low = make_float4(0, 0, 0, 0), high = low;
            if (is_even) {
                if (k < n) {
                    low = __ldcg(reinterpret_cast<const float4*>(row + k));
                    high = __ldcg(reinterpret_cast<const float4*>(row + k + 4));
                }
            } else {
                low = make_float4(at(row, k), at(row, k + 1), at(row, k + 2), at(row, k + 3));
                high = make_float4(at(row, k + 4), at(row, k + 5), at(row, k + 6), at(row, k + 7));
            }
            to[j] = {to_half2_saturated(low.x * times, low.y * times), to_half2_saturated(low.z * times, low.w * times),
                     to_half2_saturated(high.x * times, high.y * times),
                     to_half2_saturated(high.z * times, high.w * times)};
        }
    }
    __device__ __forceinline__ static float back(int) { return 0.0f; }  // `load` brings it
};

// What becomes of sums: numbers of packed rows, [entries][stride] ...
struct Packed {
    float* y;
    int stride;
    static constexpr int EACH = 16;
    static constexpr bool MAY_CHOOSE = false;
    __device__ __forceinline__ void finish(float low, float, int, int entry, int panel, int e, bool is_mine,
                                           int) const {
        if (is_mine) y[u64(entry) * stride + panel * 16 + e] = low;
    }
};
// ... or what stands between the products, of pairs.
struct Paired {
    Between between;
    int n;
    float* hidden;
    u32* largests;
    static constexpr int EACH = 8;
    static constexpr bool MAY_CHOOSE = true;  // the experts of rows
    __device__ __forceinline__ void finish(float gate, float up, int expert, int entry, int panel, int e, bool is_mine,
                                           int lane) const {
        const int column = panel * 8 + e;
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

// Brings the factors of the rows of weights of a round's strips, while the block multiplies: they lie far behind tiles.
template <class T>
__device__ __forceinline__ void bring_factors(const PanelStream<T>& panels, int first, int end, float* to) {
    const Stack& stack = panels.stack;
#pragma unroll 1
    for (int i = threadIdx.x; i < (end - first) * 4; i += int(blockDim.x)) {
        const int panel = first + (i >> 2), item = panel / stack.n_panels;
        const u8* tiles = stack.of(panels.near[item - panels.first].expert);
        const float* factors =
            reinterpret_cast<const float*>(tiles + u64(stack.n_panels) * stack.n_tiles * Tile<T>::bytes);
        cp_async16(to + 4 * i, factors + (panel - item * stack.n_panels) * 16 + i % 4 * 4);
    }
    cp_async_commit();
}

// Waits for the factors of a round, in which the warp has multiplied `n_done` tiles.
__device__ __forceinline__ void await_factors(int n_stages, int n_done) {
    // Without bulk copies tiles are groups of copies, too: those that were asked for before the factors are there.
    if (!WOOLLY_BULK && n_done >= n_stages - 1)
        cp_async_wait_stage(n_stages);
    else
        cp_async_wait<0>();
}

// What the threads of a block finish: elements of the strips of a round.
template <class T, class Out>
__device__ __forceinline__ void finish_round(const PanelStream<T>& panels, int group, int first, int end,
                                             const float* sums, const float* factors, const Out& out) {
    const Stack& stack = panels.stack;
    const int n_elements = ((end - first) * Out::EACH) << group, apart = APART << group, lane = threadIdx.x & 31;
#pragma unroll 1
    for (int base = 0; base < n_elements; base += int(blockDim.x)) {
        const int at = base + int(threadIdx.x), row = (at / Out::EACH) & ((1 << group) - 1), e = at % Out::EACH;
        const int place = (at / Out::EACH) >> group, panel = first + place, number = panel / stack.n_panels;
        const Near& item = panels.near[number - panels.first];
        const bool is_mine = at < n_elements && row < item.n_rows;
        auto summed = [&](int element) {
            const float* from = sums + place * panels.n_slices * apart + row * APART + element;
            float sum = 0;
#pragma unroll 4
            for (int s = 0; s < panels.n_slices; s++) sum += from[s * apart];
            return __fmul_rn(__fmul_rn(sum, factors[place * 16 + element]), item.backs[row]);
        };
        const float a = is_mine ? summed(e) : 0.0f, b = Out::EACH == 8 && is_mine ? summed(e + 8) : 0.0f;
        out.finish(a, b, item.expert, is_mine ? item.entries[row] : 0, panel - number * stack.n_panels, e, is_mine,
                   lane);
    }
}

// IS_ONE: there is one row, and the items are its entries.
template <bool IS_ONE, class T, class Rows, class Out>
__device__ __forceinline__ void moe_few(const Work& work, const Stack& stack, const Rows& rows, const Out& out) {
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x & 31, warp = __shfl_sync(ALL_LANES, int(threadIdx.x) >> 5, 0);
    const int g = lane >> 2, t = lane & 3, n_tiles = stack.n_tiles, n_group = 1 << work.group;
    // Shared: barriers in the second KB, items, factors of two rounds, sums [place][strip][slice][row][APART], rings.
    Near* near = reinterpret_cast<Near*>(shared + 2048);
    PanelStream<T> panels(stack, near, int(blockDim.x) >> 5, lane);
    const int n_slices = panels.n_slices, apart = n_group * APART, n_place = work.n_held * n_slices * apart;
    float* factors = reinterpret_cast<float*>(near + work.n_near);
    float* sums = factors + 2 * work.n_held * 16;
    u8* space = reinterpret_cast<u8*>(sums);  // until there are sums
    panels.ring.start(shared, space + work.n_space, warp, lane, work.n_stages, Tile<T>::bytes);
    const int n_early = Rows::IS_EARLY ? work.n_early : 0;
    if (!Rows::IS_EARLY) wait_for_previous_kernel();
    launch_dependents();
    const Own own = bring_items<IS_ONE, Out::MAY_CHOOSE>(work.from, stack.n_panels, near, space, rows);
    panels.start(warp, own);
    bring_factors(panels, panels.begin, min(panels.begin + work.n_held, panels.end), factors);
#pragma unroll 1
    for (int i = 0; i < n_early; i++) panels.fetch(i);
    if (Rows::IS_EARLY) wait_for_previous_kernel();
    Words4 columns[8];
    int held = -1, place = 0;  // held: which columns are
    auto which = [&](int number, int tile) { return (IS_ONE && !Rows::IS_EARLY ? 0 : number) * n_tiles + tile; };
    auto load = [&](int number, int tile) {
        held = which(number, tile);
        Near& item = near[number - panels.first];  // rows behind its last repeat it
        rows.load(columns, item, min(g, item.n_rows - 1), tile, n_tiles, t);
    };
    Place mine;
    mine.start(panels.begin, warp, n_slices, stack.n_panels);
    if (warp >= panels.n_active) mine.panel = panels.end;
    // What is small comes before tiles, behind which it would wait.
    if (mine.panel < panels.end) load(mine.item, slice_start(mine.slice, n_tiles));
#pragma unroll 1
    for (int i = n_early; i < work.n_stages; i++) panels.fetch(i);
#pragma unroll 1
    for (int first = panels.begin; first < panels.end; first += work.n_held, place ^= 1) {
        float* of_round = sums + place * n_place;
        const int end = min(first + work.n_held, panels.end);
        int n_done = 0;  // tiles of the round
#pragma unroll 1
        for (; mine.panel < end; mine.go(panels.n_active, n_slices, stack.n_panels)) {
            float acc[4] = {0, 0, 0, 0};
#pragma unroll 1
            for (int tile = slice_start(mine.slice, n_tiles); tile < slice_start(mine.slice + 1, n_tiles); tile++) {
                if (which(mine.item, tile) != held) load(mine.item, tile);
                panels.multiply(acc, columns);
                n_done++;
            }
            float* sum = of_round + ((mine.panel - first) * n_slices + mine.slice) * apart + 2 * t * APART + g;
            if (2 * t < n_group) sum[0] = acc[0], sum[8] = acc[2];
            if (2 * t + 1 < n_group) sum[APART] = acc[1], sum[APART + 8] = acc[3];
        }
        await_factors(work.n_stages, n_done);
        __syncthreads();  // double-buffered sums: no barrier needed behind them
        const int n_factors = work.n_held * 16;
        if (end < panels.end)
            bring_factors(panels, end, min(end + work.n_held, panels.end), factors + (place ^ 1) * n_factors);
        finish_round(panels, work.group, first, end, of_round, factors + place * n_factors, out);
    }
}

}  // namespace

// Products of halved rows, in packed rows or with what stands between; and of what stands between. grid: blocks that
// share the strips of all items.
#define MOE_PAIRS(declared, Type, IS_ONE)                                                                         \
    declared(const Batch* b, WORK, STACK, const u8* halves, const float* backs, BETWEEN, int n, float* hidden,    \
             u32* largests) {                                                                                     \
        moe_few<IS_ONE, Type>(WORK_OF, STACK_OF, Halved{halves, backs}, Paired{BETWEEN_OF, n, hidden, largests}); \
    }
#define MOE_FEW(name, Type)                                                                        \
    MOE_PAIRS(KERNEL_THREADS(512, moe_one_pairs__##name), Type, true)                              \
    MOE_PAIRS(KERNEL_BOUNDS(512, FEW_BLOCKS, moe_few_pairs__##name), Type, false)                  \
    KERNEL_BOUNDS(512, FEW_BLOCKS, moe_few_rows__##name)                                           \
    (const Batch* b, WORK, STACK, const u8* halves, const float* backs, float* y) {                \
        moe_few<false, Type>(WORK_OF, STACK_OF, Halved{halves, backs}, Packed{y, n_panels * 16});  \
    }                                                                                              \
    KERNEL_BOUNDS(512, FEW_BLOCKS, moe_few_hidden__##name)                                         \
    (const Batch* b, WORK, STACK, const float* x, const u32* largests, int n, float* y) {          \
        moe_few<false, Type>(WORK_OF, STACK_OF, Hidden{x, largests, n}, Packed{y, n_panels * 16}); \
    }
#define MOE_FEW_OF(name, Type) MOE_FEW(name, Type)
#ifdef WOOLLY_TYPE
MOE_FEW_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(MOE_FEW)
#endif
