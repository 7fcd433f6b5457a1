// Fused store and attention for one row (decode) over f16 and q8_0 caches with equal head sizes of K and V. Every block
// norms and rotates its q; the block with the newest position also k, and writes k and v to the cache. Older positions
// load before the previous kernel ends.
//
// On Hopper, a cluster of 8 blocks processes all query heads of one KV head, or part of its positions if there are
// many. Each block takes a run of tiles, then merges part of the columns: from distributed shared memory or, in the
// last of several clusters, from global memory.
#include "attention/attend_fused_store.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HAS_CLUSTERS 1
constexpr int CLUSTER = 8;
#else
#define HAS_CLUSTERS 0
constexpr int CLUSTER = 1;
#endif

namespace {

// Barrier of the cluster; writes to shared memory before it are visible to all its blocks.
__device__ __forceinline__ void cluster_barrier() {
#if HAS_CLUSTERS
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// Loads a float4 at the same shared address in another block of the cluster.
__device__ __forceinline__ float4 load_of(const float* p, int rank) {
#if HAS_CLUSTERS
    float4 x;
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(there));
    return x;
#else
    return *reinterpret_cast<const float4*>(p);
#endif
}

// Merges splits `first` to `last` of a query from global memory, with one warp: `columns` chunks of four columns from
// `chunk` on, one per lane. Copies up to max_splits splits to `memory` (shared, of the warp) at once; then lanes
// compute the factors of one split each.
template <int columns, int max_splits>
__device__ __forceinline__ float4 merge_far(const float* from, int stride, int first, int last, int chunk, u8* memory,
                                            Softmax& all) {
    const int lane = threadIdx.x % 32, n_chunks = stride / 4 - 1 - chunk;
    float4* const headers = reinterpret_cast<float4*>(memory);  // [max_splits]
    float4* const chunks = headers + max_splits;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    for (; first <= last; first += max_splits) {
        const float* const here = from + (long long)first * stride;
        const int n = min(max_splits, last - first + 1);
        __syncwarp();
        for (int i = lane; i < n; i += 32) cp_async16(headers + i, here + i * stride);
        for (int i = lane; i < n * columns; i += 32)
            if (i % columns < n_chunks)
                cp_async16(chunks + i, here + i / columns * stride + 4 + (chunk + i % columns) * 4);
        cp_async_commit();
        cp_async_wait<0>();
        __syncwarp();
        for (int at = 0; at < n; at += 32) {
            const float4 own = at + lane < n ? headers[at + lane] : make_float4(NO_SCORE, 0.f, 0.f, 0.f);
            const float4 factors = factors_of(own.x, own.y, all);
            if (at + lane < n) headers[at + lane] = factors;
        }
        __syncwarp();
        const float4* const mine = chunks + min(lane, columns - 1);
#pragma unroll 8
        for (int i = 0; i < n; i++) {
            const float4 by = headers[i], x = mine[i * columns];
            all.sum = merged(all.sum, by.x, by.z, by.y);
            add_scaled4(sum, by.x, x, by.y);
        }
    }
    return sum;
}

// Merges the partials in shared memory of the cluster, in order. Each block merges some queries or, if there are few,
// some columns of one. It first copies complete rows of partials: scattered 16-byte reads of distributed shared memory
// are many times slower. `inside`: partials of a block, at place_of(partial); `near`: copies for one query.
template <int D, int tiles_per_split, int stride, class PlaceOf>
__device__ __forceinline__ void merge_near(const AttendParams& a, int tid, int rank, KvRange range, int span, int shift,
                                           int first_run, int first_head, int n, const float* inside, float* near,
                                           const PlaceOf& place_of) {
    constexpr int at_once = 2;
    const int lane = tid % 32, warp = tid / 32, first_partial = range.first / span, last_partial = range.last / span;
    int sharing = 1;  // blocks per query
    while (2 * sharing * n <= CLUSTER) sharing *= 2;
    const int each = (D / 4 + sharing - 1) / sharing, chunk = rank % sharing * each;
    const int n_chunks = min(each, D / 4 - chunk), column = 4 * chunk + tid;
#pragma unroll 1
    for (int i = rank / sharing; i < n; i += CLUSTER / sharing) {
#pragma unroll 1
        for (int first = first_partial + warp; first <= last_partial; first += at_once * WARPS) {
            float4 headers[at_once], values[at_once];
#pragma unroll
            for (int j = 0; j < at_once; j++) {
                const int p = min(first + j * WARPS, last_partial);
                const int owner = (span == KV_SPLIT ? p : p >> shift) - first_run;
                const float* const partial = inside + (place_of(p) * QUERIES + i) * stride;
                headers[j] = load_of(partial, owner);
                values[j] = load_of(partial + 4 + 4 * min(chunk + lane, D / 4 - 1), owner);
            }
#pragma unroll
            for (int j = 0; j < at_once; j++) {
                float4* const to = reinterpret_cast<float4*>(near + (first - first_partial + j * WARPS) * stride);
                if (lane == 0) to[0] = headers[j];
                if (lane < n_chunks) to[1 + lane] = values[j];
            }
        }
        __syncthreads();
        if (tid < 4 * n_chunks) {
            Softmax all, split;
            float sum = 0.f, split_sum = 0.f, mine, others;
#pragma unroll 1
            for (int p = first_partial; p <= last_partial; p++) {
                const float* const partial = near + (p - first_partial) * stride;
                const float2 header = *reinterpret_cast<const float2*>(partial);
                split.merge(header.x, header.y, mine, others);
                split_sum = merged(split_sum, mine, partial[4 + tid], others);
                if (span < KV_SPLIT && p % tiles_per_split != tiles_per_split - 1 && p != last_partial) continue;
                all.merge(split.max_score, split.sum, mine, others);
                sum = merged(sum, mine, split_sum, others);
                split = Softmax(), split_sum = 0.f;
            }
            if (column < a.v_dim)
                a.out[(long long)(first_head + i) * a.v_dim + column] =
                    __fmul_rn(sum, inv_sum_of(a, all, first_head + i));
        }
        if (i + CLUSTER / sharing < n) __syncthreads();  // `near` is reused
    }
}

template <int D, int type>
__device__ __forceinline__ void attend(const AttendParams& a, const NormRope& rope, const float* k, const float* v) {
    DYNAMIC_SHARED(memory);
    __shared__ Shared shared;
    __shared__ __align__(16) float is_last[4];  // read as a float4 by load_of
    launch_dependents();
    constexpr int tiles_per_split = KV_SPLIT / KV_TILE, stride = D + 4;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, rank = blockIdx.x % CLUSTER;
    const int tiles = (a.gqa() + QUERIES - 1) / QUERIES, items = a.kv_heads * tiles, cluster = blockIdx.x / CLUSTER;
    const Entry entry = a.b->entries[a.entry];
    const KvRange range = visible_range(a, 0);
    const int first = range.first / KV_TILE, last = range.last / KV_TILE;
    // Runs of 1, 2 or 4 tiles if the cluster has enough blocks, else of complete splits.
    int shift = 0;
    while ((1 << shift) < tiles_per_split && (last >> shift) - (first >> shift) >= CLUSTER) shift++;
    const bool is_inside = (last >> shift) - (first >> shift) < CLUSTER;
    int per_run = 1 << shift, each = 1, at_once = gridDim.x / CLUSTER;  // each: clusters per item; at_once: items
    if (!is_inside) {
        each = max(1, at_once / items), at_once /= each;
        per_run = ((last - first) / (each * CLUSTER) + tiles_per_split) / tiles_per_split * tiles_per_split;
        while (last / per_run - first / per_run >= each * CLUSTER) per_run += tiles_per_split;
    }
    const int span = per_run < tiles_per_split ? KV_TILE : KV_SPLIT;
    const Partials partials(a, KV_SPLIT);
    if (!is_inside && !partials.is_split) per_run = last + 1;  // no memory for partials
    const int first_run = is_inside ? first >> shift : first / per_run;
    const int n_runs = (is_inside ? last >> shift : last / per_run) - first_run + 1;
    const KvStream<D, type> stream(a, shared, memory);
    const FusedHeads<D, KvStream<D, type>> heads(stream, rope, k, v);
    // Partials within the cluster reuse the last stage of the ring: so short a run does not need it.
    float* const inside = reinterpret_cast<float*>(stream.copies + (stream.stages - 1) * 2 * stream.bytes);
    auto place_of = [&](int partial) { return span == KV_SPLIT ? 0 : partial & (per_run - 1); };
    for (int item = is_inside ? cluster : cluster / each; cluster < at_once * each && item < items; item += at_once) {
        const int tile = tiles == 1 ? 0 : item / a.kv_heads, kv_head = item - tile * a.kv_heads;
        const int first_head = kv_head * a.gqa() + tile * QUERIES, partial_stride = a.partial_stride();
        const int first_of_cluster = is_inside ? 0 : cluster % each * CLUSTER,
                  run = first_run + first_of_cluster + rank;
        float* const outside = a.partials + (long long)first_head * partials.n * partial_stride;
        const int run_first = max(first, run * per_run), run_last = min(last, run * per_run + per_run - 1);
        if (run < first_run + n_runs)
            stream.attend(
                entry, {0, 0, 0, kv_head, tile, range, range}, run_first, run_last, n_runs > 1 ? span : 0, 1,
                [&](const Query&, int i, int partial) {
                    return is_inside ? inside + (place_of(partial) * QUERIES + i) * stride
                                     : outside + (i * partials.n + partial) * partial_stride;
                },
                [&](const int* table) {
                    heads.prepare(entry, table, first_head, kv_head, run_first, run_last, range);
                });
        if (n_runs == 1 || first_of_cluster >= n_runs) continue;
        if (!is_inside) {
            __threadfence();
            cluster_barrier();
            if (rank == 0 && tid == 0) {
                u32* const done = a.done + item;
                is_last[0] = atomicAdd(done, 1u) == u32((n_runs + CLUSTER - 1) / CLUSTER - 1);
                if (is_last[0] != 0.f) *done = 0;
            }
        }
        cluster_barrier();
        const int n = min(QUERIES, a.gqa() - tile * QUERIES);
        if (is_inside) {
            merge_near<D, tiles_per_split, stride>(a, tid, rank, range, span, shift, first_run, first_head, n, inside,
                                                   reinterpret_cast<float*>(stream.copies), place_of);
        } else if (load_of(is_last, 0).x != 0.f) {
            __threadfence();
            constexpr int columns = (D / 4 + CLUSTER - 1) / CLUSTER, room = stream.ring / WARPS;
            const int c = (rank * columns + lane) * 4;
            for (int i = warp; i < n; i += WARPS) {
                Softmax all;
                const float4 sum = merge_far<columns, room / 16 / (columns + 1)>(
                    outside + (long long)i * partials.n * partial_stride, partial_stride, range.first / KV_SPLIT,
                    range.last / KV_SPLIT, rank * columns, stream.copies + warp * room, all);
                if (lane < columns) put_result(a, 0, first_head + i, c, all, sum);
            }
        }
        cluster_barrier();  // no block of the cluster reads shared memory of another after this
    }
    wait_for_previous_kernel();  // the next kernel relies on the previous one as well
}

}  // namespace

#if HAS_CLUSTERS
#define KERNEL_CLUSTER8(name) extern "C" __global__ void __launch_bounds__(128, 2) __cluster_dims__(8, 1, 1) name
#else
#define KERNEL_CLUSTER8(name) KERNEL_BOUNDS(128, 2, name)
#endif
#define ATTEND_DECODE(name, type, D) \
    KERNEL_CLUSTER8(attend_decode_##name##_##D)(HEADS_PARAMETERS) { attend<D, type>(HEADS_ARGUMENTS); }

FOR_EACH_HEAD_SIZE(ATTEND_DECODE)
