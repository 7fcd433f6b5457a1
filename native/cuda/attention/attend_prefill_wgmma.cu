// Prefill attention over f16 and q8_0 caches on Hopper: a block processes 128 queries (the heads of one KV head over
// consecutive rows) over all their positions. Two consumer warpgroups have 64 queries each; one producer warpgroup
// copies K and V (two for q8_0, which they dequantize). One consumer uses the tensor cores while the other computes its
// softmax. Same bits as the kernels for few rows.
#include "attention/attend_mma.cuh"
#include "attention/attend_wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int GROUP_M = 64, BLOCK_M = 2 * GROUP_M, SLOTS = 6, IN_FLIGHT = 3;
constexpr int STAGING = 3;  // q8_0 tiles in cache format

namespace {

template <int D, int type>
struct Prefill {
    static constexpr int room = (D + 63) / 64 * 64;  // padded row size in shared memory
    static constexpr int bytes = KV_TILE * 2 * room, q_bytes = BLOCK_M * 2 * room, sum_bytes = BLOCK_M * 4 * D;
    // Producer threads (dequantization needs more), and registers per thread of producers and consumers.
    static constexpr int n_threads_kv = type == F16 ? 128 : 256, kv_registers = 40,
                         q_registers = type == F16 ? 232 : 216;
    // 16-byte q8_0 chunks per thread.
    static constexpr __device__ int n_chunks() { return KV_TILE * D / 16 / n_threads_kv; }

    const AttendParams& a;
    u8 *const q, *const ring, *const sums;  // shared memory
    float* const score_scales;
    const u32 full, free;  // mbarriers of the ring
    u8* const staging;     // q8_0 bytes and scales, private to each thread
    const int kv_head;

    __device__ __forceinline__ Prefill(const AttendParams& a, u8* memory, int kv_head)
        : a(a),
          q(memory),
          ring(memory + q_bytes),
          sums(ring + SLOTS * bytes),
          score_scales(reinterpret_cast<float*>(sums + sum_bytes)),
          full(shared_address(score_scales + BLOCK_M)),
          free(full + 8 * SLOTS),
          staging(reinterpret_cast<u8*>(score_scales + BLOCK_M) + 16 * SLOTS),
          kv_head(kv_head) {}

    // Offset of a 16-byte chunk: blocks of 64 columns, rows of 128 bytes, with the swizzle of wgmma operands.
    static __device__ __forceinline__ int place(int n_rows, int row, int chunk) {
        return (chunk / 8 * n_rows + row) * 128 + ((chunk ^ row) & 7) * 16;
    }

    __device__ __forceinline__ KvRange range_of(int row, int end) const {
        const KvRange early = visible_range(a, row), late = visible_range(a, end - 1);
        return {min(early.first, late.first), max(early.last, late.last)};
    }

    // Makes this thread's writes to shared memory visible to wgmma, after a barrier.
    static __device__ __forceinline__ void fence_shared() {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }

    // Producer: copies K and V of rows [row, end) of sequence s. kv_index counts tiles of K and V.
    __device__ __forceinline__ void load_kv(int s, int row, int end, int& kv) const {
        if constexpr (type == F16)
            load_kv_f16(s, row, end, kv);
        else
            load_kv_q8_0(s, row, end, kv);
    }
    __device__ __forceinline__ void finish_loads(int kv) const {
        cp_async_wait<0>();
        if constexpr (type == F16) {
            fence_shared();
            for (int i = max(0, kv - IN_FLIGHT); i < kv; i++) mbarrier_arrive(full + 8 * (i % SLOTS));
        } else {
            for (int i = max(0, kv - STAGING + 1); i < kv; i++) dequantize(i);
        }
    }

    // A thread dequantizes the chunks it has copied, all of the same columns.
    __device__ __forceinline__ u8* staging_at(int kv, int i) const {
        return staging + ((kv % STAGING * n_chunks() + i) * n_threads_kv + threadIdx.x % n_threads_kv) * 16;
    }
    __device__ __forceinline__ float* scale_at(int kv, int i) const {
        return reinterpret_cast<float*>(staging + STAGING * n_chunks() * n_threads_kv * 16) +
               (kv % STAGING * n_chunks() + i) * n_threads_kv + threadIdx.x % n_threads_kv;
    }
    // First row and chunk of a thread; eight threads write to different banks.
    static __device__ __forceinline__ int2 staging_place() {
        const int i = threadIdx.x % n_threads_kv;
        return D == 128 ? make_int2(i / 16 * 2 + i / 4 % 2, i % 4 + i / 8 % 2 * 4) : make_int2(i / 4, i % 4);
    }
    __device__ __forceinline__ void load_kv_q8_0(int s, int row, int end, int& kv) const {
        constexpr int step = n_threads_kv / (D / 16);
        const int first_row = staging_place().x, chunk = staging_place().y;
        const Entry entry = a.b->entries[a.entry];
        const int* const table = entry.pages + (long long)s * a.b->max_pages;
        const KvRange range = range_of(row, end);
        for (int at = range.first / KV_TILE; at <= range.last / KV_TILE; at++) {
            const int from = at * KV_TILE;
            const int pages[2] = {from + PAGE > range.first ? table[from / PAGE] : 0,
                                  from + PAGE <= range.last ? table[from / PAGE + 1] : 0};
            for (int is_v = 0; is_v < 2; is_v++, kv++) {
                const u8* const all = is_v ? entry.v : entry.k;
                const u8* const heads[2] = {head_of<type>(all, pages[0], a.kv_heads, kv_head, D),
                                            head_of<type>(all, pages[1], a.kv_heads, kv_head, D)};
#pragma unroll
                for (int i = 0; i < n_chunks(); i++) {
                    const int at_row = first_row + i * step, p = from + at_row;
                    const u8* const head = step > PAGE ? heads[at_row / PAGE] : heads[i * step / PAGE];
                    cp_async16(staging_at(kv, i), head + at_row % PAGE * D + chunk * 16);
                    const bool is_visible = p >= range.first && p <= range.last;  // else zero scale
                    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(scale_at(kv, i))),
                                 "l"(head + PAGE * D + (at_row % PAGE * (D / 32) + chunk / 2) * 4),
                                 "r"(is_visible ? 4 : 0)
                                 : "memory");
                }
                cp_async_commit();
                if (kv < STAGING - 1) continue;
                cp_async_wait<STAGING - 1>();
                dequantize(kv - STAGING + 1);
            }
        }
    }
    // Dequantizes a tile: K in the order of permuted_column, V in plain order.
    __device__ __forceinline__ void dequantize(int kv) const {
        constexpr int step = n_threads_kv / (D / 16);
        const int first_row = staging_place().x, chunk = staging_place().y, slot = kv % SLOTS;
        Words4 x[n_chunks()];
        u32 scales[n_chunks()];
#pragma unroll
        for (int i = 0; i < n_chunks(); i++) {
            x[i] = *reinterpret_cast<const Words4*>(staging_at(kv, i));
            const float scale = *scale_at(kv, i);
            scales[i] = scales_of(scale, scale);
        }
        mbarrier_wait(free + 8 * slot, (kv / SLOTS & 1) ^ 1);
        u8* const to = ring + slot * bytes;
#pragma unroll
        for (int i = 0; i < n_chunks(); i++) {
            const int row = first_row + i * step;
            Words4 one = dequantized(Words2{x[i].x, x[i].y}, scales[i]),
                   other = dequantized(Words2{x[i].z, x[i].w}, scales[i]);
            if (kv % 2 == 0) {
                const Words4 low{one.x, one.z, other.x, other.z}, high{one.y, one.w, other.y, other.w};
                one = low, other = high;
            }
            *reinterpret_cast<Words4*>(to + place(KV_TILE, row, 2 * chunk)) = one;
            *reinterpret_cast<Words4*>(to + place(KV_TILE, row, 2 * chunk + 1)) = other;
        }
        fence_shared();
        mbarrier_arrive(full + 8 * slot);
    }

    __device__ __forceinline__ void load_kv_f16(int s, int row, int end, int& kv) const {
        constexpr int chunks = D / 8, of_page = PAGE * chunks;
        const int tid = threadIdx.x % n_threads_kv;
        const Entry entry = a.b->entries[a.entry];
        const int* const table = entry.pages + (long long)s * a.b->max_pages;
        const KvRange range = range_of(row, end);
        for (int at = range.first / KV_TILE; at <= range.last / KV_TILE; at++) {
            const int from = at * KV_TILE;
            const int pages[2] = {from + PAGE > range.first ? table[from / PAGE] : 0,
                                  from + PAGE <= range.last ? table[from / PAGE + 1] : 0};
            for (int is_v = 0; is_v < 2; is_v++, kv++) {
                const int slot = kv % SLOTS;
                const u8* const all = is_v ? entry.v : entry.k;
                const u8* const heads[2] = {head_of<F16>(all, pages[0], a.kv_heads, kv_head, D),
                                            head_of<F16>(all, pages[1], a.kv_heads, kv_head, D)};
                mbarrier_wait(free + 8 * slot, (kv / SLOTS & 1) ^ 1);
                u8* const to = ring + slot * bytes;
                const bool is_whole = from >= range.first && from + KV_TILE - 1 <= range.last;
#pragma unroll
                for (int i = 0; i < KV_TILE * chunks / n_threads_kv; i++) {
                    // Positions of a head are consecutive within a page.
                    const int chunk = i * n_threads_kv + tid, p = from + chunk / chunks;
                    const bool is_first =
                        (i + 1) * n_threads_kv <= of_page || (i * n_threads_kv < of_page && chunk < of_page);
                    cp_async16_zfill(to + place(KV_TILE, chunk / chunks, chunk % chunks),
                                     heads[is_first ? 0 : 1] + (is_first ? chunk : chunk - of_page) * 16,
                                     is_whole || (p >= range.first && p <= range.last));
                }
                cp_async_commit();
                if (kv >= IN_FLIGHT) {
                    cp_async_wait<IN_FLIGHT>();
                    fence_shared();
                    mbarrier_arrive(full + 8 * ((kv - IN_FLIGHT) % SLOTS));
                }
            }
        }
    }
    // Starts q.k of the warpgroup's queries with a tile of K.
    __device__ __forceinline__ void start_scores(float (&scores)[KV_TILE / 2], int warpgroup, int kv) const {
        const int slot = kv % SLOTS;
        const u64 rows = wgmma_descriptor(shared_address(q) + warpgroup * GROUP_M * 128),
                  columns = wgmma_descriptor(shared_address(ring) + slot * bytes);
        mbarrier_wait(full + 8 * slot, kv / SLOTS & 1);
        wgmma_fence();
#pragma unroll
        for (int c = 0; c < D / 16; c++)
            start_qk(scores, rows + (c / 4 * BLOCK_M * 128 + c % 4 * 32) / 16,
                     columns + (c / 4 * KV_TILE * 128 + c % 4 * 32) / 16, c > 0);
        wgmma_commit();
    }

    __device__ __forceinline__ void release(int kv) const {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(free + 8 * (kv % SLOTS));
    }

    __device__ __forceinline__ Query query(int row, int end, int at) const {
        const int gqa = a.gqa();
        return query_of(a, row + at / gqa, kv_head * gqa + at % gqa, row + at / gqa < end);
    }
    // Loads 16 queries per warp of rows [row, end) into shared memory, eight threads per query.
    __device__ __forceinline__ void load_queries(int row, int end) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
        float2 x[4][8];  // four queries
#pragma unroll
        for (int i = 0; i < 4; i++) fetch_query(a, query(row, end, warp * 16 + 4 * i + lane / 8), 0, lane % 8, x[i]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = warp * 16 + 4 * i + lane / 8;
            const QueryScale query_scale(max_magnitude(x[i], 0.f));
            put_query(x[i], query_scale.up, 0, D, lane % 8, [&](int c) {
                const int to = type == F16 ? c : permuted_column(c);
                return q + place(BLOCK_M, at, to / 8) + to % 8 * 2;
            });
            if (lane % 8 == 0) score_scales[at] = query_scale.score_scale(a);
        }
    }
    // Merges a split into the totals in shared memory and resets it.
    __device__ __forceinline__ static void merge_split(Softmax (&all)[2], Softmax (&split)[2], float4* own,
                                                       float (&of_split)[D / 2]) {
        float old_scale[2], new_scale[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            all[half].merge(split[half].max_score, split[half].sum, old_scale[half], new_scale[half]);
            split[half] = Softmax();
        }
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            float4 sum = own[j * 32];
            sum.x = merged(sum.x, old_scale[0], of_split[4 * j], new_scale[0]);
            sum.y = merged(sum.y, old_scale[0], of_split[4 * j + 1], new_scale[0]);
            sum.z = merged(sum.z, old_scale[1], of_split[4 * j + 2], new_scale[1]);
            sum.w = merged(sum.w, old_scale[1], of_split[4 * j + 3], new_scale[1]);
            own[j * 32] = sum;
        }
#pragma unroll
        for (int i = 0; i < D / 2; i++) of_split[i] = 0.f;
    }

    // Consumer: rows [row, end), by one warpgroup.
    __device__ __forceinline__ void attend(int row, int end, int& kv) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, warpgroup = warp / 4, g = lane / 4, t = lane % 4;
        const KvRange range = range_of(row, end);
        const int first = warp_uniform(range.first / KV_TILE), last = warp_uniform(range.last / KV_TILE);
        named_barrier(1 + warpgroup, 128);  // wait for readers of the previous rows
        load_queries(row, end);
        fence_shared();
        named_barrier(1 + warpgroup, 128);
        Query mine[2];  // queries g and g + 8 of the warp
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = warp * 16 + g + 8 * half;
            mine[half] = query(row, end, at);
            mine[half].score_scale = score_scales[at];
        }
        const KvRange inner = common_range(mine);

        const bool is_plain = a.is_plain();
        Softmax all[2], split[2];
        float scores[KV_TILE / 2], tile_acc[D / 2], of_split[D / 2];
        // Totals over splits, in shared memory, per lane.
        float4* const own = reinterpret_cast<float4*>(sums) + warp * (D / 8) * 32 + lane;
#pragma unroll
        for (int j = 0; j < D / 8; j++) own[j * 32] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int i = 0; i < D / 2; i++) of_split[i] = 0.f;

        auto finish_scores = [&]() {
            wgmma_wait<0>();
            fence_registers(scores);
            release(kv);
        };
        // One KV tile whose scores are ready; q.k of the next tile runs while its sums are merged.
        auto work = [&](int at, bool is_last) {
            const int from = at * KV_TILE;
            if (!__all_sync(ALL_LANES, is_plain && from >= inner.first && from + KV_TILE - 1 <= inner.last)) {
#pragma unroll
                for (int i = 0; i < KV_TILE / 2; i++)
                    scores[i] = score_at(a, mine[i / 2 % 2], scores[i], from + i / 4 * 8 + 2 * t + i % 2, is_plain);
            }
            float row_max[2], exp_sums[4] = {}, old_scale[2], new_scale[2];
            u32 exp_weights[KV_TILE / 16][4];
            compute_exp_weights(exp_weights, row_max, exp_sums, scores, mine, is_plain);
            const int slot = (kv + 1) % SLOTS;
            const u64 columns = transposed_descriptor(shared_address(ring) + slot * bytes, KV_TILE * 128);
            mbarrier_wait(full + 8 * slot, (kv + 1) / SLOTS & 1);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < KV_TILE / 16; i++)
                Wgmma<D, true>::go(tile_acc, exp_weights[i], columns + i * 16 * 128 / 16, i > 0);
            wgmma_commit();
            if (is_last) {
                wgmma_wait<0>();
            } else {
                start_scores(scores, warpgroup, kv + 2);
                wgmma_wait<1>();
            }
            fence_registers(tile_acc);
            release(kv + 1);
#pragma unroll
            for (int half = 0; half < 2; half++)
                split[half].merge(row_max[half], exp_sums[2 * half], old_scale[half], new_scale[half]);
#pragma unroll
            for (int i = 0; i < D / 2; i++)
                of_split[i] = merged(of_split[i], old_scale[i / 2 % 2], tile_acc[i], new_scale[i / 2 % 2]);
            kv += 2;
            if (!is_last) finish_scores();
            if (at % (KV_SPLIT / KV_TILE) != KV_SPLIT / KV_TILE - 1 && !is_last) return;
            merge_split(all, split, own, of_split);
        };
        start_scores(scores, warpgroup, kv);
        finish_scores();
        for (int at = first; at < last; at++) work(at, false);
        work(last, true);

        store_sums<D>(a, mine, all, own, t);
    }
};

// A block takes `rows` rows of the batch, sequence by sequence. Late rows see the most positions, so they go first.
template <int D, int type>
__device__ __forceinline__ void attend(const AttendParams& a) {
    DYNAMIC_SHARED(raw);
    u8* const memory = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
    launch_dependents();
    const Prefill<D, type> prefill(a, memory, blockIdx.x);
    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++)
            mbarrier_init(prefill.full + 8 * i, prefill.n_threads_kv),
                mbarrier_init(prefill.free + 8 * i, 2 * GROUP_M / 16);
        mbarrier_init_fence();
    }
    __syncthreads();
    wait_for_previous_kernel();
    const int rows = BLOCK_M / a.gqa();
    int row = (gridDim.y - 1 - blockIdx.y) * rows, kv = 0;
    const int end = min(row + rows, a.b->n_rows);
    if (warp_uniform(threadIdx.x / 128) >= 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Prefill<D, type>::kv_registers));
        while (row < end) {
            const int s = a.b->sequences[row], after = min(end, a.b->offsets[s + 1]);
            if (!has_few_rows(a, row)) prefill.load_kv(s, row, after, kv);
            row = after;
        }
        prefill.finish_loads(kv);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Prefill<D, type>::q_registers));
        while (row < end) {
            const int s = a.b->sequences[row], after = min(end, a.b->offsets[s + 1]);
            if (!has_few_rows(a, row)) prefill.attend(row, after, kv);
            row = after;
        }
    }
}

}  // namespace

#define ATTEND_PREFILL_WGMMA(n_threads, name, type, D)                                \
    KERNEL_THREADS(n_threads, attend_prefill_wgmma_##name##_##D)(ATTEND_PARAMETERS) { \
        attend<D, type>(ATTEND_ARGUMENTS);                                            \
    }

ATTEND_PREFILL_WGMMA(384, f16, F16, 64)
ATTEND_PREFILL_WGMMA(384, f16, F16, 80)
ATTEND_PREFILL_WGMMA(384, f16, F16, 96)
ATTEND_PREFILL_WGMMA(384, f16, F16, 128)
ATTEND_PREFILL_WGMMA(512, q8_0, Q8_0, 64)
ATTEND_PREFILL_WGMMA(512, q8_0, Q8_0, 128)

#endif
