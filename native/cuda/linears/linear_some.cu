// Products of 9 to 32 rows, as linear_few.cu computes those of 2 to 8: a tile that is opened is multiplied with 16 or
// 32 rows, 8 at a time, which lie in the registers of the warp that has their columns.
//
// Each warp of a block has one slice; on Hopper 32 rows are computed by pairs of blocks with 8 warps each, so that a
// warp has twice the registers. Of longer rows a warp has one tile of columns after another, and for each the tiles of
// all strips of a round: the columns of the next come while the last of them is computed, and the chains of a slice
// wait in shared memory.
#include "primitives/small_batch.cuh"

#if WOOLLY_HOPPER || defined(WOOLLY_EMULATED)

namespace {

// The tiles of a warp, as they come through a ring: round by round, n_held strips in each; in a round, tile by tile of
// the warp's slice, and of each those of all strips.
template <class T, class U>
struct Rounds {
    static constexpr bool IS_MIXED = Tile<T>::bytes != Tile<U>::bytes;
    static constexpr int STAGE_BYTES = Tile<T>::bytes > Tile<U>::bytes ? Tile<T>::bytes : Tile<U>::bytes;
    const Matrix (&all)[3];
    const int n_tiles, n_held, begin, end, step, n_first, n_two, n_strips, lane;
    Ring ring;
    int first, strip, i, tile, stage, phase;

    // Strips of a block are `step` apart, the first is `strip`; tiles from `begin` to `end` are the warp's.
    __device__ __forceinline__ Rounds(const Matrix (&all)[3], int n_tiles, int n_held, int begin, int end, int strip,
                                      int step, int lane)
        : all(all),
          n_tiles(n_tiles),
          n_held(n_held),
          begin(begin),
          end(end),
          step(step),
          n_first(all[0].n_strips),
          n_two(n_first + all[1].n_strips),
          n_strips(n_two + all[2].n_strips),
          lane(lane),
          first(strip),
          strip(begin < end ? strip : n_strips),
          i(0),
          tile(begin),
          stage(0),
          phase(0) {}
    __device__ __forceinline__ static int bytes_of(int which) {
        return IS_MIXED && which == 2 ? Tile<U>::bytes : Tile<T>::bytes;
    }
    // The strip in its own matrix, and which that is.
    __device__ __forceinline__ int strip_of(int strip, int& which) const {
        which = strip < n_first ? 0 : strip < n_two ? 1 : 2;
        return strip - (which == 0 ? 0 : which == 1 ? n_first : n_two);
    }
    __device__ __forceinline__ void fetch(int to) {
        int which;
        const int at = strip_of(strip, which), n_bytes = bytes_of(which);
        const u8* tiles = which == 0 ? all[0].tiles : which == 1 ? all[1].tiles : all[2].tiles;
        const bool is_left = strip < n_strips;
        ring.fetch(to, is_left ? tiles + (u64(at) * n_tiles + tile) * n_bytes : nullptr, n_bytes, lane);
        if (!is_left) return;
        strip += step;
        if (++i < n_held && strip < n_strips) return;
        i = 0;
        if (++tile == end) tile = begin, first += n_held * step;
        strip = first;
    }
    // The next tile, of the opener's kind; used(k32) is called when 32 columns of the rows have been used.
    template <class Opener, int NB, class Used>
    __device__ __forceinline__ void multiply(Opener, float (&acc)[NB][4], const Words4 (&rows)[NB][8], Used&& used) {
        const u8* opened = ring.memory + stage * STAGE_BYTES;
        ring.wait(stage, phase);
        const typename Opener::Scales scales = Opener::scales(opened, lane);
#pragma unroll
        for (int k16 = 0; k16 < 16; k16++) {
            u32 a[4];
            Opener::open(opened, scales, lane, k16, a);
#pragma unroll
            for (int n = 0; n < NB; n++) {
                const Words4& two = rows[n][k16 >> 1];
                mma(acc[n], a, k16 & 1 ? two.z : two.x, k16 & 1 ? two.w : two.y);
            }
            if (k16 & 1) used(k16 >> 1);
        }
        __syncwarp();
        fetch(stage);
        if (++stage == ring.n_stages) stage = 0, phase ^= 1;
    }
};

// Columns of a tile of NB eights of rows, in registers, as two mma want them.
template <int NB>
struct RowsOf {
    Words4 words[NB][8];
    const u8* halves;
    int from[NB];  // of this lane; rows behind the last repeat it

    __device__ __forceinline__ RowsOf(const Few& few, int n_rows, int g, int t) : halves(few.halves) {
#pragma unroll
        for (int n = 0; n < NB; n++) from[n] = min(n * 8 + g, max(n_rows, 1) - 1) * 64 + t * 16;
    }
    __device__ __forceinline__ void load(int tile, int k32) {
#pragma unroll
        for (int n = 0; n < NB; n++) {
            const uint4 v = __ldcg(reinterpret_cast<const uint4*>(halves + from[n] + (tile * 8 + k32) * 64 * 8 * NB));
            words[n][k32] = {v.x, v.y, v.z, v.w};
        }
    }
};

// The tiles of a round times the rows; `sums`: those of the first strip of this lane. N: slices of the block.
template <int NB, bool IS_KEPT, int N, class T, class U>
__device__ __forceinline__ void multiply_round(Rounds<T, U>& rounds, RowsOf<NB>& rows, float4* sums, int first) {
    const int n_held = rounds.n_held, step = rounds.step, begin = rounds.begin, end = rounds.end;
#pragma unroll 1
    for (int tile = begin; tile < end; tile++) {
#pragma unroll 1
        for (int i = 0, at = first; i < n_held && at < rounds.n_strips; i++, at += step) {
            float4* place = sums + i * N * NB * 32;
            float acc[NB][4];
#pragma unroll
            for (int n = 0; n < NB; n++) {
                const float4 v = IS_KEPT || tile == begin ? make_float4(0, 0, 0, 0) : place[n * 32];
                acc[n][0] = v.x, acc[n][1] = v.y, acc[n][2] = v.z, acc[n][3] = v.w;
            }
            const bool is_last = i + 1 == n_held || at + step >= rounds.n_strips;
            const int next = tile + 1 < end ? tile + 1 : begin;
            const bool is_new = is_last && (tile + 1 < end || first + n_held * step < rounds.n_strips);
            auto used = [&](int k32) {
                if (!IS_KEPT && is_new) rows.load(next, k32);
            };
            if (rounds.IS_MIXED && at >= rounds.n_two)
                rounds.multiply(Tile<U>(), acc, rows.words, used);
            else
                rounds.multiply(Tile<T>(), acc, rows.words, used);
#pragma unroll
            for (int n = 0; n < NB; n++) place[n * 32] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
        }
    }
}

// Four sums that a lane finishes, of rows of weights `out` and 8 behind it, and rows `row` and the next, with what they
// need beside the sums.
struct FourSums {
    Matrix m;
    const float *bias_a, *bias_b;
    u64 to, later;
    float factor[2], bias[2], residual[4], back[2];
    bool is_glu, is_mine, is_two, has_a, has_b;

    __device__ __forceinline__ FourSums(const Matrix (&all)[3], int which, int strip, int row, int g, int n_tiles,
                                        int tile_bytes, int n_rows, bool is_there, const Few& few, const Finish& finish)
        : m(chosen(all, which)), factor{1, 1}, bias{0, 0}, residual{0, 0, 0, 0}, back{0, 0} {
        is_glu = finish.epilogue == GLU;
        const int out = strip * (is_glu ? 8 : 16) + g;
        is_mine = is_there && row < n_rows;
        is_two = row + 1 < n_rows, has_a = is_mine && out < m.n_rows;
        has_b = is_mine && !is_glu && out + 8 < m.n_rows;
        bias_a = m.bias, bias_b = is_glu ? all[1].bias : m.bias;
        to = u64(row) * m.n_rows + out, later = to + (is_two ? m.n_rows : 0);
        if (!is_mine) return;
        const float* factors =
            reinterpret_cast<const float*>(m.tiles + u64(m.n_strips) * n_tiles * tile_bytes) + strip * 16 + g;
        factor[0] = factors[0], factor[1] = factors[8];
        back[0] = __ldcg(few.backs + row), back[1] = __ldcg(few.backs + row + (is_two ? 1 : 0));
        if (bias_a != nullptr && has_a) bias[0] = bias_a[out];
        if (bias_b != nullptr && (is_glu ? has_a : has_b)) bias[1] = bias_b[out + (is_glu ? 0 : 8)];
        if (finish.epilogue == RESIDUAL) {
            if (has_a) residual[0] = __ldcg(finish.residual + to), residual[1] = __ldcg(finish.residual + later);
            if (has_b)
                residual[2] = __ldcg(finish.residual + to + 8), residual[3] = __ldcg(finish.residual + later + 8);
        }
    }
    // Epilogue.
    __device__ __forceinline__ void store(float4 sum, const Finish& finish) const {
        const bool a_biased = bias_a != nullptr, b_biased = bias_b != nullptr;
        float y[4] = {finished(sum.x, factor[0], back[0], a_biased, bias[0], finish.scale),
                      finished(sum.y, factor[0], back[1], a_biased, bias[0], finish.scale),
                      finished(sum.z, factor[1], back[0], b_biased, bias[1], finish.scale),
                      finished(sum.w, factor[1], back[1], b_biased, bias[1], finish.scale)};
        if (is_glu) {
            y[0] = gated_sum(finish.gate, finish.limit, y[0], y[2]);
            y[1] = gated_sum(finish.gate, finish.limit, y[1], y[3]);
        } else if (finish.epilogue == RESIDUAL) {
#pragma unroll
            for (int i = 0; i < 4; i++) y[i] = __fadd_rn(residual[i], y[i]);
        }
        if (has_a) m.y[to] = y[0];
        if (has_a && is_two) m.y[later] = y[1];
        if (has_b) m.y[to + 8] = y[2];
        if (has_b && is_two) m.y[later + 8] = y[3];
    }
};

// NB: eights of rows. IS_KEPT: a slice is one tile, so that the columns of a warp are the same in all strips.
template <class T, class U, int NB, bool IS_KEPT, int TEAM>
__device__ __forceinline__ void linear_some(const Batch* batch, int kind, const Matrix (&all)[3], const Few& few,
                                            const Finish& finish, int n_held, int n_places) {
    DYNAMIC_SHARED(shared);
    constexpr int N = N_SLICES / TEAM, N_GROUP = 8 * NB;  // slices of the block; rows
    const int lane = threadIdx.x & 31, warp = __shfl_sync(ALL_LANES, int(threadIdx.x) >> 5, 0);
    const int g = lane >> 2, t = lane & 3, n_tiles = (few.n_columns + 255) / 256;
    const int rank = TEAM == 1 ? 0 : int(blockIdx.x) % TEAM, step = int(gridDim.x) / TEAM;
    const int begin = slice_start(warp * TEAM + rank, n_tiles), end = slice_start(warp * TEAM + rank + 1, n_tiles);

    // Shared: reductions and barriers in 1 KB each, sums [place][strip][slice][NB][lane], rings.
    float* reduced = reinterpret_cast<float*>(shared);
    float4* sums = reinterpret_cast<float4*>(shared + 2048);
    const int n_place = n_held * N * NB * 32;
    Rounds<T, U> rounds(all, n_tiles, n_held, begin, end, int(blockIdx.x) / TEAM, step, lane);
    rounds.ring.start(shared, reinterpret_cast<u8*>(sums + n_places * n_place), warp, lane, few.n_stages,
                      rounds.STAGE_BYTES);
#pragma unroll 1
    for (int i = 0; i < few.n_early; i++) rounds.fetch(i);
    launch_dependents();
    const int n_rows = min(batch->rows(kind), N_GROUP);
    wait_for_previous_kernel();
    if constexpr (IS_KEPT)
        prepare_rows<2, true, TEAM>(few, n_rows, n_tiles, reduced);
    else if (few.n_columns % 4 == 0 && few.n_columns <= 7 * 4 * ROW_THREADS)
        prepare_rows<7, true, TEAM>(few, n_rows, n_tiles, reduced);
    else
        prepare_rows<2, false, TEAM>(few, n_rows, n_tiles, reduced);

    RowsOf<NB> rows(few, n_rows, g, t);
    if (begin < end) {
#pragma unroll
        for (int k32 = 0; k32 < 8; k32++) rows.load(begin, k32);
    }
#pragma unroll 1
    for (int i = few.n_early; i < few.n_stages; i++) rounds.fetch(i);

    int half = 0;
#pragma unroll 1
    for (int first = int(blockIdx.x) / TEAM; first < rounds.n_strips; first += n_held * step, half ^= 1) {
        float4* held = sums + (n_places > 1 ? half * n_place : 0);

        // The sums that this warp finishes after the round; what they need comes while tiles do.
        const int of = warp / NB * TEAM + rank, n = warp % NB, number = first + of * step;
        int which;
        const int strip = rounds.strip_of(number, which);
        const FourSums mine(all, which, strip, n * 8 + 2 * t, g, n_tiles, rounds.bytes_of(which), n_rows,
                            of < n_held && number < rounds.n_strips, few, finish);

        float4* mine_of = held + warp * NB * 32 + lane;
        if (begin < end) {
            multiply_round<NB, IS_KEPT, N>(rounds, rows, mine_of, first);
        } else {  // fewer tiles than slices
#pragma unroll 1
            for (int i = 0; i < n_held; i++) {
#pragma unroll
                for (int n = 0; n < NB; n++) mine_of[(i * N * NB + n) * 32] = make_float4(0, 0, 0, 0);
            }
        }
        team_barrier<TEAM>();  // all slices are written; with two places the next round writes the other one
        if (mine.is_mine) {
            const float4* from = held + (of * N * NB + n) * 32 + lane;
            float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int s = 0; s < N_SLICES; s++) {
                const float4 v = load_of<TEAM>(from + s / TEAM * NB * 32, s % TEAM);
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
            }
            mine.store(sum, finish);
        }
        if (n_places == 1) team_barrier<TEAM>();
    }
    if (TEAM > 1 && n_places > 1) team_barrier<TEAM>();  // nobody's shared memory is needed any more
    // The last block leaves zeros.
    if (threadIdx.x == 0 && atomicAdd(few.arrivals + 1, 1u) + 1 == gridDim.x) few.arrivals[0] = few.arrivals[1] = 0;
}

}  // namespace

// Up to 16 or 32 rows of x, to up to three values; `_kept` for 16 tiles of columns in aligned fours. grid: blocks that
// share the strips. n_held: strips of a round, n_places: of their sums; NB times n_held is at most 16.
#define LINEAR_SOME_OF(declared, Type, Other, NB, IS_KEPT, TEAM)                                                  \
    declared(const Batch* batch, const u8* tiles0, int n_strips0, int n_columns, const u8* tiles1, int n_strips1, \
             int n_stages, const u8* tiles2, int n_strips2, int n_early, int n_held, int n_places, int kind,      \
             const float* x, const float* norm, float eps, u8* halves, float* backs, u32* arrivals, int n_rows0,  \
             int n_rows1, int n_rows2, const float* bias0, const float* bias1, const float* bias2, float* y0,     \
             float* y1, float* y2, FINISH) {                                                                      \
        const Matrix all[3] = {MATRIX_OF(0), MATRIX_OF(1), MATRIX_OF(2)};                                         \
        const Finish finish = FINISH_OF;                                                                          \
        const Few few = {n_columns, n_stages, n_early, 8 * NB, x, norm, eps, halves, backs, arrivals};            \
        linear_some<Type, Other, NB, IS_KEPT, TEAM>(batch, kind, all, few, finish, n_held, n_places);             \
    }
#define LINEAR_SOME_KEPT(name, Type, Other)                                                     \
    LINEAR_SOME_OF(KERNEL_THREADS(512, linear_some__##name##_16_kept), Type, Other, 2, true, 1) \
    LINEAR_SOME_OF(KERNEL_CLUSTER2(512 / PAIR, linear_some__##name##_32_kept), Type, Other, 4, true, PAIR)
#define LINEAR_SOME_LONG(name, Type, Other) \
    LINEAR_SOME_OF(KERNEL_CLUSTER2(512 / PAIR, linear_some__##name##_16), Type, Other, 2, false, PAIR)
#define LINEAR_SOME_MIXED(name, Type, Other) LINEAR_SOME_KEPT(name, Type, Other) LINEAR_SOME_LONG(name, Type, Other)
#define LINEAR_SOME(name, Type) LINEAR_SOME_MIXED(name, Type, Type)
#define LINEAR_SOME_NAMED(name, Type) LINEAR_SOME(name, Type)
#define LINEAR_SOME_LONG_NAMED(name, Type) LINEAR_SOME_LONG(name, Type, Type)
// No GPU has shared memory for sums that are kept beside such tiles.
#define SOME_IS_TOO_LARGE_f16 1
// Files of mixed types have q and k of one kind and v of the other.
#define SOME_IS_MIXED_q4_k 1
#define SOME_IS_MIXED_q5_k 1
#ifdef WOOLLY_TYPE
#if CONCAT(SOME_IS_TOO_LARGE_, WOOLLY_NAME)
LINEAR_SOME_LONG_NAMED(WOOLLY_NAME, WOOLLY_TYPE)
#else
LINEAR_SOME_NAMED(WOOLLY_NAME, WOOLLY_TYPE)
#endif
#define SOME_WITH_Q6_K(name, Type) LINEAR_SOME_MIXED(name##_q6_k, Type, Q6_K)
#define SOME_NAMED_WITH_Q6_K(name, Type) SOME_WITH_Q6_K(name, Type)
#if CONCAT(SOME_IS_MIXED_, WOOLLY_NAME)
SOME_NAMED_WITH_Q6_K(WOOLLY_NAME, WOOLLY_TYPE)
#endif
#else
TILE_TYPES(LINEAR_SOME)
LINEAR_SOME_MIXED(q4_k_q6_k, Q4_K, Q6_K)
LINEAR_SOME_MIXED(q5_k_q6_k, Q5_K, Q6_K)
#endif

#endif
