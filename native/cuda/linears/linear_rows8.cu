// Products of 2 to 8 rows, as linear_gemv.cu: the rows are operand B of mma, whose 8 columns cost as much as one.
//
// From three rows on, the first blocks norm and convert one row each and publish it in B fragment order; a counter
// tells the other blocks. A separate kernel would cost a launch and a wait.
//
// Rows of up to 4,096 columns stay in registers. Longer rows are in shared memory, which 8 of them would fill: on
// Hopper they use clusters of two blocks, each with half of the slices, that read each other's sums.
#include "linears/small_batch.cuh"

namespace {

// Floats between rows of sums in shared memory: avoids bank conflicts of the stores.
constexpr int SUM_PITCH = 20;

// Norms all rows and converts them to f16, each row by ROW_THREADS / FUSED_ROWS threads; calls on_loaded() after the
// loads are issued.
template <int FUSED_ROWS, class OnLoaded>
__device__ __forceinline__ void convert_rows(const SmallBatch& input, int n_rows, int n_tiles, u8* x_f16,
                                             float* reduced, float* inv_scales, OnLoaded&& on_loaded) {
    RowToF16<2, true, true, FUSED_ROWS> to_f16(input.norm, input.n_columns, n_tiles * 256);
    const int r = int(threadIdx.x) / (ROW_THREADS / FUSED_ROWS);
    wait_for_previous_kernel();
    const float* x = input.x + u64(min(r, max(n_rows, 1) - 1)) * input.n_columns;
    const float inv_scale = to_f16.convert(
        x, input.eps, reduced + r * 32,
        [&](int k, u32 low, u32 high) {
            *reinterpret_cast<Words2*>(x_f16 + f16_row_offset(k, r, FUSED_ROWS)) = {low, high};
        },
        on_loaded);
    if (row_thread<FUSED_ROWS>() == 0) inv_scales[r] = inv_scale;
}

// Loads the B fragments of a tile from shared or global memory.
__device__ __forceinline__ void load_words(Words4 (&to)[8], const u8* from, int sum_pitch) {
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = *reinterpret_cast<const Words4*>(from + i * sum_pitch);
}
__device__ __forceinline__ void load_global_words(Words4 (&to)[8], const u8* from, int sum_pitch) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint4 v = __ldcg(reinterpret_cast<const uint4*>(from + i * sum_pitch));
        to[i] = {v.x, v.y, v.z, v.w};
    }
}

// Row producer: copies the tiles of the block's slices to shared memory.
template <int TEAM>
__device__ __forceinline__ void copy_x_f16(const SmallBatch& input, u8* x_f16, int n_tiles, int warp, int lane,
                                           u32 arrived) {
    constexpr int N = PanelCursor<TEAM>::N;
    const int n_group = input.n_group;
    PanelCursor<TEAM> c;
    c.seek(0, warp, n_tiles);
    u8* to = x_f16 + (c.before(n_tiles) - c.tile) * 512 * n_group;
#if WOOLLY_BULK
    // One lane copies; an mbarrier per tile signals all warps.
    const u64 policy = evict_last_policy();
    if (lane == 0) {
        fence_async_proxy();
        for (int i = c.tile + warp / N; i < c.end; i += TEAM) {
            const u32 barrier = arrived + (c.before(n_tiles) - c.tile + i) * 8;
            mbarrier_expect_tx(barrier, 512 * n_group);
            bulk_copy(shared_address(to + i * 512 * n_group), input.x_f16 + i * 512 * n_group, 512 * n_group, barrier,
                      policy);
        }
    }
#else
    for (int i = (c.tile + warp / N) * 512 * n_group; i < c.end * 512 * n_group; i += TEAM * 512 * n_group)
        for (int k = lane * 16; k < 512 * n_group; k += 512) cp_async16(to + i + k, input.x_f16 + i + k);
    cp_async_commit();
#endif
}

// Multiplies the tiles of a slice with rows in shared memory; `rows` points to this lane's fragments.
template <class Tiles, class Unpacker, class Position>
__device__ __forceinline__ void multiply_slice(Tiles& stream, Unpacker unpacker, float (&acc)[4], Position& c,
                                               int n_tiles, const u8* rows, int n_group, u32 arrived) {
    int place = c.before(n_tiles);
    const u8* columns = rows + place * 512 * n_group;
#pragma unroll 1
    for (; c.tile < c.end; c.tile++, place++, columns += 512 * n_group) {
#if WOOLLY_BULK
        mbarrier_wait(arrived + place * 8, 0);
#endif
        stream.multiply(unpacker, acc,
                        [&](int k32) { return *reinterpret_cast<const Words4*>(columns + k32 * 64 * n_group); });
    }
}

// Sums in shared memory: panels times rows per buffer, number of buffers, floats per buffer.
template <bool X_IN_REGISTERS, int TEAM>
struct SumBuffers {
    static constexpr int SUMS = X_IN_REGISTERS ? 32 : 16, N_BUFFERS = X_IN_REGISTERS ? 2 : 1;
    static constexpr int BUFFER = SUMS * PanelCursor<TEAM>::N * SUM_PITCH;
};

// Consumers: products of the block's panels, round by round, and the epilogue. `rows`: this lane's fragments in shared
// memory, if not X_IN_REGISTERS.
template <bool X_IN_REGISTERS, int TEAM, int FUSED_ROWS, class T, class U>
__device__ __forceinline__ void compute_rounds(Stream<T, U, TEAM>& stream, const SmallBatch& input,
                                               const EpilogueParams& epi, int n_rows, const Words4 (&x_registers)[8],
                                               const u8* rows, u32 arrived, float* sums, const float* inv_scales) {
    typedef PanelCursor<TEAM> Position;
    typedef SumBuffers<X_IN_REGISTERS, TEAM> Buffers;
    constexpr int N = Position::N;
    const int lane = stream.lane, warp = stream.warp, g = lane >> 2, t = lane & 3;
    const int n_tiles = stream.n_tiles, n_group = input.n_group;
    const bool is_glu = epi.epilogue == GLU;
    const int n_each = is_glu ? 8 : 16, panels_per_round = Buffers::SUMS / TEAM / n_group;
    const int sum_pitch = n_group * SUM_PITCH;  // floats per slice
#pragma unroll 1
    for (int first = 0, buffer = 0; Position::panel_at(first * TEAM) < stream.n_panels;
         first += panels_per_round, buffer ^= 1) {
        float* sums_of_round = sums + (Buffers::N_BUFFERS > 1 ? buffer * Buffers::BUFFER : 0);

        // Element that this thread finishes after the round; its operands load while tiles stream.
        const int e = int(threadIdx.x) & (n_each - 1), of = int(threadIdx.x) >> (is_glu ? 3 : 4);
        const int row = of & (n_group - 1), round = of / n_group;
        const int number = Position::panel_at((first + round) * TEAM + Position::rank());
        int which;
        const int panel = stream.panel_of(number, which);
        const EpilogueElement element(stream.all, which, panel, e, row, n_tiles, stream.bytes_of(which),
                                      round < panels_per_round && number < stream.n_panels && row < n_rows, epi);
        const float inv_scale = !element.is_active ? 0
                                : FUSED_ROWS > 0   ? inv_scales[row]
                                                   : __ldcg(input.inv_scales + row);

#pragma unroll 1
        for (int i = 0; i < panels_per_round && Position::panel_at((first + i) * TEAM) < stream.n_panels; i++) {
            Position c;
            c.seek(first + i, warp, n_tiles);
            if (TEAM > 1 && c.panel >= stream.n_panels) break;
            float acc[4] = {0, 0, 0, 0};
            auto products = [&](auto unpacker) {
                if constexpr (X_IN_REGISTERS) {
                    if (c.tile < c.end) stream.multiply(unpacker, acc, [&](int k32) { return x_registers[k32]; });
                } else {
                    multiply_slice(stream, unpacker, acc, c, n_tiles, rows, n_group, arrived);
                }
            };
            if (stream.IS_MIXED && c.panel >= stream.n_two)
                products(Tile<U>());
            else
                products(Tile<T>());
            float* sum =
                sums_of_round + ((i * TEAM + warp / N) * N + c.slice / TEAM) * sum_pitch + 2 * t * SUM_PITCH + g;
            if (2 * t < n_group) sum[0] = acc[0], sum[8] = acc[2];
            if (2 * t + 1 < n_group) sum[SUM_PITCH] = acc[1], sum[SUM_PITCH + 8] = acc[3];
        }
        team_barrier<TEAM>();  // double-buffered sums: no barrier needed here
        auto summed = [&](int e) {
            const float* from = sums_of_round + (round * TEAM + Position::rank()) * N * sum_pitch + row * SUM_PITCH + e;
            float sum = 0;
#pragma unroll
            for (int s = 0; s < N_SLICES; s++) sum += load_of<TEAM>(from + s / TEAM * sum_pitch, s % TEAM);
            return sum;
        };
        if (element.is_active) element.store(summed, e, inv_scale, epi);
        if (Buffers::N_BUFFERS == 1) team_barrier<TEAM>();
    }
}

// X_IN_REGISTERS: one tile per slice and a number of tiles that divides 16, so a warp has the same columns in all
// panels. FUSED_ROWS: rows that each block prepares itself, 0: cooperative; faster for two rows, slower for four.
template <class T, class U, bool X_IN_REGISTERS, int TEAM, int FUSED_ROWS>
__device__ __forceinline__ void linear_rows8(const Batch* batch, int kind, const Matrix (&all)[3],
                                             const SmallBatch& input, const EpilogueParams& epi) {
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x & 31, warp = __shfl_sync(ALL_LANES, int(threadIdx.x) >> 5, 0);
    const int g = lane >> 2, t = lane & 3, n_tiles = (input.n_columns + 255) / 256, n_group = input.n_group;

    typedef PanelCursor<TEAM> Position;
    constexpr int N = Position::N;
    typedef SumBuffers<X_IN_REGISTERS, TEAM> Buffers;

    // Shared memory: reductions and mbarriers (1 KB each), sums, x of the block's slices if not in registers, rings.
    float* reduced = reinterpret_cast<float*>(shared);
    float* sums = reinterpret_cast<float*>(shared + 2048);
    u8* x_f16 = reinterpret_cast<u8*>(sums + Buffers::N_BUFFERS * Buffers::BUFFER);
    const int n_mine = n_tiles / N_SLICES * N + (n_tiles % N_SLICES + TEAM - 1) / TEAM;
    Stream<T, U, TEAM> stream(all, n_tiles, warp, lane);
    stream.start(shared, x_f16 + (X_IN_REGISTERS && FUSED_ROWS == 0 ? 0 : n_mine * 512 * n_group), input.n_stages);
    u32 arrived = 0;  // mbarriers of x, one per tile; at most 112
#if WOOLLY_BULK
    arrived = shared_address(shared + 128);
    if (!X_IN_REGISTERS && int(threadIdx.x) < n_mine) {
        mbarrier_init(arrived + threadIdx.x * 8, 1);
        mbarrier_init_fence();
    }
#endif
#pragma unroll 1
    for (int i = 0; i < input.n_early; i++) stream.fetch(i);
    launch_dependents();
    const int n_rows = min(batch->rows(kind), n_group);
    if constexpr (FUSED_ROWS > 0) {
        convert_rows<FUSED_ROWS>(input, n_rows, n_tiles, x_f16, reduced, reduced + 128, [&] {
#pragma unroll 1
            for (int i = input.n_early; i < input.n_stages; i++) stream.fetch(i);
        });
        __syncthreads();
    } else {
        wait_for_previous_kernel();
        if constexpr (X_IN_REGISTERS)
            prepare_rows<2, true>(input, n_rows, n_tiles, reduced);
        else if (input.n_columns % 4 == 0 && input.n_columns <= 7 * 4 * ROW_THREADS)
            prepare_rows<7, true>(input, n_rows, n_tiles, reduced);
        else
            prepare_rows<7, false>(input, n_rows, n_tiles, reduced);
    }

    // this lane's row; rows past the end repeat the last one
    const int from = min(g, max(n_rows, 1) - 1) * 64 + t * 16;
    Words4 x_registers[8];
    if constexpr (X_IN_REGISTERS && FUSED_ROWS > 0)
        load_words(x_registers, x_f16 + warp % n_tiles * 512 * FUSED_ROWS + from, 64 * FUSED_ROWS);
    else if constexpr (X_IN_REGISTERS)
        load_global_words(x_registers,
                          input.x_f16 + (warp % N * TEAM + Position::rank()) % n_tiles * 512 * n_group + from,
                          64 * n_group);
    else
        copy_x_f16<TEAM>(input, x_f16, n_tiles, warp, lane, arrived);
    if constexpr (FUSED_ROWS == 0) {
#pragma unroll 1
        for (int i = input.n_early; i < input.n_stages; i++) stream.fetch(i);
    }
#if !WOOLLY_BULK
    if constexpr (!X_IN_REGISTERS) {
        cp_async_wait<0>();
        __syncthreads();
    }
#endif

    compute_rounds<X_IN_REGISTERS, TEAM, FUSED_ROWS>(stream, input, epi, n_rows, x_registers, x_f16 + from, arrived,
                                                     sums, reduced + 128);
    // no block of the cluster reads shared memory of another after this
    if (TEAM > 1 && Buffers::N_BUFFERS > 1) team_barrier<TEAM>();
    // The last block resets the counters.
    if (FUSED_ROWS == 0 && threadIdx.x == 0 && atomicAdd(input.arrivals + 1, 1u) + 1 == gridDim.x)
        input.arrivals[0] = input.arrivals[1] = 0;
}

}  // namespace

// Up to n_group (1, 2, 4 or 8) rows of x, up to three matrices. `_regs`, and `_2rows` for two rows: 1, 2, 4, 8 or 16
// tiles of columns, a multiple of 4 columns. grid: blocks that share the panels.
#define LINEAR_ROWS8_OF(declared, Type, Other, X_IN_REGISTERS, TEAM, FUSED_ROWS)                                       \
    declared(const Batch* batch, const u8* tiles0, int n_panels0, int n_columns, const u8* tiles1, int n_panels1,      \
             int n_stages, const u8* tiles2, int n_panels2, int n_early, int kind, int n_group, const float* x,        \
             const float* norm, float eps, u8* x_f16, float* inv_scales, u32* arrivals, int n_rows0, int n_rows1,      \
             int n_rows2, const float* bias0, const float* bias1, const float* bias2, float* y0, float* y1, float* y2, \
             EPILOGUE_PARAMS) {                                                                                        \
        const Matrix all[3] = {MATRIX_OF(0), MATRIX_OF(1), MATRIX_OF(2)};                                              \
        const EpilogueParams epi = EPILOGUE_ARGS;                                                                      \
        const SmallBatch input = {n_columns, n_stages, n_early, n_group, x, norm, eps, x_f16, inv_scales, arrivals};   \
        linear_rows8<Type, Other, X_IN_REGISTERS, TEAM, FUSED_ROWS>(batch, kind, all, input, epi);                     \
    }
#define LINEAR_ROWS8_MIXED(name, Type, Other)                                                   \
    LINEAR_ROWS8_OF(KERNEL_THREADS(512, linear_rows8__##name##_2rows), Type, Other, true, 1, 2) \
    LINEAR_ROWS8_OF(KERNEL_THREADS(512, linear_rows8__##name##_regs), Type, Other, true, 1, 0)  \
    LINEAR_ROWS8_OF(KERNEL_CLUSTER2(512, linear_rows8__##name), Type, Other, false, PAIR, 0)
#define LINEAR_ROWS8(name, Type) LINEAR_ROWS8_MIXED(name, Type, Type)
// Mixed-type files have q and k of one type and v of the other.
#define ROWS8_IS_MIXED_q4_k 1
#define ROWS8_IS_MIXED_q5_k 1
#ifdef WOOLLY_TYPE
LINEAR_ROWS8(WOOLLY_NAME, WOOLLY_TYPE)
#define ROWS8_WITH_Q6_K(name, Type) LINEAR_ROWS8_MIXED(name##_q6_k, Type, Q6_K)
#define ROWS8_NAMED_WITH_Q6_K(name, Type) ROWS8_WITH_Q6_K(name, Type)
#if CONCAT(ROWS8_IS_MIXED_, WOOLLY_NAME)
ROWS8_NAMED_WITH_Q6_K(WOOLLY_NAME, WOOLLY_TYPE)
#endif
#else
TILE_TYPES(LINEAR_ROWS8)
LINEAR_ROWS8_MIXED(q4_k_q6_k, Q4_K, Q6_K)
LINEAR_ROWS8_MIXED(q5_k_q6_k, Q5_K, Q6_K)
#endif
