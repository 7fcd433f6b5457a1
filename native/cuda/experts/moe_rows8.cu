// Expert products of small batches; the weights of each selected expert are read once. Arithmetic of linears.cuh: 16
// slices, each a chain of m16n8k16, added in order.
//
// Items hold up to 8 entries of one expert. The panels of all items are divided evenly among blocks. A warp has one
// slice of each panel; its columns of the item's rows stay in registers.
#include "experts/moe_routing.cuh"
#include "linears/tile_stream.cuh"

namespace {

// Floats between rows of sums in shared memory: avoids bank conflicts of the stores.
constexpr int SUM_PITCH = 20;
// Blocks per multiprocessor: one computes while the other waits for its sums.
#ifndef ROWS8_BLOCKS
#define ROWS8_BLOCKS 2
#endif
struct LaunchParams {
    Routing from;
    // group: log2 of rows per item; max_items: items of a block; sum_bytes: bytes of sums
    int group, max_items, sum_bytes, panels_per_round, n_stages, n_prefetched;
};
#define LAUNCH_PARAMS \
    ROUTING_PARAMS, int group, int max_items, int sum_bytes, int panels_per_round, int n_stages, int n_prefetched
#define LAUNCH_ARGS                                       \
    {ROUTING_ARGS(logits == nullptr ? 0 : b->rows(kind)), \
     group,                                               \
     max_items,                                           \
     sum_bytes,                                           \
     panels_per_round,                                    \
     n_stages,                                            \
     n_prefetched}

// Iterates over the slices of the block's panels, `n_active` at a time. If n_active is a multiple of n_slices, a warp
// has the same slice of all panels.
struct SliceIterator {
    int panel, slice, item;  // panel: counted over all items

    __device__ __forceinline__ void start(int begin, int unit, int n_slices, int n_panels) {
        panel = begin + unit / n_slices, slice = unit % n_slices, item = panel / n_panels;
    }
    __device__ __forceinline__ void go(int n_active, int n_slices, int n_panels) {
        for (slice += n_active; slice >= n_slices; slice -= n_slices) panel++;
        while (panel >= (item + 1) * n_panels) item++;
    }
};

// Streams the tiles of a warp from the panels of its block.
template <class T>
struct PanelStream {
    const ExpertWeights& expert_weights;
    const SharedItem* items_of_block;
    const int n_slices, n_active, lane;  // n_active: warps that share slices
    int begin, end, first;               // panels of the block, counted over all items, and their first item
    Ring ring;
    SliceIterator ahead;
    const u8 *base, *next;
    int left, held, stage, phase;  // left: tiles left in the slice; held: item of `base`

    __device__ __forceinline__ PanelStream(const ExpertWeights& expert_weights, const SharedItem* items_of_block,
                                           int n_warps, int lane)
        : expert_weights(expert_weights),
          items_of_block(items_of_block),
          n_slices(min(expert_weights.n_tiles, N_SLICES)),
          n_active(n_warps < n_slices ? n_warps : n_warps / n_slices * n_slices),
          lane(lane),
          held(-1),
          stage(0),
          phase(0) {}
    __device__ __forceinline__ void start(int warp, const PanelRange& range) {
        begin = range.begin, end = range.end, first = range.first;
        ahead.start(begin, warp, n_slices, expert_weights.n_panels);
        if (warp >= n_active) ahead.panel = end;
        seek();
    }
    __device__ __forceinline__ void seek() {
        next = nullptr;
        if (ahead.panel >= end) return;
        if (ahead.item != held) held = ahead.item, base = expert_weights.of(items_of_block[held - first].expert);
        const int tile = slice_start(ahead.slice, expert_weights.n_tiles);
        left = slice_start(ahead.slice + 1, expert_weights.n_tiles) - tile;
        next = base + (u32(ahead.panel - ahead.item * expert_weights.n_panels) * expert_weights.n_tiles + tile) *
                          u64(Tile<T>::bytes);
    }
    __device__ __forceinline__ void fetch(int to) {
        ring.fetch(to, next, Tile<T>::bytes, lane);
        if (next == nullptr) return;
        next += Tile<T>::bytes;
        if (--left == 0) ahead.go(n_active, n_slices, expert_weights.n_panels), seek();
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

// Loads B fragments of f16 rows.
struct F16Rows {
    const u8* x_f16;
    const float* inv_scales;
    static constexpr bool ITEMS_READY_EARLY = false;
    __device__ __forceinline__ void load(Words4 (&to)[8], const SharedItem& item, int i, int tile, int n_tiles,
                                         int t) const {
        const u8* from = x_f16 + (u64(item.rows[i]) * n_tiles + tile) * 512 + t * 16;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint4 v = __ldcg(reinterpret_cast<const uint4*>(from + i * 64));
            to[i] = {v.x, v.y, v.z, v.w};
        }
    }
    __device__ __forceinline__ float inv_scale(int row) const { return __ldcg(inv_scales + row); }
};
// Loads B fragments of f32 rows with known largest magnitude.
struct HiddenRows {
    const float* x;
    const u32* max_abs;
    int n;
    static constexpr bool ITEMS_READY_EARLY = true;  // items are known before the previous kernel ends
    __device__ __forceinline__ float at(const float* row, int k) const { return k < n ? __ldcg(row + k) : 0.0f; }
    __device__ __forceinline__ void load(Words4 (&to)[8], SharedItem& item, int i, int tile, int, int t) const {
        const float* row = x + u64(item.entries[i]) * n;
        const RowScale row_scale = row_scale_for(__uint_as_float(__ldcg(max_abs + item.entries[i])));
        const float times = row_scale.value;
        if (t == 0) item.inv_scales[i] = row_scale.inverse;  // other warps write the same value
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
    __device__ __forceinline__ static float inv_scale(int) { return 0.0f; }  // set by `load`
};

// Stores packed rows: [entries][stride].
struct StorePacked {
    float* y;
    int stride;
    static constexpr int PER_PANEL = 16;
    static constexpr bool MAY_CHOOSE = false;
    __device__ __forceinline__ void finish(float low, float, int, int entry, int panel, int e, bool is_active,
                                           int) const {
        if (is_active) y[u64(entry) * stride + panel * 16 + e] = low;
    }
};
// Stores the GLU of gate and up rows, and its largest magnitude.
struct StoreGlu {
    GluParams glu;
    int n;
    float* hidden;
    u32* max_abs;
    static constexpr int PER_PANEL = 8;
    static constexpr bool MAY_CHOOSE = true;  // may select experts
    __device__ __forceinline__ void finish(float gate, float up, int expert, int entry, int panel, int e,
                                           bool is_active, int lane) const {
        const int column = panel * 8 + e;
        float v = 0.0f;
        is_active = is_active && column < n;
        if (is_active) {
            v = glu.of(gate, up, entry, expert, n, column);
            hidden[u64(entry) * n + column] = v;
        }
        float row_max = fmaxf(0.0f, fabsf(v));
#pragma unroll
        for (int i = 4; i; i /= 2) row_max = fmaxf(row_max, __shfl_xor_sync(ALL_LANES, row_max, i));
        // atomicMax is independent of the order of threads
        if (is_active && (lane & 7) == 0) atomicMax(max_abs + entry, __float_as_uint(row_max));
    }
};

// Loads the row factors of a round's panels while the block multiplies; they are far from the tiles in memory.
template <class T>
__device__ __forceinline__ void load_factors(const PanelStream<T>& panels, int first, int end, float* to) {
    const ExpertWeights& expert_weights = panels.expert_weights;
#pragma unroll 1
    for (int i = threadIdx.x; i < (end - first) * 4; i += int(blockDim.x)) {
        const int panel = first + (i >> 2), item = panel / expert_weights.n_panels;
        const u8* tiles = expert_weights.of(panels.items_of_block[item - panels.first].expert);
        const float* factors = reinterpret_cast<const float*>(tiles + u64(expert_weights.n_panels) *
                                                                          expert_weights.n_tiles * Tile<T>::bytes);
        cp_async16(to + 4 * i, factors + (panel - item * expert_weights.n_panels) * 16 + i % 4 * 4);
    }
    cp_async_commit();
}

// Waits for the factors of a round, after `n_done` tiles of this warp.
__device__ __forceinline__ void wait_for_factors(int n_stages, int n_done) {
    // Without bulk copies, tiles are cp.async groups as well; those issued before the factors have arrived.
    if (!WOOLLY_BULK && n_done >= n_stages - 1)
        cp_async_wait_stage(n_stages);
    else
        cp_async_wait<0>();
}

// Sums the slices of the elements of a round and stores them.
template <class T, class Out>
__device__ __forceinline__ void finish_round(const PanelStream<T>& panels, int group, int first, int end,
                                             const float* sums, const float* factors, const Out& out) {
    const ExpertWeights& expert_weights = panels.expert_weights;
    const int n_elements = ((end - first) * Out::PER_PANEL) << group, sum_pitch = SUM_PITCH << group,
              lane = threadIdx.x & 31;
#pragma unroll 1
    for (int base = 0; base < n_elements; base += int(blockDim.x)) {
        const int at = base + int(threadIdx.x), row = (at / Out::PER_PANEL) & ((1 << group) - 1),
                  e = at % Out::PER_PANEL;
        const int buffer = (at / Out::PER_PANEL) >> group, panel = first + buffer,
                  number = panel / expert_weights.n_panels;
        const SharedItem& item = panels.items_of_block[number - panels.first];
        const bool is_active = at < n_elements && row < item.n_rows;
        auto summed = [&](int element) {
            const float* from = sums + buffer * panels.n_slices * sum_pitch + row * SUM_PITCH + element;
            float sum = 0;
#pragma unroll 4
            for (int s = 0; s < panels.n_slices; s++) sum += from[s * sum_pitch];
            return __fmul_rn(__fmul_rn(sum, factors[buffer * 16 + element]), item.inv_scales[row]);
        };
        const float a = is_active ? summed(e) : 0.0f, b = Out::PER_PANEL == 8 && is_active ? summed(e + 8) : 0.0f;
        out.finish(a, b, item.expert, is_active ? item.entries[row] : 0, panel - number * expert_weights.n_panels, e,
                   is_active, lane);
    }
}

// IS_ONE: a single row, whose entries are the items.
template <bool IS_ONE, class T, class Rows, class Out>
__device__ __forceinline__ void moe_rows8(const LaunchParams& launch, const ExpertWeights& expert_weights,
                                          const Rows& rows, const Out& out) {
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x & 31, warp = __shfl_sync(ALL_LANES, int(threadIdx.x) >> 5, 0);
    const int g = lane >> 2, t = lane & 3, n_tiles = expert_weights.n_tiles, n_group = 1 << launch.group;
    // Shared memory: mbarriers (bytes 1024 to 2047), items, factors of two rounds, sums
    // [buffer][panel][slice][row][SUM_PITCH], rings.
    SharedItem* items_of_block = reinterpret_cast<SharedItem*>(shared + 2048);
    PanelStream<T> panels(expert_weights, items_of_block, int(blockDim.x) >> 5, lane);
    const int n_slices = panels.n_slices, sum_pitch = n_group * SUM_PITCH,
              n_place = launch.panels_per_round * n_slices * sum_pitch;
    float* factors = reinterpret_cast<float*>(items_of_block + launch.max_items);
    float* sums = factors + 2 * launch.panels_per_round * 16;
    u8* space = reinterpret_cast<u8*>(sums);  // until the first sums
    panels.ring.start(shared, space + launch.sum_bytes, warp, lane, launch.n_stages, Tile<T>::bytes);
    const int n_prefetched = Rows::ITEMS_READY_EARLY ? launch.n_prefetched : 0;
    if (!Rows::ITEMS_READY_EARLY) wait_for_previous_kernel();
    launch_dependents();
    const PanelRange range =
        load_items<IS_ONE, Out::MAY_CHOOSE>(launch.from, expert_weights.n_panels, items_of_block, space, rows);
    panels.start(warp, range);
    load_factors(panels, panels.begin, min(panels.begin + launch.panels_per_round, panels.end), factors);
#pragma unroll 1
    for (int i = 0; i < n_prefetched; i++) panels.fetch(i);
    if (Rows::ITEMS_READY_EARLY) wait_for_previous_kernel();
    Words4 columns[8];
    int held = -1, buffer = 0;  // held: item and tile of `columns`
    auto which = [&](int number, int tile) {
        return (IS_ONE && !Rows::ITEMS_READY_EARLY ? 0 : number) * n_tiles + tile;
    };
    auto load = [&](int number, int tile) {
        held = which(number, tile);
        SharedItem& item = items_of_block[number - panels.first];  // rows past the last repeat it
        rows.load(columns, item, min(g, item.n_rows - 1), tile, n_tiles, t);
    };
    SliceIterator mine;
    mine.start(panels.begin, warp, n_slices, expert_weights.n_panels);
    if (warp >= panels.n_active) mine.panel = panels.end;
    // Small loads first: behind the tiles they would wait.
    if (mine.panel < panels.end) load(mine.item, slice_start(mine.slice, n_tiles));
#pragma unroll 1
    for (int i = n_prefetched; i < launch.n_stages; i++) panels.fetch(i);
#pragma unroll 1
    for (int first = panels.begin; first < panels.end; first += launch.panels_per_round, buffer ^= 1) {
        float* of_round = sums + buffer * n_place;
        const int end = min(first + launch.panels_per_round, panels.end);
        int n_done = 0;  // tiles of the round
#pragma unroll 1
        for (; mine.panel < end; mine.go(panels.n_active, n_slices, expert_weights.n_panels)) {
            float acc[4] = {0, 0, 0, 0};
#pragma unroll 1
            for (int tile = slice_start(mine.slice, n_tiles); tile < slice_start(mine.slice + 1, n_tiles); tile++) {
                if (which(mine.item, tile) != held) load(mine.item, tile);
                panels.multiply(acc, columns);
                n_done++;
            }
            float* sum = of_round + ((mine.panel - first) * n_slices + mine.slice) * sum_pitch + 2 * t * SUM_PITCH + g;
            if (2 * t < n_group) sum[0] = acc[0], sum[8] = acc[2];
            if (2 * t + 1 < n_group) sum[SUM_PITCH] = acc[1], sum[SUM_PITCH + 8] = acc[3];
        }
        wait_for_factors(launch.n_stages, n_done);
        __syncthreads();  // double-buffered sums: no barrier needed after reading them
        const int n_factors = launch.panels_per_round * 16;
        if (end < panels.end)
            load_factors(panels, end, min(end + launch.panels_per_round, panels.end),
                         factors + (buffer ^ 1) * n_factors);
        finish_round(panels, launch.group, first, end, of_round, factors + buffer * n_factors, out);
    }
}

}  // namespace

// moe_gemv_glu, moe_rows8_glu: GLU of the gate/up product of f16 rows; moe_rows8_up: product of f16 rows;
// moe_rows8_down: product of the f32 GLU output. Outputs of the last two are packed rows. grid: blocks that share the
// panels of all items.
#define MOE_GLU(declared, Type, IS_ONE)                                                                           \
    declared(const Batch* b, LAUNCH_PARAMS, EXPERT_WEIGHTS, const u8* x_f16, const float* inv_scales, GLU_PARAMS, \
             int n, float* hidden, u32* max_abs) {                                                                \
        moe_rows8<IS_ONE, Type>(LAUNCH_ARGS, EXPERT_WEIGHTS_ARGS, F16Rows{x_f16, inv_scales},                     \
                                StoreGlu{GLU_ARGS, n, hidden, max_abs});                                          \
    }
#define MOE_ROWS8(name, Type)                                                                              \
    MOE_GLU(KERNEL_THREADS(512, moe_gemv_glu__##name), Type, true)                                         \
    MOE_GLU(KERNEL_BOUNDS(512, ROWS8_BLOCKS, moe_rows8_glu__##name), Type, false)                          \
    KERNEL_BOUNDS(512, ROWS8_BLOCKS, moe_rows8_up__##name)                                                 \
    (const Batch* b, LAUNCH_PARAMS, EXPERT_WEIGHTS, const u8* x_f16, const float* inv_scales, float* y) {  \
        moe_rows8<false, Type>(LAUNCH_ARGS, EXPERT_WEIGHTS_ARGS, F16Rows{x_f16, inv_scales},               \
                               StorePacked{y, n_panels * 16});                                             \
    }                                                                                                      \
    KERNEL_BOUNDS(512, ROWS8_BLOCKS, moe_rows8_down__##name)                                               \
    (const Batch* b, LAUNCH_PARAMS, EXPERT_WEIGHTS, const float* x, const u32* max_abs, int n, float* y) { \
        moe_rows8<false, Type>(LAUNCH_ARGS, EXPERT_WEIGHTS_ARGS, HiddenRows{x, max_abs, n},                \
                               StorePacked{y, n_panels * 16});                                             \
    }
#define MOE_ROWS8_OF(name, Type) MOE_ROWS8(name, Type)
#ifdef WOOLLY_TYPE
MOE_ROWS8_OF(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(MOE_ROWS8)
#endif
