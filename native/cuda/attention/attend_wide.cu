// attend over f16 and q8_0 caches for many rows of a sequence on Hopper: a block takes 128 queries, the heads of one KV
// head of rows that follow one another, and walks all their positions. Two teams of four warps have 64 queries each;
// four more warps copy K and V, or eight, which open those of q8_0. While a team works on its powers, the other has the
// tensor cores. Bits are those of few rows.
#include "attention/attend_mma.cuh"
#include "attention/attend_wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int TEAM = 64, WIDE = 2 * TEAM, SLOTS = 6, UNDER_WAY = 3;
constexpr int STAGED = 3;  // groups of q8_0 as they are in the cache

namespace {

template <int D, int type>
struct Wide {
    static constexpr int room = (D + 63) / 64 * 64;  // of rows in shared memory; what is behind D is not read
    static constexpr int bytes = GROUP * 2 * room, q_bytes = WIDE * 2 * room, sum_bytes = WIDE * 4 * D;
    // Threads that copy; to open takes more of them. And registers of a thread of theirs, and of a team.
    static constexpr int copiers = type == F16 ? 128 : 256, few = 40, many = type == F16 ? 232 : 216;
    // Chunks of 16 bytes of q8_0, of a thread.
    static constexpr __device__ int n_staged() { return GROUP * D / 16 / copiers; }

    const Attend& a;
    u8 *const q, *const ring, *const sums;  // in shared memory
    float* const all_times;
    const u32 full, free;  // barriers of the ring
    u8* const staged;      // whole numbers and scales of q8_0, each thread's own
    const int kv_head;

    __device__ __forceinline__ Wide(const Attend& a, u8* memory, int kv_head)
        : a(a),
          q(memory),
          ring(memory + q_bytes),
          sums(ring + SLOTS * bytes),
          all_times(reinterpret_cast<float*>(sums + sum_bytes)),
          full(shared_address(all_times + WIDE)),
          free(full + 8 * SLOTS),
          staged(reinterpret_cast<u8*>(all_times + WIDE) + 16 * SLOTS),
          kv_head(kv_head) {}

    // Where 16 bytes of a row are: blocks of 64 columns, rows of 128 bytes, in the order of wgmma's operands.
    static __device__ __forceinline__ int place(int n_rows, int row, int chunk) {
        return (chunk / 8 * n_rows + row) * 128 + ((chunk ^ row) & 7) * 16;
    }

    __device__ __forceinline__ Seen range_of(int row, int end) const {
        const Seen early = seen(a, row), late = seen(a, end - 1);
        return {min(early.first, late.first), max(early.last, late.last)};
    }

    // What this thread wrote to shared memory is there for the tensor cores, once a barrier was passed.
    static __device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

    // Copies K and V of the rows from `row` to `end` of sequence `s`; `piece` counts groups of K and of V.
    __device__ __forceinline__ void bring(int s, int row, int end, int& piece) const {
        if constexpr (type == F16)
            bring_halves(s, row, end, piece);
        else
            bring_bytes(s, row, end, piece);
    }
    __device__ __forceinline__ void bring_rest(int piece) const {
        cp_async_wait<0>();
        if constexpr (type == F16) {
            publish();
            for (int i = max(0, piece - UNDER_WAY); i < piece; i++) mbarrier_arrive(full + 8 * (i % SLOTS));
        } else {
            for (int i = max(0, piece - STAGED + 1); i < piece; i++) open(i);
        }
    }

    // A thread has some chunks of the same columns, and opens what it has copied.
    __device__ __forceinline__ u8* staged_at(int piece, int i) const {
        return staged + ((piece % STAGED * n_staged() + i) * copiers + threadIdx.x % copiers) * 16;
    }
    __device__ __forceinline__ float* staged_scale(int piece, int i) const {
        return reinterpret_cast<float*>(staged + STAGED * n_staged() * copiers * 16) +
               (piece % STAGED * n_staged() + i) * copiers + threadIdx.x % copiers;
    }
    // The first row of a thread and its chunk: eight threads write to different banks.
    static __device__ __forceinline__ int2 staged_place() {
        const int i = threadIdx.x % copiers;
        return D == 128 ? make_int2(i / 16 * 2 + i / 4 % 2, i % 4 + i / 8 % 2 * 4) : make_int2(i / 4, i % 4);
    }
    __device__ __forceinline__ void bring_bytes(int s, int row, int end, int& piece) const {
        constexpr int step = copiers / (D / 16);
        const int first_row = staged_place().x, chunk = staged_place().y;
        const Entry entry = a.b->entries[a.entry];
        const int* const table = entry.pages + (long long)s * a.b->max_pages;
        const Seen range = range_of(row, end);
        for (int at = range.first / GROUP; at <= range.last / GROUP; at++) {
            const int from = at * GROUP;
            const int pages[2] = {from + PAGE > range.first ? table[from / PAGE] : 0,
                                  from + PAGE <= range.last ? table[from / PAGE + 1] : 0};
            for (int is_v = 0; is_v < 2; is_v++, piece++) {
                const u8* const all = is_v ? entry.v : entry.k;
                const u8* const heads[2] = {head_of<type>(all, pages[0], a.kv_heads, kv_head, D),
                                            head_of<type>(all, pages[1], a.kv_heads, kv_head, D)};
#pragma unroll
                for (int i = 0; i < n_staged(); i++) {
                    const int at_row = first_row + i * step, p = from + at_row;
                    const u8* const head = step > PAGE ? heads[at_row / PAGE] : heads[i * step / PAGE];
                    cp_async16(staged_at(piece, i), head + at_row % PAGE * D + chunk * 16);
                    const bool is_seen = p >= range.first && p <= range.last;  // else its scale is zero
                    asm volatile(
                        "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(staged_scale(piece, i))),
                        "l"(head + PAGE * D + (at_row % PAGE * (D / 32) + chunk / 2) * 4), "r"(is_seen ? 4 : 0)
                        : "memory");
                }
                cp_async_commit();
                if (piece < STAGED - 1) continue;
                cp_async_wait<STAGED - 1>();
                open(piece - STAGED + 1);
            }
        }
    }
    // Opens a group of K, in the order of slot_of, or of V.
    __device__ __forceinline__ void open(int piece) const {
        constexpr int step = copiers / (D / 16);
        const int first_row = staged_place().x, chunk = staged_place().y, slot = piece % SLOTS;
        Words4 x[n_staged()];
        u32 scales[n_staged()];
#pragma unroll
        for (int i = 0; i < n_staged(); i++) {
            x[i] = *reinterpret_cast<const Words4*>(staged_at(piece, i));
            const float scale = *staged_scale(piece, i);
            scales[i] = scales_of(scale, scale);
        }
        mbarrier_wait(free + 8 * slot, (piece / SLOTS & 1) ^ 1);
        u8* const to = ring + slot * bytes;
#pragma unroll
        for (int i = 0; i < n_staged(); i++) {
            const int row = first_row + i * step;
            Words4 one = opened(Words2{x[i].x, x[i].y}, scales[i]), other = opened(Words2{x[i].z, x[i].w}, scales[i]);
            if (piece % 2 == 0) {
                const Words4 low{one.x, one.z, other.x, other.z}, high{one.y, one.w, other.y, other.w};
                one = low, other = high;
            }
            *reinterpret_cast<Words4*>(to + place(GROUP, row, 2 * chunk)) = one;
            *reinterpret_cast<Words4*>(to + place(GROUP, row, 2 * chunk + 1)) = other;
        }
        publish();
        mbarrier_arrive(full + 8 * slot);
    }

    __device__ __forceinline__ void bring_halves(int s, int row, int end, int& piece) const {
        constexpr int chunks = D / 8, of_page = PAGE * chunks;
        const int tid = threadIdx.x % copiers;
        const Entry entry = a.b->entries[a.entry];
        const int* const table = entry.pages + (long long)s * a.b->max_pages;
        const Seen range = range_of(row, end);
        for (int at = range.first / GROUP; at <= range.last / GROUP; at++) {
            const int from = at * GROUP;
            const int pages[2] = {from + PAGE > range.first ? table[from / PAGE] : 0,
                                  from + PAGE <= range.last ? table[from / PAGE + 1] : 0};
            for (int is_v = 0; is_v < 2; is_v++, piece++) {
                const int slot = piece % SLOTS;
                const u8* const all = is_v ? entry.v : entry.k;
                const u8* const heads[2] = {head_of<F16>(all, pages[0], a.kv_heads, kv_head, D),
                                            head_of<F16>(all, pages[1], a.kv_heads, kv_head, D)};
                mbarrier_wait(free + 8 * slot, (piece / SLOTS & 1) ^ 1);
                u8* const to = ring + slot * bytes;
                const bool is_whole = from >= range.first && from + GROUP - 1 <= range.last;
#pragma unroll
                for (int i = 0; i < GROUP * chunks / copiers; i++) {
                    // Positions of a head follow one another in a page.
                    const int chunk = i * copiers + tid, p = from + chunk / chunks;
                    const bool is_first = (i + 1) * copiers <= of_page || (i * copiers < of_page && chunk < of_page);
                    cp_async16_zfill(to + place(GROUP, chunk / chunks, chunk % chunks),
                                     heads[is_first ? 0 : 1] + (is_first ? chunk : chunk - of_page) * 16,
                                     is_whole || (p >= range.first && p <= range.last));
                }
                cp_async_commit();
                if (piece >= UNDER_WAY) {
                    cp_async_wait<UNDER_WAY>();
                    publish();
                    mbarrier_arrive(full + 8 * ((piece - UNDER_WAY) % SLOTS));
                }
            }
        }
    }
    // Starts the product of the team's queries and a group of K.
    __device__ __forceinline__ void start_scores(float (&scores)[GROUP / 2], int team, int piece) const {
        const int slot = piece % SLOTS;
        const u64 rows = wgmma_descriptor(shared_address(q) + team * TEAM * 128),
                  columns = wgmma_descriptor(shared_address(ring) + slot * bytes);
        mbarrier_wait(full + 8 * slot, piece / SLOTS & 1);
        wgmma_fence();
#pragma unroll
        for (int c = 0; c < D / 16; c++)
            start_products(scores, rows + (c / 4 * WIDE * 128 + c % 4 * 32) / 16,
                           columns + (c / 4 * GROUP * 128 + c % 4 * 32) / 16, c > 0);
        wgmma_commit();
    }

    __device__ __forceinline__ void release(int piece) const {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(free + 8 * (piece % SLOTS));
    }

    __device__ __forceinline__ Query query(int row, int end, int at) const {
        const int group = a.group();
        return query_of(a, row + at / group, kv_head * group + at % group, row + at / group < end);
    }
    // 16 queries of each warp to shared memory, of rows from `row` to `end`: eight threads load one.
    __device__ __forceinline__ void load_queries(int row, int end) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
        float2 x[4][8];  // of four queries at once
#pragma unroll
        for (int i = 0; i < 4; i++) fetch_query(a, query(row, end, warp * 16 + 4 * i + lane / 8), 0, lane % 8, x[i]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = warp * 16 + 4 * i + lane / 8;
            const Scaled scaled(max_magnitude(x[i], 0.f));
            put_query(x[i], scaled.up, 0, D, lane % 8, [&](int c) {
                const int to = type == F16 ? c : slot_of(c);
                return q + place(WIDE, at, to / 8) + to % 8 * 2;
            });
            if (lane % 8 == 0) all_times[at] = scaled.times(a);
        }
    }
    // Numerators of the softmax of a group, with their maxima and totals.
    __device__ __forceinline__ static void find_powers(u32 (&powers)[GROUP / 16][4], float (&tops)[2],
                                                       float (&totals)[4], const float (&scores)[GROUP / 2],
                                                       const Query (&mine)[2], bool is_plain) {
        const float factors[2] = {mine[0].factor(is_plain), mine[1].factor(is_plain)};
        float bases[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float two[2] = {scores[2 * half], scores[2 * half + 1]};
#pragma unroll
            for (int n = 1; n < GROUP / 8; n++) {
                two[0] = fmaxf(two[0], scores[4 * n + 2 * half]);
                two[1] = fmaxf(two[1], scores[4 * n + 2 * half + 1]);
            }
            float top = fmaxf(two[0], two[1]);
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
            tops[half] = __fmul_rn(fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2)), factors[half]);
            bases[half] = finite_top(tops[half]);
        }
#pragma unroll
        for (int i = 0; i < GROUP / 16; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float* two = scores + 8 * i + 2 * e;
                powers[i][e] = to_half2(power_at(two[0], factors[e % 2], bases[e % 2]),
                                        power_at(two[1], factors[e % 2], bases[e % 2]));
            }
            mma(totals, powers[i], ONES, ONES);
        }
    }
    // Merges a unit into the sums of all, which wait in shared memory, and clears it.
    __device__ __forceinline__ static void add_unit(Softmax (&all)[2], Softmax (&unit)[2], float4* own,
                                                    float (&of_unit)[D / 2]) {
        float old[2], now[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            all[half].merge(unit[half].top, unit[half].sum, old[half], now[half]);
            unit[half] = Softmax();
        }
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            float4 sum = own[j * 32];
            sum.x = merged(sum.x, old[0], of_unit[4 * j], now[0]);
            sum.y = merged(sum.y, old[0], of_unit[4 * j + 1], now[0]);
            sum.z = merged(sum.z, old[1], of_unit[4 * j + 2], now[1]);
            sum.w = merged(sum.w, old[1], of_unit[4 * j + 3], now[1]);
            own[j * 32] = sum;
        }
#pragma unroll
        for (int i = 0; i < D / 2; i++) of_unit[i] = 0.f;
    }

    // Rows from `row` to `end`, by the threads of a team.
    __device__ __forceinline__ void attend(int row, int end, int& piece) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, team = warp / 4, g = lane / 4, t = lane % 4;
        const Seen range = range_of(row, end);
        const int first = of_warp(range.first / GROUP), last = of_warp(range.last / GROUP);
        named_barrier(1 + team, 128);  // wait for readers of the previous rows
        load_queries(row, end);
        publish();
        named_barrier(1 + team, 128);
        Query mine[2];  // g and g + 8 of the warp
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = warp * 16 + g + 8 * half;
            mine[half] = query(row, end, at);
            mine[half].times = all_times[at];
        }
        const Seen inner = seen_by_all(mine);

        const bool is_plain = a.is_plain();
        Softmax all[2], unit[2];
        float scores[GROUP / 2], of_group[D / 2], of_unit[D / 2];
        // Sums over units wait in shared memory, each lane's own.
        float4* const own = reinterpret_cast<float4*>(sums) + warp * (D / 8) * 32 + lane;
#pragma unroll
        for (int j = 0; j < D / 8; j++) own[j * 32] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int i = 0; i < D / 2; i++) of_unit[i] = 0.f;

        auto finish_scores = [&]() {
            wgmma_wait<0>();
            settle(scores);
            release(piece);
        };
        // A group, whose scores are there. Those of the next are on their way while its sums are merged.
        auto work = [&](int at, bool is_last) {
            const int from = at * GROUP;
            if (!__all_sync(ALL_LANES, is_plain && from >= inner.first && from + GROUP - 1 <= inner.last)) {
#pragma unroll
                for (int i = 0; i < GROUP / 2; i++)
                    scores[i] = score_at(a, mine[i / 2 % 2], scores[i], from + i / 4 * 8 + 2 * t + i % 2, is_plain);
            }
            float tops[2], totals[4] = {}, old[2], now[2];
            u32 powers[GROUP / 16][4];
            find_powers(powers, tops, totals, scores, mine, is_plain);
            const int slot = (piece + 1) % SLOTS;
            const u64 columns = transposed_descriptor(shared_address(ring) + slot * bytes, GROUP * 128);
            mbarrier_wait(full + 8 * slot, (piece + 1) / SLOTS & 1);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < GROUP / 16; i++)
                Wgmma<D, true>::go(of_group, powers[i], columns + i * 16 * 128 / 16, i > 0);
            wgmma_commit();
            if (is_last) {
                wgmma_wait<0>();
            } else {
                start_scores(scores, team, piece + 2);
                wgmma_wait<1>();
            }
            settle(of_group);
            release(piece + 1);
#pragma unroll
            for (int half = 0; half < 2; half++) unit[half].merge(tops[half], totals[2 * half], old[half], now[half]);
#pragma unroll
            for (int i = 0; i < D / 2; i++)
                of_unit[i] = merged(of_unit[i], old[i / 2 % 2], of_group[i], now[i / 2 % 2]);
            piece += 2;
            if (!is_last) finish_scores();
            if (at % (UNIT / GROUP) != UNIT / GROUP - 1 && !is_last) return;
            add_unit(all, unit, own, of_unit);
        };
        start_scores(scores, team, piece);
        finish_scores();
        for (int at = first; at < last; at++) work(at, false);
        work(last, true);

        store_sums<D>(a, mine, all, own, t);
    }
};

// A block takes `rows` rows of the batch, of one sequence after another. Late rows see the most: they come first.
template <int D, int type>
__device__ __forceinline__ void attend(const Attend& a) {
    DYNAMIC_SHARED(raw);
    u8* const memory = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
    launch_dependents();
    const Wide<D, type> wide(a, memory, blockIdx.x);
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++)
            mbarrier_init(wide.full + 8 * i, wide.copiers), mbarrier_init(wide.free + 8 * i, 2 * TEAM / 16);
        mbarrier_init_fence();
    }
    __syncthreads();
    wait_for_previous_kernel();
    const int rows = WIDE / a.group();
    int row = (gridDim.y - 1 - blockIdx.y) * rows, piece = 0;
    const int end = min(row + rows, a.b->n_rows);
    if (of_warp(threadIdx.x / 128) >= 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Wide<D, type>::few));
        while (row < end) {
            const int s = a.b->sequences[row], after = min(end, a.b->offsets[s + 1]);
            if (!is_of_few(a, row)) wide.bring(s, row, after, piece);
            row = after;
        }
        wide.bring_rest(piece);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Wide<D, type>::many));
        while (row < end) {
            const int s = a.b->sequences[row], after = min(end, a.b->offsets[s + 1]);
            if (!is_of_few(a, row)) wide.attend(row, after, piece);
            row = after;
        }
    }
}

}  // namespace

#define ATTEND_WIDE(n_threads, name, type, D) \
    KERNEL_THREADS(n_threads, attend_wide_##name##_##D)(ATTEND_PARAMETERS) { attend<D, type>(ATTEND_ARGUMENTS); }

ATTEND_WIDE(384, f16, F16, 64)
ATTEND_WIDE(384, f16, F16, 80)
ATTEND_WIDE(384, f16, F16, 96)
ATTEND_WIDE(384, f16, F16, 128)
ATTEND_WIDE(512, q8_0, Q8_0, 64)
ATTEND_WIDE(512, q8_0, Q8_0, 128)

#endif
