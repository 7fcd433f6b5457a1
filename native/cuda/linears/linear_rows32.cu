// Products of 9 to 32 rows, as linear_rows8.cu: an unpacked tile is multiplied with 16 or 32 rows, 8 at a time, whose
// columns are in registers of the warp.
//
// A warp has one slice of each panel. On Hopper, 32 rows use clusters of two blocks of 8 warps, which doubles the
// registers per warp. If a slice has several tiles, a warp iterates over tile columns and, for each, over the tiles of
// all panels of a round: B fragments of the next tile column load during the last panel, and accumulators wait in
// shared memory.
#include "linears/small_batch.cuh"

#if WOOLLY_HOPPER || defined(WOOLLY_EMULATED)

namespace {

// Streams the tiles of a warp: rounds of panels_per_round panels; within a round, tile by tile of the warp's slice,
// each for all panels.
template <class T, class U>
struct PanelRounds {
    static constexpr bool IS_MIXED = Tile<T>::bytes != Tile<U>::bytes;
    static constexpr int STAGE_BYTES = Tile<T>::bytes > Tile<U>::bytes ? Tile<T>::bytes : Tile<U>::bytes;
    const Matrix (&all)[3];
    const int n_tiles, panels_per_round, begin, end, step, n_first, n_two, n_panels, lane;
    Ring ring;
    int first, panel, i, tile, stage, phase;

    // Panels of a block are `panel`, `panel + step`, ...; the warp has tiles [begin, end).
    __device__ __forceinline__ PanelRounds(const Matrix (&all)[3], int n_tiles, int panels_per_round, int begin,
                                           int end, int panel, int step, int lane)
        : all(all),
          n_tiles(n_tiles),
          panels_per_round(panels_per_round),
          begin(begin),
          end(end),
          step(step),
          n_first(all[0].n_panels),
          n_two(n_first + all[1].n_panels),
          n_panels(n_two + all[2].n_panels),
          lane(lane),
          first(panel),
          panel(begin < end ? panel : n_panels),
          i(0),
          tile(begin),
          stage(0),
          phase(0) {}
    __device__ __forceinline__ static int bytes_of(int which) {
        return IS_MIXED && which == 2 ? Tile<U>::bytes : Tile<T>::bytes;
    }
    // Panel within its matrix; sets `which` to the matrix.
    __device__ __forceinline__ int panel_of(int panel, int& which) const {
        which = panel < n_first ? 0 : panel < n_two ? 1 : 2;
        return panel - (which == 0 ? 0 : which == 1 ? n_first : n_two);
    }
    __device__ __forceinline__ void fetch(int to) {
        int which;
        const int at = panel_of(panel, which), n_bytes = bytes_of(which);
        const u8* tiles = which == 0 ? all[0].tiles : which == 1 ? all[1].tiles : all[2].tiles;
        const bool is_left = panel < n_panels;
        ring.fetch(to, is_left ? tiles + (u64(at) * n_tiles + tile) * n_bytes : nullptr, n_bytes, lane);
        if (!is_left) return;
        panel += step;
        if (++i < panels_per_round && panel < n_panels) return;
        i = 0;
        if (++tile == end) tile = begin, first += panels_per_round * step;
        panel = first;
    }
    // Multiplies the next tile; on_used(k32) is called after the last use of 32 columns of the rows.
    template <class Unpacker, int N_EIGHTS, class OnUsed>
    __device__ __forceinline__ void multiply(Unpacker, float (&acc)[N_EIGHTS][4], const Words4 (&rows)[N_EIGHTS][8],
                                             OnUsed&& on_used) {
        const u8* packed = ring.memory + stage * STAGE_BYTES;
        ring.wait(stage, phase);
        const typename Unpacker::Scales scales = Unpacker::scales(packed, lane);
#pragma unroll
        for (int k16 = 0; k16 < 16; k16++) {
            u32 a[4];
            Unpacker::unpack(packed, scales, lane, k16, a);
#pragma unroll
            for (int n = 0; n < N_EIGHTS; n++) {
                const Words4& two = rows[n][k16 >> 1];
                mma(acc[n], a, k16 & 1 ? two.z : two.x, k16 & 1 ? two.w : two.y);
            }
            if (k16 & 1) on_used(k16 >> 1);
        }
        __syncwarp();
        fetch(stage);
        if (++stage == ring.n_stages) stage = 0, phase ^= 1;
    }
};

// B fragments of one tile for N_EIGHTS x 8 rows, in registers.
template <int N_EIGHTS>
struct RowRegisters {
    Words4 words[N_EIGHTS][8];
    const u8* x_f16;
    int from[N_EIGHTS];  // offset of this lane's rows; rows past the end repeat the last one

    __device__ __forceinline__ RowRegisters(const SmallBatch& input, int n_rows, int g, int t) : x_f16(input.x_f16) {
#pragma unroll
        for (int n = 0; n < N_EIGHTS; n++) from[n] = min(n * 8 + g, max(n_rows, 1) - 1) * 64 + t * 16;
    }
    __device__ __forceinline__ void load(int tile, int k32) {
#pragma unroll
        for (int n = 0; n < N_EIGHTS; n++) {
            const uint4 v =
                __ldcg(reinterpret_cast<const uint4*>(x_f16 + from[n] + (tile * 8 + k32) * 64 * 8 * N_EIGHTS));
            words[n][k32] = {v.x, v.y, v.z, v.w};
        }
    }
};

// Multiplies the tiles of a round; `sums` points to the accumulators of the first panel of this lane. N: slices per
// block.
template <int N_EIGHTS, bool X_IN_REGISTERS, int N, class T, class U>
__device__ __forceinline__ void multiply_round(PanelRounds<T, U>& rounds, RowRegisters<N_EIGHTS>& rows, float4* sums,
                                               int first) {
    const int panels_per_round = rounds.panels_per_round, step = rounds.step, begin = rounds.begin, end = rounds.end;
#pragma unroll 1
    for (int tile = begin; tile < end; tile++) {
#pragma unroll 1
        for (int i = 0, at = first; i < panels_per_round && at < rounds.n_panels; i++, at += step) {
            float4* place = sums + i * N * N_EIGHTS * 32;
            float acc[N_EIGHTS][4];
#pragma unroll
            for (int n = 0; n < N_EIGHTS; n++) {
                const float4 v = X_IN_REGISTERS || tile == begin ? make_float4(0, 0, 0, 0) : place[n * 32];
                acc[n][0] = v.x, acc[n][1] = v.y, acc[n][2] = v.z, acc[n][3] = v.w;
            }
            const bool is_last = i + 1 == panels_per_round || at + step >= rounds.n_panels;
            const int next = tile + 1 < end ? tile + 1 : begin;
            const bool is_new = is_last && (tile + 1 < end || first + panels_per_round * step < rounds.n_panels);
            auto on_used = [&](int k32) {
                if (!X_IN_REGISTERS && is_new) rows.load(next, k32);
            };
            if (rounds.IS_MIXED && at >= rounds.n_two)
                rounds.multiply(Tile<U>(), acc, rows.words, on_used);
            else
                rounds.multiply(Tile<T>(), acc, rows.words, on_used);
#pragma unroll
            for (int n = 0; n < N_EIGHTS; n++) place[n * 32] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
        }
    }
}

// Four output elements of a lane: weight rows `out` and `out + 8`, activation rows `row` and `row + 1`, with their
// factors, biases and residuals.
struct QuadEpilogue {
    Matrix m;
    const float *bias_a, *bias_b;
    u64 to, later;
    float factor[2], bias[2], residual[4], inv_scale[2];
    bool is_glu, is_active, is_two, has_a, has_b;

    __device__ __forceinline__ QuadEpilogue(const Matrix (&all)[3], int which, int panel, int row, int g, int n_tiles,
                                            int tile_bytes, int n_rows, bool is_there, const SmallBatch& input,
                                            const EpilogueParams& epi)
        : m(matrix_at(all, which)), factor{1, 1}, bias{0, 0}, residual{0, 0, 0, 0}, inv_scale{0, 0} {
        is_glu = epi.epilogue == GLU;
        const int out = panel * (is_glu ? 8 : 16) + g;
        is_active = is_there && row < n_rows;
        is_two = row + 1 < n_rows, has_a = is_active && out < m.n_rows;
        has_b = is_active && !is_glu && out + 8 < m.n_rows;
        bias_a = m.bias, bias_b = is_glu ? all[1].bias : m.bias;
        to = u64(row) * m.n_rows + out, later = to + (is_two ? m.n_rows : 0);
        if (!is_active) return;
        const float* factors =
            reinterpret_cast<const float*>(m.tiles + u64(m.n_panels) * n_tiles * tile_bytes) + panel * 16 + g;
        factor[0] = factors[0], factor[1] = factors[8];
        inv_scale[0] = __ldcg(input.inv_scales + row), inv_scale[1] = __ldcg(input.inv_scales + row + (is_two ? 1 : 0));
        if (bias_a != nullptr && has_a) bias[0] = bias_a[out];
        if (bias_b != nullptr && (is_glu ? has_a : has_b)) bias[1] = bias_b[out + (is_glu ? 0 : 8)];
        if (epi.epilogue == RESIDUAL) {
            if (has_a) residual[0] = __ldcg(epi.residual + to), residual[1] = __ldcg(epi.residual + later);
            if (has_b) residual[2] = __ldcg(epi.residual + to + 8), residual[3] = __ldcg(epi.residual + later + 8);
        }
    }
    // Applies the epilogue.
    __device__ __forceinline__ void store(float4 sum, const EpilogueParams& epi) const {
        const bool a_biased = bias_a != nullptr, b_biased = bias_b != nullptr;
        float y[4] = {scale_and_bias(sum.x, factor[0], inv_scale[0], a_biased, bias[0], epi.scale),
                      scale_and_bias(sum.y, factor[0], inv_scale[1], a_biased, bias[0], epi.scale),
                      scale_and_bias(sum.z, factor[1], inv_scale[0], b_biased, bias[1], epi.scale),
                      scale_and_bias(sum.w, factor[1], inv_scale[1], b_biased, bias[1], epi.scale)};
        if (is_glu) {
            y[0] = apply_glu(epi.gate, epi.limit, y[0], y[2]);
            y[1] = apply_glu(epi.gate, epi.limit, y[1], y[3]);
        } else if (epi.epilogue == RESIDUAL) {
#pragma unroll
            for (int i = 0; i < 4; i++) y[i] = __fadd_rn(residual[i], y[i]);
        }
        if (has_a) m.y[to] = y[0];
        if (has_a && is_two) m.y[later] = y[1];
        if (has_b) m.y[to + 8] = y[2];
        if (has_b && is_two) m.y[later + 8] = y[3];
    }
};

// N_EIGHTS: rows / 8. X_IN_REGISTERS: one tile per slice, so a warp has the same columns in all panels.
template <class T, class U, int N_EIGHTS, bool X_IN_REGISTERS, int TEAM>
__device__ __forceinline__ void linear_rows32(const Batch* batch, int kind, const Matrix (&all)[3],
                                              const SmallBatch& input, const EpilogueParams& epi, int panels_per_round,
                                              int n_buffers) {
    DYNAMIC_SHARED(shared);
    constexpr int N = N_SLICES / TEAM, N_GROUP = 8 * N_EIGHTS;  // slices per block; rows
    const int lane = threadIdx.x & 31, warp = __shfl_sync(ALL_LANES, int(threadIdx.x) >> 5, 0);
    const int g = lane >> 2, t = lane & 3, n_tiles = (input.n_columns + 255) / 256;
    const int rank = TEAM == 1 ? 0 : int(blockIdx.x) % TEAM, step = int(gridDim.x) / TEAM;
    const int begin = slice_start(warp * TEAM + rank, n_tiles), end = slice_start(warp * TEAM + rank + 1, n_tiles);

    // Shared memory: reductions and mbarriers (1 KB each), sums [buffer][panel][slice][N_EIGHTS][lane], rings.
    float* reduced = reinterpret_cast<float*>(shared);
    float4* sums = reinterpret_cast<float4*>(shared + 2048);
    const int buffer_size = panels_per_round * N * N_EIGHTS * 32;
    PanelRounds<T, U> rounds(all, n_tiles, panels_per_round, begin, end, int(blockIdx.x) / TEAM, step, lane);
    rounds.ring.start(shared, reinterpret_cast<u8*>(sums + n_buffers * buffer_size), warp, lane, input.n_stages,
                      rounds.STAGE_BYTES);
#pragma unroll 1
    for (int i = 0; i < input.n_early; i++) rounds.fetch(i);
    launch_dependents();
    const int n_rows = min(batch->rows(kind), N_GROUP);
    wait_for_previous_kernel();
    if constexpr (X_IN_REGISTERS)
        prepare_rows<2, true, TEAM>(input, n_rows, n_tiles, reduced);
    else if (input.n_columns % 4 == 0 && input.n_columns <= 7 * 4 * ROW_THREADS)
        prepare_rows<7, true, TEAM>(input, n_rows, n_tiles, reduced);
    else
        prepare_rows<2, false, TEAM>(input, n_rows, n_tiles, reduced);

    RowRegisters<N_EIGHTS> rows(input, n_rows, g, t);
    if (begin < end) {
#pragma unroll
        for (int k32 = 0; k32 < 8; k32++) rows.load(begin, k32);
    }
#pragma unroll 1
    for (int i = input.n_early; i < input.n_stages; i++) rounds.fetch(i);

    int buffer = 0;
#pragma unroll 1
    for (int first = int(blockIdx.x) / TEAM; first < rounds.n_panels; first += panels_per_round * step, buffer ^= 1) {
        float4* sums_of_round = sums + (n_buffers > 1 ? buffer * buffer_size : 0);

        // Elements that this warp finishes after the round; their operands load while tiles stream.
        const int of = warp / N_EIGHTS * TEAM + rank, n = warp % N_EIGHTS, number = first + of * step;
        int which;
        const int panel = rounds.panel_of(number, which);
        const QuadEpilogue quad(all, which, panel, n * 8 + 2 * t, g, n_tiles, rounds.bytes_of(which), n_rows,
                                of < panels_per_round && number < rounds.n_panels, input, epi);

        float4* own_sums = sums_of_round + warp * N_EIGHTS * 32 + lane;
        if (begin < end) {
            multiply_round<N_EIGHTS, X_IN_REGISTERS, N>(rounds, rows, own_sums, first);
        } else {  // fewer tiles than slices
#pragma unroll 1
            for (int i = 0; i < panels_per_round; i++) {
#pragma unroll
                for (int n = 0; n < N_EIGHTS; n++) own_sums[(i * N * N_EIGHTS + n) * 32] = make_float4(0, 0, 0, 0);
            }
        }
        team_barrier<TEAM>();  // all slices are written; with two buffers the next round writes the other one
        if (quad.is_active) {
            const float4* from = sums_of_round + (of * N * N_EIGHTS + n) * 32 + lane;
            float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int s = 0; s < N_SLICES; s++) {
                const float4 v = load_of<TEAM>(from + s / TEAM * N_EIGHTS * 32, s % TEAM);
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
            }
            quad.store(sum, epi);
        }
        if (n_buffers == 1) team_barrier<TEAM>();
    }
    // no block of the cluster reads shared memory of another after this
    if (TEAM > 1 && n_buffers > 1) team_barrier<TEAM>();
    // The last block resets the counters.
    if (threadIdx.x == 0 && atomicAdd(input.arrivals + 1, 1u) + 1 == gridDim.x)
        input.arrivals[0] = input.arrivals[1] = 0;
}

}  // namespace

// Up to 16 or 32 rows of x, up to three matrices. `_regs`: 16 tiles of columns, a multiple of 4 columns. grid: blocks
// that share the panels. panels_per_round: at most 16 / N_EIGHTS, n_buffers: buffers of their sums.
#define LINEAR_ROWS32_OF(declared, Type, Other, N_EIGHTS, X_IN_REGISTERS, TEAM)                                    \
    declared(const Batch* batch, const u8* tiles0, int n_panels0, int n_columns, const u8* tiles1, int n_panels1,  \
             int n_stages, const u8* tiles2, int n_panels2, int n_early, int panels_per_round, int n_buffers,      \
             int kind, const float* x, const float* norm, float eps, u8* x_f16, float* inv_scales, u32* arrivals,  \
             int n_rows0, int n_rows1, int n_rows2, const float* bias0, const float* bias1, const float* bias2,    \
             float* y0, float* y1, float* y2, EPILOGUE_PARAMS) {                                                   \
        const Matrix all[3] = {MATRIX_OF(0), MATRIX_OF(1), MATRIX_OF(2)};                                          \
        const EpilogueParams epi = EPILOGUE_ARGS;                                                                  \
        const SmallBatch input = {n_columns, n_stages, n_early, 8 * N_EIGHTS, x,                                   \
                                  norm,      eps,      x_f16,   inv_scales,   arrivals};                           \
        linear_rows32<Type, Other, N_EIGHTS, X_IN_REGISTERS, TEAM>(batch, kind, all, input, epi, panels_per_round, \
                                                                   n_buffers);                                     \
    }
#define LINEAR_ROWS32_KEPT(name, Type, Other)                                                       \
    LINEAR_ROWS32_OF(KERNEL_THREADS(512, linear_rows32__##name##_16_regs), Type, Other, 2, true, 1) \
    LINEAR_ROWS32_OF(KERNEL_CLUSTER2(512 / PAIR, linear_rows32__##name##_32_regs), Type, Other, 4, true, PAIR)
#define LINEAR_ROWS32_LONG(name, Type, Other) \
    LINEAR_ROWS32_OF(KERNEL_CLUSTER2(512 / PAIR, linear_rows32__##name##_16), Type, Other, 2, false, PAIR)
#define LINEAR_ROWS32_MIXED(name, Type, Other) \
    LINEAR_ROWS32_KEPT(name, Type, Other) LINEAR_ROWS32_LONG(name, Type, Other)
#define LINEAR_ROWS32(name, Type) LINEAR_ROWS32_MIXED(name, Type, Type)
#define LINEAR_ROWS32_NAMED(name, Type) LINEAR_ROWS32(name, Type)
#define LINEAR_ROWS32_LONG_NAMED(name, Type) LINEAR_ROWS32_LONG(name, Type, Type)
// f16 tiles and sums together exceed the shared memory of every GPU.
#define ROWS32_IS_TOO_LARGE_f16 1
// Mixed-type files have q and k of one type and v of the other.
#define ROWS32_IS_MIXED_q4_k 1
#define ROWS32_IS_MIXED_q5_k 1
#ifdef WOOLLY_TYPE
#if CONCAT(ROWS32_IS_TOO_LARGE_, WOOLLY_NAME)
LINEAR_ROWS32_LONG_NAMED(WOOLLY_NAME, WOOLLY_TYPE)
#else
LINEAR_ROWS32_NAMED(WOOLLY_NAME, WOOLLY_TYPE)
#endif
#define ROWS32_WITH_Q6_K(name, Type) LINEAR_ROWS32_MIXED(name##_q6_k, Type, Q6_K)
#define ROWS32_NAMED_WITH_Q6_K(name, Type) ROWS32_WITH_Q6_K(name, Type)
#if CONCAT(ROWS32_IS_MIXED_, WOOLLY_NAME)
ROWS32_NAMED_WITH_Q6_K(WOOLLY_NAME, WOOLLY_TYPE)
#endif
#else
TILE_TYPES(LINEAR_ROWS32)
LINEAR_ROWS32_MIXED(q4_k_q6_k, Q4_K, Q6_K)
LINEAR_ROWS32_MIXED(q5_k_q6_k, Q5_K, Q6_K)
#endif

#endif
