// Products of 2 to 8 rows, as linear_one.cu computes those of one: the rows are the operand B, whose 8 columns cost as
// much as one.
//
// More than two rows are normed and halved once: the first blocks take one each and leave it in memory as lanes want
// it; a counter tells the others. That is sooner than by a kernel before this one, which would have to begin and to
// end.
//
// Rows of 4096 columns stay in registers. Longer ones lie in shared memory, and 8 of them would fill it: so on Hopper
// blocks work in pairs, each with half the slices, and read the other's sums.
#include "primitives/few.cuh"

namespace {

// How far rows of sums are apart in shared memory: so that lanes that store sums do not meet in a bank.
constexpr int SUMS_APART = 20;

// IS_KEPT: a warp meets the same columns in all strips, because slices have one tile and there are as many tiles as
// divide the slices; halves stay in registers. OWN: rows that each block prepares for itself, if not zero: it is sooner
// for two, for four it is not.
template <class T, class U, bool IS_KEPT, int TEAM, int OWN>
__device__ __forceinline__ void linear_few(const Batch* batch, int kind, const Matrix (&all)[3], const Few& few,
                                           const Finish& finish) {
    DYNAMIC_SHARED(shared);
    const int lane = threadIdx.x & 31, warp = __shfl_sync(ALL_LANES, int(threadIdx.x) >> 5, 0);
    const int g = lane >> 2, t = lane & 3, n_tiles = (few.n_columns + 255) / 256, n_group = few.n_group;

    typedef CursorOf<TEAM> Place;
    constexpr int N = Place::N;
    // Strips times rows whose sums wait in shared memory, and in how many places in turn.
    constexpr int HELD_SUMS = IS_KEPT ? 32 : 16, N_PLACES = IS_KEPT ? 2 : 1, PLACE = HELD_SUMS * N * SUMS_APART;

    // Shared: reductions and barriers in 1 KB each, sums, halves of the block's slices if they are not kept, rings.
    float* reduced = reinterpret_cast<float*>(shared);
    float* sums = reinterpret_cast<float*>(shared + 2048);
    u8* halves = reinterpret_cast<u8*>(sums + N_PLACES * PLACE);
    const int n_mine = n_tiles / N_SLICES * N + (n_tiles % N_SLICES + TEAM - 1) / TEAM;
    Stream<T, U, TEAM> stream(all, n_tiles, warp, lane);
    stream.start(shared, halves + (IS_KEPT && OWN == 0 ? 0 : n_mine * 512 * n_group), few.n_stages);
#if WOOLLY_BULK
    // Barriers of halves that come tile by tile; there is room for 112.
    const u32 arrived = shared_address(shared + 128);
    const u64 policy = read_often();
    if (!IS_KEPT && int(threadIdx.x) < n_mine) {
        barrier_start(arrived + threadIdx.x * 8, 1);
        barriers_started();
    }
#endif
#pragma unroll 1
    for (int i = 0; i < few.n_early; i++) stream.fetch(i);
    let_next_kernel_begin();
    const int n_rows = min(batch->rows(kind), n_group);
    float* backs = reduced + 128;
    if constexpr (OWN > 0) {
        // All rows at once, each by a part of the threads.
        RowHalver<2, true, true, OWN> halver(few.norm, few.n_columns, n_tiles * 256);
        const int r = int(threadIdx.x) / (ROW_THREADS / OWN);
        wait_for_kernel_before();
        const float* x = few.x + u64(min(r, max(n_rows, 1) - 1)) * few.n_columns;
        const float back = halver.halve(
            x, few.eps, reduced + r * 32,
            [&](int k, u32 low, u32 high) {
                u8* place = halves + half_at(k, r, OWN);
                *reinterpret_cast<u32*>(place) = low;
                *reinterpret_cast<u32*>(place + 16) = high;
            },
            [&] {
#pragma unroll 1
                for (int i = few.n_early; i < few.n_stages; i++) stream.fetch(i);
            });
        if (row_thread<OWN>() == 0) backs[r] = back;
        __syncthreads();
    } else {
        wait_for_kernel_before();
        if constexpr (IS_KEPT)
            prepare_rows<2, true>(few, n_rows, n_tiles, reduced);
        else if (few.n_columns % 4 == 0 && few.n_columns <= 7 * 4 * ROW_THREADS)
            prepare_rows<7, true>(few, n_rows, n_tiles, reduced);
        else
            prepare_rows<7, false>(few, n_rows, n_tiles, reduced);
    }

    const int from = min(g, max(n_rows, 1) - 1) * 64 + t * 16;  // of this lane; rows behind the last repeat it
    Words4 kept[8];
    if constexpr (IS_KEPT && OWN > 0) {
        const u8* mine = halves + warp % n_tiles * 512 * OWN + from;
#pragma unroll
        for (int i = 0; i < 8; i++) kept[i] = *reinterpret_cast<const Words4*>(mine + i * 64 * OWN);
    } else if constexpr (IS_KEPT) {
        const u8* mine = few.halves + (warp % N * TEAM + Place::rank()) % n_tiles * 512 * n_group + from;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint4 v = __ldcg(reinterpret_cast<const uint4*>(mine + i * 64 * n_group));
            kept[i] = {v.x, v.y, v.z, v.w};
        }
    } else {
        Place c;
        c.seek(0, warp, n_tiles);
        u8* to = halves + (c.before(n_tiles) - c.tile) * 512 * n_group;
#if WOOLLY_BULK
        // One lane copies; a barrier of each tile tells all warps.
        if (lane == 0) {
            written_for_copies();
            for (int i = c.tile + warp / N; i < c.end; i += TEAM) {
                const u32 barrier = arrived + (c.before(n_tiles) - c.tile + i) * 8;
                barrier_expect(barrier, 512 * n_group);
                bulk_copy(shared_address(to + i * 512 * n_group), few.halves + i * 512 * n_group, 512 * n_group,
                          barrier, policy);
            }
        }
#else
        for (int i = (c.tile + warp / N) * 512 * n_group; i < c.end * 512 * n_group; i += TEAM * 512 * n_group)
            for (int k = lane * 16; k < 512 * n_group; k += 512) copy16(to + i + k, few.halves + i + k);
        copies_commit();
#endif
    }
    if constexpr (OWN == 0) {
#pragma unroll 1
        for (int i = few.n_early; i < few.n_stages; i++) stream.fetch(i);
    }
#if !WOOLLY_BULK
    if constexpr (!IS_KEPT) {
        copies_wait<0>();
        __syncthreads();
    }
#endif

    const bool is_glu = finish.epilogue == GLU;
    const int n_each = is_glu ? 8 : 16, n_held = HELD_SUMS / TEAM / n_group;
    const int apart = n_group * SUMS_APART;  // sums of a slice
#pragma unroll 1
    for (int first = 0, half = 0; Place::strip_at(first * TEAM) < stream.n_strips; first += n_held, half ^= 1) {
        float* held = sums + (N_PLACES > 1 ? half * PLACE : 0);

        // The element that this thread finishes after the round; what it needs comes while tiles do.
        const int e = int(threadIdx.x) & (n_each - 1), of = int(threadIdx.x) >> (is_glu ? 3 : 4);
        const int row = of & (n_group - 1), round = of / n_group;
        const int number = Place::strip_at((first + round) * TEAM + Place::rank());
        int which;
        const int strip = stream.strip_of(number, which);
        const Element element(all, which, strip, e, row, n_tiles, stream.bytes_of(which),
                              round < n_held && number < stream.n_strips && row < n_rows, finish);
        const float back = !element.is_mine ? 0 : OWN > 0 ? backs[row] : __ldcg(few.backs + row);

#pragma unroll 1
        for (int i = 0; i < n_held && Place::strip_at((first + i) * TEAM) < stream.n_strips; i++) {
            Place c;
            c.seek(first + i, warp, n_tiles);
            if (TEAM > 1 && c.strip >= stream.n_strips) break;
            float acc[4] = {0, 0, 0, 0};
            auto products = [&](auto opener) {
                if constexpr (IS_KEPT) {
                    if (c.tile < c.end) stream.multiply(opener, acc, [&](int k32) { return kept[k32]; });
                } else {
                    int place = c.before(n_tiles);
                    const u8* columns = halves + place * 512 * n_group + from;
#pragma unroll 1
                    for (; c.tile < c.end; c.tile++, place++, columns += 512 * n_group) {
#if WOOLLY_BULK
                        barrier_wait(arrived + place * 8, 0);
#endif
                        stream.multiply(opener, acc, [&](int k32) {
                            return *reinterpret_cast<const Words4*>(columns + k32 * 64 * n_group);
                        });
                    }
                }
            };
            if (stream.IS_MIXED && c.strip >= stream.n_two)
                products(Tile<U>());
            else
                products(Tile<T>());
            float* sum = held + ((i * TEAM + warp / N) * N + c.slice / TEAM) * apart + 2 * t * SUMS_APART + g;
            if (2 * t < n_group) sum[0] = acc[0], sum[8] = acc[2];
            if (2 * t + 1 < n_group) sum[SUMS_APART] = acc[1], sum[SUMS_APART + 8] = acc[3];
        }
        team_barrier<TEAM>();  // double-buffered sums: no barrier needed here
        auto summed = [&](int e) {
            const float* from = held + (round * TEAM + Place::rank()) * N * apart + row * SUMS_APART + e;
            float sum = 0;
#pragma unroll
            for (int s = 0; s < N_SLICES; s++) sum += load_of<TEAM>(from + s / TEAM * apart, s % TEAM);
            return sum;
        };
        if (element.is_mine) element.store(summed, e, back, finish);
        if (N_PLACES == 1) team_barrier<TEAM>();
    }
    if (TEAM > 1 && N_PLACES > 1) team_barrier<TEAM>();  // nobody's shared memory is needed any more
    // The last block leaves zeros.
    if (OWN == 0 && threadIdx.x == 0 && atomicAdd(few.arrivals + 1, 1u) + 1 == gridDim.x)
        few.arrivals[0] = few.arrivals[1] = 0;
}

}  // namespace

// Up to n_group rows of x, 1, 2, 4 or 8, to up to three values; `_kept` and, for two rows, `_two` for 1, 2, 4, 8 or 16
// tiles of columns in aligned fours. grid: blocks that share the strips.
#define LINEAR_FEW_OF(declared, Type, Other, IS_KEPT, TEAM, OWN)                                                       \
    declared(const Batch* batch, const u8* tiles0, int n_strips0, int n_columns, const u8* tiles1, int n_strips1,      \
             int n_stages, const u8* tiles2, int n_strips2, int n_early, int kind, int n_group, const float* x,        \
             const float* norm, float eps, u8* halves, float* backs, u32* arrivals, int n_rows0, int n_rows1,          \
             int n_rows2, const float* bias0, const float* bias1, const float* bias2, float* y0, float* y1, float* y2, \
             FINISH) {                                                                                                 \
        const Matrix all[3] = {MATRIX_OF(0), MATRIX_OF(1), MATRIX_OF(2)};                                              \
        const Finish finish = FINISH_OF;                                                                               \
        const Few few = {n_columns, n_stages, n_early, n_group, x, norm, eps, halves, backs, arrivals};                \
        linear_few<Type, Other, IS_KEPT, TEAM, OWN>(batch, kind, all, few, finish);                                    \
    }
#define LINEAR_FEW_MIXED(name, Type, Other)                                           \
    LINEAR_FEW_OF(KERNEL_OF(512, linear_few__##name##_two), Type, Other, true, 1, 2)  \
    LINEAR_FEW_OF(KERNEL_OF(512, linear_few__##name##_kept), Type, Other, true, 1, 0) \
    LINEAR_FEW_OF(KERNEL_IN_PAIRS(512, linear_few__##name), Type, Other, false, PAIR, 0)
#define LINEAR_FEW(name, Type) LINEAR_FEW_MIXED(name, Type, Type)
#ifdef WOOLLY_TYPE
LINEAR_FEW(WOOLLY_NAME, WOOLLY_TYPE)
#else
TILE_TYPES(LINEAR_FEW)
// Files of mixed types have q and k of one kind and v of the other.
LINEAR_FEW_MIXED(q4_k_q6_k, Q4_K, Q6_K)
LINEAR_FEW_MIXED(q5_k_q6_k, Q5_K, Q6_K)
#endif
