// Products of 2 to 8 rows, as linear_one.cu computes those of one: the rows are the operand B, whose 8 columns cost as
// much as one.
//
// More than two rows are normed and halved once: the first blocks take one each and leave it in memory as lanes want
// it; a counter tells the others. That is sooner than by a kernel before this one, which would have to begin and to
// end.
//
// Rows of 4096 columns stay in registers. Longer ones lie in shared memory, and 8 of them would fill it: so on Hopper
// blocks work in pairs, each with half the slices, and read the other's sums.
#include "primitives/small_batch.cuh"

namespace {

// How far rows of sums are apart in shared memory: so that lanes that store sums do not meet in a bank.
constexpr int SUMS_APART = 20;

// Norms all rows and converts them to f16, each by a part of the threads; `asked` is called when the loads are on their
// way.
template <int OWN, class Asked>
__device__ __forceinline__ void halve_rows(const Few& few, int n_rows, int n_tiles, u8* halves, float* reduced,
                                           float* backs, Asked&& asked) {
    RowHalver<2, true, true, OWN> halver(few.norm, few.n_columns, n_tiles * 256);
    const int r = int(threadIdx.x) / (ROW_THREADS / OWN);
    wait_for_previous_kernel();
    const float* x = few.x + u64(min(r, max(n_rows, 1) - 1)) * few.n_columns;
    const float back = halver.halve(
        x, few.eps, reduced + r * 32,
        [&](int k, u32 low, u32 high) { *reinterpret_cast<Words2*>(halves + half_at(k, r, OWN)) = {low, high}; },
        asked);
    if (row_thread<OWN>() == 0) backs[r] = back;
}

// What a lane multiplies a tile with, from shared memory, or from that of the device.
__device__ __forceinline__ void load_words(Words4 (&to)[8], const u8* from, int apart) {
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = *reinterpret_cast<const Words4*>(from + i * apart);
}
__device__ __forceinline__ void load_far_words(Words4 (&to)[8], const u8* from, int apart) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint4 v = __ldcg(reinterpret_cast<const uint4*>(from + i * apart));
        to[i] = {v.x, v.y, v.z, v.w};
    }
}

// Producer of halves: starts the copies of those of the block's slices to shared memory, tile by tile.
template <int TEAM>
__device__ __forceinline__ void copy_halves(const Few& few, u8* halves, int n_tiles, int warp, int lane, u32 arrived) {
    constexpr int N = CursorOf<TEAM>::N;
    const int n_group = few.n_group;
    CursorOf<TEAM> c;
    c.seek(0, warp, n_tiles);
    u8* to = halves + (c.before(n_tiles) - c.tile) * 512 * n_group;
#if WOOLLY_BULK
    // One lane copies; a barrier of each tile tells all warps.
    const u64 policy = evict_last_policy();
    if (lane == 0) {
        fence_async_proxy();
        for (int i = c.tile + warp / N; i < c.end; i += TEAM) {
            const u32 barrier = arrived + (c.before(n_tiles) - c.tile + i) * 8;
            mbarrier_expect_tx(barrier, 512 * n_group);
            bulk_copy(shared_address(to + i * 512 * n_group), few.halves + i * 512 * n_group, 512 * n_group, barrier,
                      policy);
        }
    }
#else
    for (int i = (c.tile + warp / N) * 512 * n_group; i < c.end * 512 * n_group; i += TEAM * 512 * n_group)
        for (int k = lane * 16; k < 512 * n_group; k += 512) cp_async16(to + i + k, few.halves + i + k);
    cp_async_commit();
#endif
}

// The tiles of a slice times rows in shared memory, of which `rows` is this lane's.
template <class Tiles, class Opener, class Place>
__device__ __forceinline__ void multiply_slice(Tiles& stream, Opener opener, float (&acc)[4], Place& c, int n_tiles,
                                               const u8* rows, int n_group, u32 arrived) {
    int place = c.before(n_tiles);
    const u8* columns = rows + place * 512 * n_group;
#pragma unroll 1
    for (; c.tile < c.end; c.tile++, place++, columns += 512 * n_group) {
#if WOOLLY_BULK
        mbarrier_wait(arrived + place * 8, 0);
#endif
        stream.multiply(opener, acc,
                        [&](int k32) { return *reinterpret_cast<const Words4*>(columns + k32 * 64 * n_group); });
    }
}

// Sums that wait in shared memory: of how many strips times rows, and in how many places in turn.
template <bool IS_KEPT, int TEAM>
struct Held {
    static constexpr int SUMS = IS_KEPT ? 32 : 16, N_PLACES = IS_KEPT ? 2 : 1;
    static constexpr int PLACE = SUMS * CursorOf<TEAM>::N * SUMS_APART;
};

// Consumers: products of the strips of the block, round by round, and the epilogue. `rows`: halves in shared memory, as
// this lane wants them, if they are not kept in registers.
template <bool IS_KEPT, int TEAM, int OWN, class T, class U>
__device__ __forceinline__ void compute_rounds(Stream<T, U, TEAM>& stream, const Few& few, const Finish& finish,
                                               int n_rows, const Words4 (&kept)[8], const u8* rows, u32 arrived,
                                               float* sums, const float* backs) {
    typedef CursorOf<TEAM> Place;
    typedef Held<IS_KEPT, TEAM> Sums;
    constexpr int N = Place::N;
    const int lane = stream.lane, warp = stream.warp, g = lane >> 2, t = lane & 3;
    const int n_tiles = stream.n_tiles, n_group = few.n_group;
    const bool is_glu = finish.epilogue == GLU;
    const int n_each = is_glu ? 8 : 16, n_held = Sums::SUMS / TEAM / n_group;
    const int apart = n_group * SUMS_APART;  // sums of a slice
#pragma unroll 1
    for (int first = 0, half = 0; Place::strip_at(first * TEAM) < stream.n_strips; first += n_held, half ^= 1) {
        float* held = sums + (Sums::N_PLACES > 1 ? half * Sums::PLACE : 0);

        // The element that this thread finishes after the round; what it needs comes while tiles do.
        const int e = int(threadIdx.x) & (n_each - 1), of = int(threadIdx.x) >> (is_glu ? 3 : 4);
        const int row = of & (n_group - 1), round = of / n_group;
        const int number = Place::strip_at((first + round) * TEAM + Place::rank());
        int which;
        const int strip = stream.strip_of(number, which);
        const Element element(stream.all, which, strip, e, row, n_tiles, stream.bytes_of(which),
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
                    multiply_slice(stream, opener, acc, c, n_tiles, rows, n_group, arrived);
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
        if (Sums::N_PLACES == 1) team_barrier<TEAM>();
    }
}

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
    typedef Held<IS_KEPT, TEAM> Sums;

    // Shared: reductions and barriers in 1 KB each, sums, halves of the block's slices if they are not kept, rings.
    float* reduced = reinterpret_cast<float*>(shared);
    float* sums = reinterpret_cast<float*>(shared + 2048);
    u8* halves = reinterpret_cast<u8*>(sums + Sums::N_PLACES * Sums::PLACE);
    const int n_mine = n_tiles / N_SLICES * N + (n_tiles % N_SLICES + TEAM - 1) / TEAM;
    Stream<T, U, TEAM> stream(all, n_tiles, warp, lane);
    stream.start(shared, halves + (IS_KEPT && OWN == 0 ? 0 : n_mine * 512 * n_group), few.n_stages);
    u32 arrived = 0;  // barriers of halves that come tile by tile; there is room for 112
#if WOOLLY_BULK
    arrived = shared_address(shared + 128);
    if (!IS_KEPT && int(threadIdx.x) < n_mine) {
        mbarrier_init(arrived + threadIdx.x * 8, 1);
        mbarrier_init_fence();
    }
#endif
#pragma unroll 1
    for (int i = 0; i < few.n_early; i++) stream.fetch(i);
    launch_dependents();
    const int n_rows = min(batch->rows(kind), n_group);
    if constexpr (OWN > 0) {
        halve_rows<OWN>(few, n_rows, n_tiles, halves, reduced, reduced + 128, [&] {
#pragma unroll 1
            for (int i = few.n_early; i < few.n_stages; i++) stream.fetch(i);
        });
        __syncthreads();
    } else {
        wait_for_previous_kernel();
        if constexpr (IS_KEPT)
            prepare_rows<2, true>(few, n_rows, n_tiles, reduced);
        else if (few.n_columns % 4 == 0 && few.n_columns <= 7 * 4 * ROW_THREADS)
            prepare_rows<7, true>(few, n_rows, n_tiles, reduced);
        else
            prepare_rows<7, false>(few, n_rows, n_tiles, reduced);
    }

    const int from = min(g, max(n_rows, 1) - 1) * 64 + t * 16;  // of this lane; rows behind the last repeat it
    Words4 kept[8];
    if constexpr (IS_KEPT && OWN > 0)
        load_words(kept, halves + warp % n_tiles * 512 * OWN + from, 64 * OWN);
    else if constexpr (IS_KEPT)
        load_far_words(kept, few.halves + (warp % N * TEAM + Place::rank()) % n_tiles * 512 * n_group + from,
                       64 * n_group);
    else
        copy_halves<TEAM>(few, halves, n_tiles, warp, lane, arrived);
    if constexpr (OWN == 0) {
#pragma unroll 1
        for (int i = few.n_early; i < few.n_stages; i++) stream.fetch(i);
    }
#if !WOOLLY_BULK
    if constexpr (!IS_KEPT) {
        cp_async_wait<0>();
        __syncthreads();
    }
#endif

    compute_rounds<IS_KEPT, TEAM, OWN>(stream, few, finish, n_rows, kept, halves + from, arrived, sums, reduced + 128);
    if (TEAM > 1 && Sums::N_PLACES > 1) team_barrier<TEAM>();  // nobody's shared memory is needed any more
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
#define LINEAR_FEW_MIXED(name, Type, Other)                                                \
    LINEAR_FEW_OF(KERNEL_THREADS(512, linear_few__##name##_two), Type, Other, true, 1, 2)  \
    LINEAR_FEW_OF(KERNEL_THREADS(512, linear_few__##name##_kept), Type, Other, true, 1, 0) \
    LINEAR_FEW_OF(KERNEL_CLUSTER2(512, linear_few__##name), Type, Other, false, PAIR, 0)
#define LINEAR_FEW(name, Type) LINEAR_FEW_MIXED(name, Type, Type)
// Files of mixed types have q and k of one kind and v of the other.
#define FEW_IS_MIXED_q4_k 1
#define FEW_IS_MIXED_q5_k 1
#ifdef WOOLLY_TYPE
LINEAR_FEW(WOOLLY_NAME, WOOLLY_TYPE)
#define FEW_WITH_Q6_K(name, Type) LINEAR_FEW_MIXED(name##_q6_k, Type, Q6_K)
#define FEW_NAMED_WITH_Q6_K(name, Type) FEW_WITH_Q6_K(name, Type)
#if CONCAT(FEW_IS_MIXED_, WOOLLY_NAME)
FEW_NAMED_WITH_Q6_K(WOOLLY_NAME, WOOLLY_TYPE)
#endif
#else
TILE_TYPES(LINEAR_FEW)
LINEAR_FEW_MIXED(q4_k_q6_k, Q4_K, Q6_K)
LINEAR_FEW_MIXED(q5_k_q6_k, Q5_K, Q6_K)
#endif
