// Streaming attention for few queries over f16, q8_0 and q4 caches with equal head sizes of K and V: KV tiles pass
// through a ring in shared memory in cache format (q4 decoded to bytes). A warp computes the scores of 16 positions of
// a tile, then 16 or 32 columns of V. Same bits as the other tensor core kernels.
#pragma once

#include "attention/attend_q8.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS, EXP_STRIDE = 2 * KV_TILE + 16;

namespace {

struct Shared {
    Query queries[QUERIES];
    float row_max[2][WARPS][QUERIES];  // by parity of the tile
    bool is_last;                      // this block is the last with partials of these queries
    alignas(16) u8 exp_weights[2][QUERIES * EXP_STRIDE];
};

// D: head size, a multiple of 16 (32 for q8_0 and q4). EVICT_FIRST: L2 policy of K and V.
template <int D, int type = F16, bool EVICT_FIRST = false>
struct KvStream {
    static constexpr bool is_swizzled = D % 64 == 0;
    static constexpr int chunks = D / 8, stride = is_swizzled ? 2 * D : 2 * D + 16, q_stride = 2 * D + 16;
    static constexpr int bytes = type == F16 ? KV_TILE * stride : Q8Tile<D>::bytes, q_bytes = QUERIES * q_stride;
    static constexpr int stages = 3, ring = stages * 2 * bytes;
    static constexpr int blocks = (D / 16 + WARPS - 1) / WARPS;  // 16-column blocks of V per warp
    static constexpr int kv_type = type;

    const AttendParams& a;
    Shared& shared;
    u8 *const q, *const copies;  // shared memory

    __device__ __forceinline__ KvStream(const AttendParams& a, Shared& shared, u8* memory)
        : a(a), shared(shared), q(memory), copies(memory + q_bytes) {}

    // Merge buffer of a warp, in the ring after its last use.
    __device__ __forceinline__ float4* factors() const {
        return reinterpret_cast<float4*>(copies) + threadIdx.x / 32 * 32;
    }

    // Offset of a 16-byte chunk of K or V; the same chunk of eight rows falls into different banks.
    static __device__ __forceinline__ int place(int row, int chunk) {
        return row * stride + (is_swizzled ? chunk ^ (row & 7) : chunk) * 16;
    }

    // Starts the copy of a tile of K or V, f16 or q8_0, zero-filled where masked. Skips row `fresh`.
    __device__ __forceinline__ void copy(u8* to, const u8* entry, int2 pages, int kv_head, KvRange rows,
                                         int fresh) const {
        const u8* const heads[2] = {head_of<type>(entry, pages.x, a.kv_heads, kv_head, D),
                                    head_of<type>(entry, pages.y, a.kv_heads, kv_head, D)};
        if constexpr (type == F16)
            copy_f16(to, heads, rows, fresh);
        else
            Q8Tile<D>::template copy<EVICT_FIRST, THREADS>(to, heads, fresh);
    }
    __device__ __forceinline__ void copy_f16(u8* to, const u8* const (&heads)[2], KvRange rows, int fresh) const {
        // compile-time constant except the range
        if (THREADS % chunks == 0 && rows.first <= 0 && rows.last >= KV_TILE - 1) {
            constexpr int step = THREADS / chunks;
            const int row = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
            u8* const into = to + place(row, chunk);
            const int from = row * (2 * D) + chunk * 16;
#pragma unroll
            for (int i = 0; i < KV_TILE / step; i++)
                cp_async16_hint<EVICT_FIRST>(into + i * step * stride,
                                             heads[i * step / PAGE] + from + i * step % PAGE * (2 * D));
            return;
        }
#pragma unroll 1
        for (int at = threadIdx.x; at < KV_TILE * chunks; at += THREADS) {
            const int row = at / chunks, chunk = at % chunks;
            const u8* const source = (row < PAGE ? heads[0] : heads[1]) + row % PAGE * (2 * D) + chunk * 16;
            if (row != fresh) cp_async16_zfill(to + place(row, chunk), source, row >= rows.first && row <= rows.last);
        }
    }

    // Place of a column of q.
    static __device__ __forceinline__ int q_column(int c) { return type == F16 ? c : permuted_column(c); }

    // K/V column of a lane's accumulator: element e of mma tile n of block pair j.
    static __device__ __forceinline__ int column(int j, int n, int e) {
        const int warp = threadIdx.x / 32, t = threadIdx.x % 4, tile = 2 * blocks * warp + 2 * j + n;
        if (type == F16) return (warp + j * WARPS) * 16 + 8 * n + 2 * t + e % 2;
        return tile / 4 * 32 + 8 * t + e % 2 * 4 + tile % 4;
    }

    // Queries of a block: heads of one KV head over consecutive rows.
    struct Tile {
        int row, last_row, s, kv_head, tile;
        KvRange range, inner;  // range: union of the queries' ranges, inner: intersection
    };

    __device__ __forceinline__ Tile tile_of(int row, int tile, int kv_head) const {
        const Batch& b = *a.b;
        const int s = b.sequences[row], rows = a.gqa() < QUERIES ? QUERIES / a.gqa() : 1;
        const int last_row = min(row + rows, b.offsets[s + 1]) - 1;
        const KvRange one = visible_range(a, row), other = visible_range(a, last_row);
        return {row,
                last_row,
                s,
                kv_head,
                tile,
                {min(one.first, other.first), max(one.last, other.last)},
                {max(one.first, other.first), min(one.last, other.last)}};
    }

    __device__ __forceinline__ void load_queries(const Tile& of) const {
        const int i = threadIdx.x / 8, gqa = a.gqa(), rows = gqa < QUERIES ? QUERIES / gqa : 1;
        Query one = query_of_tile(a, i, of.row, rows, of.last_row, of.tile, of.kv_head);
        one.score_scale = load_query<type>(a, one, q + i * q_stride, D, threadIdx.x % 8);
        if (threadIdx.x % 8 == 0) shared.queries[i] = one;
    }

    // Loads queries into registers; f16 kernels reload them column by column instead.
    __device__ __forceinline__ void keep_queries(u32 (&queries)[type == F16 ? 1 : D / 16][4]) const {
        const int tid = threadIdx.x, lane = tid % 32;
#pragma unroll
        for (int c = 0; type != F16 && c < D / 16; c++)
            ldmatrix_x4<false>(queries[c], q + (lane & 15) * q_stride + (c * 16 + (lane >> 4) * 8) * 2);
    }
    // Scores of this warp's 16 positions; masked unless all queries see the complete tile.
    __device__ __forceinline__ void score(float (&scores)[2][4], u32 (&queries)[type == F16 ? 1 : D / 16][4],
                                          const u8* k, const Query (&mine)[2], int from, KvRange inner,
                                          bool is_plain) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, t = lane % 4;
        if constexpr (type == F16) {
            const int k_row = warp * 16 + (lane & 7) + (lane >> 4) * 8;
#pragma unroll
            for (int c = 0; c < D / 16; c++) {
                u32 columns[4];
                ldmatrix_x4<false>(queries[0], q + (lane & 15) * q_stride + (c * 16 + (lane >> 4) * 8) * 2);
                ldmatrix_x4<false>(columns, k + place(k_row, 2 * c + (lane >> 3 & 1)));
                mma(scores[0], queries[0], columns[0], columns[1]);
                mma(scores[1], queries[0], columns[2], columns[3]);
            }
        } else {
            Q8Tile<D>::multiply(scores, queries, k, warp * 16, lane);
        }
        if (!is_plain || from < inner.first || from + KV_TILE - 1 > inner.last) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                scores[i / 4][i % 4] = score_at(a, mine[i % 4 / 2], scores[i / 4][i % 4],
                                                from + warp * 16 + i / 4 * 8 + 2 * t + i % 2, is_plain);
        }
    }
    // Row maxima over this warp's positions.
    __device__ __forceinline__ void store_row_max(const float (&scores)[2][4], const Query (&mine)[2], int at,
                                                  bool is_plain) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float max_score = fmaxf(fmaxf(scores[0][2 * half], scores[0][2 * half + 1]),
                                    fmaxf(scores[1][2 * half], scores[1][2 * half + 1]));
            max_score = fmaxf(max_score, __shfl_xor_sync(ALL_LANES, max_score, 1));
            max_score = fmaxf(max_score, __shfl_xor_sync(ALL_LANES, max_score, 2));
            if (t == 0) shared.row_max[at % 2][warp][g + 8 * half] = __fmul_rn(max_score, mine[half].factor(is_plain));
        }
    }
    // Exp weights of a KV tile, to shared memory.
    __device__ __forceinline__ void store_exp_weights(const float (&scores)[2][4], const Query (&mine)[2], int at,
                                                      bool is_plain, float (&row_max)[2]) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
        u8* const all_exp_weights = shared.exp_weights[at % 2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = g + 8 * half;
            const float (&of_warps)[WARPS][QUERIES] = shared.row_max[at % 2];
            row_max[half] = fmaxf(fmaxf(of_warps[0][i], of_warps[1][i]), fmaxf(of_warps[2][i], of_warps[3][i]));
            const float base = finite_max(row_max[half]), factor = mine[half].factor(is_plain);
#pragma unroll
            for (int n = 0; n < 2; n++)
                *reinterpret_cast<u32*>(all_exp_weights + i * EXP_STRIDE + (warp * 16 + 8 * n + 2 * t) * 2) =
                    to_half2(exp_weight_at(scores[n][2 * half], factor, base),
                             exp_weight_at(scores[n][2 * half + 1], factor, base));
        }
    }
    // Exp weights times this warp's columns of V, and their sums.
    __device__ __forceinline__ void sum_values(float (&exp_sums)[4], float (&tile_acc)[blocks][2][4], const u8* v,
                                               const u8* all_exp_weights, bool is_any, int tile, u32 scales) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
        u32 exp_weights[KV_TILE / 16][4];
#pragma unroll
        for (int i = 0; i < KV_TILE / 16; i++)
            ldmatrix_x4<false>(exp_weights[i], all_exp_weights + (lane & 15) * EXP_STRIDE + i * 32 + (lane >> 4) * 16);
#pragma unroll
        for (int i = 0; i < KV_TILE / 16; i++) {
            mma(exp_sums, exp_weights[i], ONES, ONES);
            if constexpr (type == F16) {
#pragma unroll
                for (int j = 0; j < blocks; j++) {
                    const int block = warp + j * WARPS;
                    if (D / 16 % WARPS != 0 && block >= D / 16) continue;
                    u32 columns[4];
                    ldmatrix_x4<true>(columns, v + place(i * 16 + (lane & 15), 2 * block + (lane >> 4)));
                    mma(tile_acc[j][0], exp_weights[i], columns[0], columns[1]);
                    mma(tile_acc[j][1], exp_weights[i], columns[2], columns[3]);
                }
            } else if (is_any) {
                u32 columns[2 * blocks][2];
                Q8Tile<D>::template dequantize<2 * blocks>(columns, v, 16 * i, tile / 4, tile % 4, scales, lane);
#pragma unroll
                for (int j = 0; j < 2 * blocks; j++)
                    mma(tile_acc[j / 2][j % 2], exp_weights[i], columns[j][0], columns[j][1]);
            }
        }
    }
    // Merges a split into the totals (online softmax).
    __device__ __forceinline__ void merge_split(Softmax (&all)[2], float (&sums)[blocks][2][4],
                                                const Softmax (&split)[2],
                                                const float (&of_split)[blocks][2][4]) const {
        float old_scale[2], new_scale[2];
#pragma unroll
        for (int half = 0; half < 2; half++)
            all[half].merge(split[half].max_score, split[half].sum, old_scale[half], new_scale[half]);
        each([&](int j, int n, int e) {
            sums[j][n][e] = merged(sums[j][n][e], old_scale[e / 2], of_split[j][n][e], new_scale[e / 2]);
        });
    }
    // Epilogue without split-KV.
    __device__ __forceinline__ void put_results(const Query (&mine)[2], const Softmax (&all)[2],
                                                const float (&sums)[blocks][2][4]) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (mine[half].range.first > mine[half].range.last) continue;
            const float inv_sum = inv_sum_of(a, all[half], mine[half].head);
            float* const to = a.out + ((long long)mine[half].row * a.heads + mine[half].head) * a.v_dim;
            each([&](int j, int n, int e) {
                const int c = column(j, n, e);
                if (e / 2 == half && c < a.v_dim) to[c] = __fmul_rn(sums[j][n][e], inv_sum);
            });
        }
    }

    // Loads KV tiles `first` to `last` into the ring.
    struct TileLoader {
        static constexpr int later = type == Q4 ? 1 : 0;  // q4 is requested one tile earlier
        const KvStream& stream;
        const Entry& entry;
        const Tile& of;
        const int first, last;
        const int* const table;
        Q4Loader<type == Q4 ? D : 32, THREADS> requested;

        __device__ __forceinline__ TileLoader(const KvStream& stream, const Entry& entry, const Tile& of, int first,
                                              int last)
            : stream(stream),
              entry(entry),
              of(of),
              first(first),
              last(last),
              table(entry.pages + (long long)of.s * stream.a.b->max_pages) {}
        // Pages of a tile; arbitrary where masked.
        __device__ __forceinline__ int2 find(int at) const {
            const int p = at * KV_TILE;
            return make_int2(at <= last && p + PAGE > of.range.first && p <= of.range.last ? table[p / PAGE] : 0,
                             at <= last && p + PAGE <= of.range.last ? table[p / PAGE + 1] : 0);
        }
        __device__ __forceinline__ u8* slot(int at) const {
            return stream.copies + (at - first) % stages * (2 * bytes);
        }
        __device__ __forceinline__ void request(int at, int2 pages) {
            const int kv_heads = stream.a.kv_heads;
#pragma unroll
            for (int is_v = 0; is_v < 2; is_v++)
                if (const u8* const all = is_v ? entry.v : entry.k; at <= last)
                    requested.request(is_v, {head_of<type>(all, pages.x, kv_heads, of.kv_head, D),
                                             head_of<type>(all, pages.y, kv_heads, of.kv_head, D)});
        }
        // Loads a tile into its stage. `pages` belong to the tile or, for q4, to the next tile, which it requests.
        __device__ __forceinline__ void load(int at, int2 pages, int newest) {
            const int from = at * KV_TILE;
            if constexpr (type == Q4) {
#pragma unroll
                for (int is_v = 0; is_v < 2; is_v++)
                    if (at <= last) requested.put(is_v, slot(at) + is_v * bytes);
                request(at + 1, pages);
            } else {
#pragma unroll 1
                for (int is_v = 0; is_v < 2; is_v++) {
                    if (at <= last)
                        stream.copy(slot(at) + is_v * bytes, is_v ? entry.v : entry.k, pages, of.kv_head,
                                    {of.range.first - from, newest - from},
                                    newest < of.range.last ? of.range.last - from : -1);
                    cp_async_commit();
                }
            }
        }
    };

    // Processes KV tiles `first` to `last` of a query tile. span > 0: writes partials of `span` positions to
    // partial(...); span 0: writes the result. `prepare` loads the queries while the first copies are in flight. The
    // last n_fresh (0 or 1) positions are not copied in advance: `prepare` stores them.
    template <class PartialOf, class Prepare>
    __device__ __forceinline__ void attend(const Entry& entry, const Tile& of, int first, int last, int span,
                                           int n_fresh, const PartialOf& partial, const Prepare& prepare) const {
        const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4;
        const KvRange range = of.range, inner = of.inner;
        TileLoader loader(*this, entry, of, first, last);
        __syncthreads();  // wait for readers of the previous item
        if (type == Q4) loader.request(first, loader.find(first));
#pragma unroll 1
        for (int at = first; at + 1 < first + stages; at++)
            loader.load(at, loader.find(at + loader.later), range.last - n_fresh);
        int2 ahead = loader.find(first + stages - 1 + loader.later);
        prepare(loader.table);
        __syncthreads();
        u32 queries[type == F16 ? 1 : D / 16][4];
        keep_queries(queries);
        const Query mine[2] = {shared.queries[g], shared.queries[g + 8]};
        const bool is_plain = a.is_plain();
        Softmax all[2], split[2];  // of queries g and g + 8
        float sums[blocks][2][4] = {}, of_split[blocks][2][4] = {};
        for (int at = first; at <= last; at++) {
            cp_async_wait<2 * stages - 3>();  // K has arrived; V and later tiles may be in flight
            __syncthreads();
            loader.load(at + stages - 1, ahead, range.last);
            ahead = loader.find(at + stages + loader.later);
            const u8 *const k = loader.slot(at), *const v = k + bytes;

            float scores[2][4] = {}, row_max[2];
            const int from = at * KV_TILE;
            score(scores, queries, k, mine, from, inner, is_plain);
            store_row_max(scores, mine, at, is_plain);
            cp_async_wait<2 * stages - 2>();
            __syncthreads();
            const int tile = 2 * blocks * warp;
            const bool is_any = D / 16 % WARPS == 0 || tile < D / 8;
            u32 scales = 0;  // of V, q8_0 and q4
            if constexpr (type != F16)
                if (is_any) scales = Q8Tile<D>::scales(v, tile / 4, {range.first - from, range.last - from}, lane);
            u8* const all_exp_weights = shared.exp_weights[at % 2];
            store_exp_weights(scores, mine, at, is_plain, row_max);
            __syncthreads();

            float exp_sums[4] = {}, tile_acc[blocks][2][4] = {}, old_scale[2], new_scale[2];
            sum_values(exp_sums, tile_acc, v, all_exp_weights, is_any, tile, scales);
#pragma unroll
            for (int half = 0; half < 2; half++)
                split[half].merge(row_max[half], exp_sums[2 * half], old_scale[half], new_scale[half]);
            each([&](int j, int n, int e) {
                of_split[j][n][e] = merged(of_split[j][n][e], old_scale[e / 2], tile_acc[j][n][e], new_scale[e / 2]);
            });
            if (span == KV_TILE) {
                write(partial, mine, split, of_split, at);
            } else if (at % (KV_SPLIT / KV_TILE) == KV_SPLIT / KV_TILE - 1 || at == last) {
                if (span == KV_SPLIT) write(partial, mine, split, of_split, at / (KV_SPLIT / KV_TILE));
                merge_split(all, sums, split, of_split);
            } else {
                continue;
            }
            split[0] = split[1] = Softmax();
            each([&](int j, int n, int e) { of_split[j][n][e] = 0.f; });
        }
        if (span == 0) put_results(mine, all, sums);
    }

    // Calls call(j, n, e) for each accumulator of a lane.
    template <class Call>
    static __device__ __forceinline__ void each(const Call& call) {
#pragma unroll
        for (int j = 0; j < blocks; j++)
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) call(j, n, e);
    }

    template <class PartialOf>
    __device__ __forceinline__ void write(const PartialOf& partial, const Query (&mine)[2],
                                          const Softmax (&softmaxes)[2], const float (&sums)[blocks][2][4],
                                          int number) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (mine[half].range.first > mine[half].range.last) continue;
            float* const to = partial(mine[half], lane / 4 + 8 * half, number);
            if (warp == 0 && t == 0) to[0] = softmaxes[half].max_score, to[1] = softmaxes[half].sum;
#pragma unroll
            for (int j = 0; j < blocks; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {  // two adjacent columns
                    const float one = type == F16 ? sums[j][i][2 * half] : sums[j][0][2 * half + i],
                                next = type == F16 ? sums[j][i][2 * half + 1] : sums[j][1][2 * half + i];
                    // Partials are padded to multiples of four columns, so both floats fit.
                    if (const int c = type == F16 ? column(j, i, 0) : column(j, 0, i); c < a.v_dim)
                        *reinterpret_cast<float2*>(to + 4 + c) = make_float2(one, next);
                }
        }
    }
};

}  // namespace
