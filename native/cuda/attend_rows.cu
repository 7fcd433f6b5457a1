// attend over f16 caches for one row of each of several sequences, heads of K and V as long, together with store: the
// rows' heads are normed and turned here, with the functions of store: by every block its q, by the block of the newest
// position k, which it writes to the cache. No sequence may see a page that is written for another. Older positions are
// on their way before the kernel before has ended.
#include "attend_groups.cuh"
#include "store.cuh"

namespace {

constexpr int OF_UNIT = UNIT / GROUP, MOST_ROWS = 256;  // of a batch whose sequences are cut into runs
constexpr int WHOLE = 1 << 30;

// How groups of positions are dealt to the blocks of any grid: all of a sequence, or runs of whole units.
struct Runs {
    int per;      // groups of a run, WHOLE: as many as there are
    int n_items;  // runs of all rows, times KV heads and tiles of each

    // The last run has a quarter more at most, rather than that a short one follows.
    __device__ __forceinline__ int count(int first, int last) const {
        const int n = last / per - first / per + 1;
        return n > 1 && last % per < max(1, per / 4) ? n - 1 : n;
    }
};

__device__ __forceinline__ int most_of_warp(int x) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) x = max(x, __shfl_xor_sync(ALL_LANES, x, i));
    return x;
}

// Groups of a row.
__device__ __forceinline__ int2 groups_of(const Attend& a, int row) {
    const Seen range = seen(a, row);
    return make_int2(range.first / GROUP, range.last / GROUP);
}

// Chooses the runs whose blocks end first, by each warp, and fills `ends` with how many runs there are up to each row.
__device__ __forceinline__ Runs deal(const Attend& a, const Parts& parts, int of_row, int (&ends)[MOST_ROWS]) {
    const int lane = threadIdx.x % 32, n_rows = a.b->n_rows;
    Runs whole{WHOLE, n_rows * of_row};
    if (!parts.apart || n_rows > MOST_ROWS || whole.n_items >= 4 * int(gridDim.x)) return whole;
    int most = 0, sum = 0;
    for (int row = lane; row < n_rows; row += 32) {
        const int2 groups = groups_of(a, row);
        most = max(most, groups.y - groups.x + 1), sum += groups.y - groups.x + 1;
    }
    most = most_of_warp(most);
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, i);
    // A lane weighs one length: the longest row in so many runs, down or up to whole units.
    const int mean = (sum + n_rows - 1) / n_rows, parts_of_most = lane / 2 + 1;
    const int length = lane == 0 ? (most + OF_UNIT - 1) / OF_UNIT * OF_UNIT : most / parts_of_most;
    Runs mine{max(OF_UNIT, (length + lane % 2 * (OF_UNIT - 1)) / OF_UNIT * OF_UNIT), 0};
    const int n_each = mine.count(0, mean - 1), at_once = gridDim.x;
    const int longest = mine.count(0, most - 1) == 1 ? most : mine.per;
    const int rounds = (n_rows * n_each * of_row + at_once - 1) / at_once;
    const int cost = min(rounds * (longest + 1) + (longest < most), 1 << 18);
    const int key = -(cost << 12 | (4095 - min(mine.per, 4095)));  // of equal ones the longer
    const int best = most_of_warp(key);
    u32 who = __ballot_sync(ALL_LANES, key == best);
    mine.per = __shfl_sync(ALL_LANES, mine.per, __ffs(int(who)) - 1);
    if (mine.count(0, most - 1) == 1 && mine.per >= most) return whole;
    int before = 0;
    for (int base = 0; base < n_rows; base += 32) {
        int n = 0;
        if (base + lane < n_rows) {
            const int2 groups = groups_of(a, base + lane);
            n = mine.count(groups.x, groups.y);
        }
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            const int other = __shfl_sync(ALL_LANES, n, max(lane - i, 0));
            if (lane >= i) n += other;
        }
        if (base + lane < n_rows && threadIdx.x < 32) ends[base + lane] = before + n;
        before += __shfl_sync(ALL_LANES, n, 31);
    }
    mine.n_items = before * of_row;
    return mine;
}

// What a block takes at a time: a run of groups of one row and KV head.
struct Run {
    int row, kv_head, tile, first, last, n;  // n: runs of the row
    Seen range;

    // Runs of a row lie together, and of each run all KV heads.
    __device__ __forceinline__ Run(const Attend& a, const Runs& runs, int of_row, const int* ends, int item) {
        const int lane = threadIdx.x % 32, next = item / of_row, at = item - next * of_row;
        int number = 0;
        row = next, tile = at / a.kv_heads, kv_head = at - tile * a.kv_heads;
        if (runs.per != WHOLE) {
            row = 0;
            for (int base = 0; base < a.b->n_rows; base += 32)
                row += __popc(__ballot_sync(ALL_LANES, base + lane < a.b->n_rows && ends[base + lane] <= next));
            number = next - (row == 0 ? 0 : ends[row - 1]);
        }
        range = seen(a, row);
        first = range.first / GROUP, last = range.last / GROUP, n = 1;
        if (runs.per == WHOLE) return;
        n = runs.count(first, last);
        const int from = (first / runs.per + number) * runs.per;
        first = max(first, from), last = number == n - 1 ? last : from + runs.per - 1;
    }
};

// Heads of a row.
template <int D>
struct Heads {
    static constexpr int bytes = Groups<D, F16, true>::bytes, held = (D + 31) / 32;  // numbers of a head, of a lane

    const Groups<D, F16, true>& groups;
    const Turned& turned_by;
    const float *const k, *const v;

    // q as queries, k and v to the cache and, if their group is there, to the ring.
    __device__ __forceinline__ void prepare(const Entry& entry, const int* table, const Run& run) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, position = run.range.last;
        const Attend& a = groups.a;
        const int row = run.row, kv_head = run.kv_head, first_head = kv_head * a.group() + run.tile * QUERIES;
        // Where heads are turned: the ring's last place is still free.
        float* const heads = reinterpret_cast<float*>(groups.copies + (STAGES - 1) * 2 * bytes);
        float *const cosines = heads + (QUERIES + 2) * D, *const sines = cosines + D / 2;
        const int n = min(QUERIES, kv_head * a.group() + a.group() - first_head), newest = position / GROUP;
        const bool is_newest = newest >= run.first && newest <= run.last;
        u8* const group = newest - run.first < STAGES - 1 ? groups.copies + (newest - run.first) * 2 * bytes : nullptr;
        const int page = is_newest ? table[position / PAGE] : 0;
        const long long turns = turned_by.table(position);
        for (int i = tid; i < turned_by.n_turned / 2; i += THREADS)
            cosines[i] = a.b->cosines[turns + i], sines[i] = a.b->sines[turns + i];
        for (int i = tid; i < Groups<D, F16, true>::q_bytes / 16; i += THREADS)
            reinterpret_cast<Words4*>(groups.q)[i] = Words4{0, 0, 0, 0};
        if (tid < QUERIES)
            groups.shared.queries[tid] =
                tid < n ? Query{row, first_head + tid, position, run.range, 0.f} : Query{0, 0, 0, {1, 0}, 0.f};
        const float temper = tempered(a, row);
        __syncthreads();
        wait_for_kernel_before();
        const float *const k_from = k + ((long long)row * a.kv_heads + kv_head) * a.k_dim, *const v_from =
                                                                                               v + ((long long)row *
                                                                                                        a.kv_heads +
                                                                                                    kv_head) *
                                                                                                       a.v_dim;
        // The head after those of q is k, with v. All that a warp needs is asked for before it waits for the first.
#pragma unroll 1
        for (int i = warp; i < n + is_newest; i += 2 * WARPS) {
            const int end = min(n + is_newest, i + 2 * WARPS);
            float x[2][held], values[held];
#pragma unroll
            for (int h = 0; h < held; h++) {
                const int c = lane + 32 * h;
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int head = i + j * WARPS;
                    const float* const from =
                        head < n ? a.q + ((long long)row * a.heads + first_head + head) * a.k_dim : k_from;
                    x[j][h] = head < end && c < a.k_dim ? from[c] : 0.f;
                }
                values[h] = n < end && n % WARPS == warp && c < a.v_dim ? v_from[c] : 0.f;
            }
#pragma unroll
            for (int h = 0; h < held; h++) {
                const int c = lane + 32 * h;
                if (c >= D) continue;
                heads[i * D + c] = x[0][h];
                if (i + WARPS < end) heads[(i + WARPS) * D + c] = x[1][h];
                if (n < end && n % WARPS == warp) heads[(n + 1) * D + c] = values[h];
            }
            __syncwarp();
#pragma unroll 1
            for (int at = i; at < end; at += WARPS) {
                float* const head = heads + at * D;
                const float* const weight = at < n ? turned_by.q_norm : turned_by.k_norm;
                if (weight != nullptr) norm(head, weight, a.k_dim, turned_by.eps, lane);
                turn(turned_by, head, cosines, sines, lane);
                if (at < n)
                    put_query(head, at, temper, lane);
                else
                    put_newest(entry, head, kv_head, page, position, group, lane);
            }
        }
    }

    __device__ __forceinline__ void put_query(const float* head, int i, float temper, int lane) const {
        const Attend& a = groups.a;
        float x[held], most = 0.f;
#pragma unroll
        for (int h = 0; h < held; h++) {
            x[h] = lane + 32 * h < a.k_dim ? __fmul_rn(head[lane + 32 * h], temper) : 0.f;
            most = fmaxf(most, fabsf(x[h]));
        }
#pragma unroll
        for (int j = 16; j > 0; j >>= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, j));
        const Scaled scaled(most);
#pragma unroll
        for (int h = 0; h < held; h++)
            if (lane + 32 * h < a.k_dim)
                reinterpret_cast<u16*>(groups.q + i * Groups<D, F16, true>::q_stride)[lane + 32 * h] =
                    u16(to_halves(__fmul_rn(x[h], scaled.up), 0.f));
        if (lane == 0) groups.shared.queries[i].times = scaled.times(a);
    }

    // k, behind which lies v.
    __device__ __forceinline__ void put_newest(const Entry& entry, float* head, int kv_head, int page, int position,
                                               u8* group, int lane) const {
        const Attend& a = groups.a;
        const float* const value = head + D;
        const int n_values = check_value(head, a.k_dim, value, a.v_dim, lane) ? a.v_dim : 0;
        u8 *const k_page = const_cast<u8*>(head_of<F16>(entry.k, page, a.kv_heads, kv_head, D)),
                  *const v_page = const_cast<u8*>(head_of<F16>(entry.v, page, a.kv_heads, kv_head, D));
        put<F16>(head, a.k_dim, D, k_page, position % PAGE, lane);
        put<F16>(value, n_values, D, v_page, position % PAGE, lane);
        if (group == nullptr) return;
        for (int c = 2 * lane; c < D; c += 64) {
            u8* const to = group + Groups<D, F16, true>::place(position % GROUP, c / 8) + c % 8 * 2;
            *reinterpret_cast<u32*>(to) =
                to_halves_saturated(c < a.k_dim ? head[c] : 0.f, c + 1 < a.k_dim ? head[c + 1] : 0.f);
            *reinterpret_cast<u32*>(to + bytes) =
                to_halves_saturated(c < n_values ? value[c] : 0.f, c + 1 < n_values ? value[c + 1] : 0.f);
        }
    }
};

template <int D>
__device__ __forceinline__ void attend(const Attend& a, const Turned& turned, const float* k, const float* v) {
    DYNAMIC_SHARED(memory);
    __shared__ Shared shared;
    __shared__ int ends[MOST_ROWS];
    let_next_kernel_begin();
    const int tiles = (a.group() + QUERIES - 1) / QUERIES, of_row = a.kv_heads * tiles, lane = threadIdx.x % 32;
    const Entry entry = a.b->entries[a.entry];
    const Parts parts(a, UNIT);
    const Runs runs = deal(a, parts, of_row, ends);
    __syncthreads();
    const Groups<D, F16, true> groups(a, shared, memory);
    const Heads<D> heads{groups, turned, k, v};
    for (int item = blockIdx.x; item < runs.n_items; item += gridDim.x) {
        const Run run(a, runs, of_row, ends, item);
        groups.attend(
            entry, {run.row, run.row, run.row, run.kv_head, run.tile, run.range, run.range}, run.first, run.last,
            run.n > 1 ? UNIT : 0, 1,
            [&](const Query& one, int, int part) { return parts.at(a, one.row, one.head, part); },
            [&](const int* table) { heads.prepare(entry, table, run); });
        if (run.n == 1) continue;
        u32* const done = a.done + ((long long)run.row * a.kv_heads + run.kv_head) * tiles + run.tile;
        if (!is_last_of(run.n, done, shared.is_last)) continue;
        for (int i = threadIdx.x / 32; i < QUERIES; i += WARPS) {
            const Query one = shared.queries[i];
            if (one.range.first > one.range.last) continue;
            Softmax all;
            const float4 sum = merge_units(a, parts.at(a, one.row, one.head, 0), one.range.first / UNIT,
                                           one.range.last / UNIT, lane * 4, groups.factors(), all);
            put_result(a, one.row, one.head, lane * 4, all, sum);
        }
    }
    wait_for_kernel_before();  // what comes after this kernel relies on the one before it, too
}

}  // namespace

#define ATTEND_ROWS(D)                                                                                          \
    KERNEL_MANY(128, 2, attend_rows_f16_##D)                                                                    \
    (ATTEND_PARAMETERS, const float* k, const float* v, const float* q_norm, const float* k_norm, int n_turned, \
     int column, int is_adjacent, float eps) {                                                                  \
        attend<D>(ATTEND_ARGUMENTS, Turned{b, q_norm, k_norm, n_turned, column, is_adjacent, eps}, k, v);       \
    }

ATTEND_ROWS(64)
ATTEND_ROWS(80)
ATTEND_ROWS(96)
ATTEND_ROWS(128)
