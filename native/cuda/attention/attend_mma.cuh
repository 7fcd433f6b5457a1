// Attention over f16, q8_0 and q4 caches on tensor cores. All kernels use the same arithmetic:
// - q8_0 and q4 are dequantized to f16; q is scaled by a power of two per head and rounded to f16; a score is a chain
//   of m16n8k16 over the columns, in order
// - KV tiles of 64 positions at multiples of 64: row maximum, exp weights rounded to f16, their sum, and their product
//   with V as a chain of m16n8k16 over the positions, in order
// - tiles are merged in order into their split of 256 positions, splits in order into the result
#pragma once

#include "attention/attend.cuh"
#include "primitives/mma.cuh"

constexpr int KV_TILE = 64;
constexpr int QUERIES = 16;        // rows of an mma
constexpr u32 ONES = 0x3C003C00u;  // f16x2 of 1.0

// ldmatrix.x4: four 8 x 8 f16 matrices from shared memory. Lane 8 i + j has the address of row j of matrix i; a lane
// receives two adjacent elements of row lane / 4 or, transposed, of column lane / 4 of each.
template <bool transposed>
__device__ __forceinline__ void ldmatrix_x4(u32 (&out)[4], const u8* row) {
#ifdef WOOLLY_EMULATED
    struct Mine {
        const u8* row;
        u32* out;
    } mine{row, out};
    emulated::together(ALL_LANES, &mine, [](void* const brought[32]) {
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                u32 word = 0;
                for (int e = 0; e < 2; e++) {
                    const int r = transposed ? 2 * (lane % 4) + e : lane / 4,
                              c = transposed ? lane / 4 : 2 * (lane % 4) + e;
                    const u8* from = static_cast<Mine*>(brought[8 * i + r])->row;
                    if (reinterpret_cast<size_t>(from) % 16 != 0) emulated::fail("a row of a matrix is not aligned");
                    word |= u32(reinterpret_cast<const u16*>(from)[c]) << (16 * e);
                }
                static_cast<Mine*>(brought[lane])->out[i] = word;
            }
    });
#else
    const u32 at = shared_address(row);
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(at)
                     : "memory");
#endif
}

// Bytes per row in shared memory: an odd multiple of 16, so eight rows fall into different banks.
__device__ __forceinline__ int stride_of(int columns) { return 2 * columns + 16; }

// Query: one head of one row.
struct Query {
    int row, head, at;  // at: position of the row
    KvRange range;      // empty for padding
    float score_scale;  // factor of q.k

    // Factor of the scores: plain scores are not yet scaled.
    __device__ __forceinline__ float factor(bool is_plain) const { return is_plain ? score_scale : 1.f; }
};

__device__ __forceinline__ Query query_of(const AttendParams& a, int row, int head, bool is_one) {
    if (!is_one) return {0, 0, 0, {1, 0}, 0.f};
    return {row, head, a.b->positions[row], visible_range(a, row), 0.f};
}
// Query i of a tile: `rows` rows from `row` on or, with more than 16 heads per KV head, one tile of them.
__device__ __forceinline__ Query query_of_tile(const AttendParams& a, int i, int row, int rows, int last_row, int tile,
                                               int kv_head) {
    const int gqa = a.gqa();
    const int of_row = gqa < QUERIES ? row + i / gqa : row;
    const int of_head = gqa < QUERIES ? i % gqa : tile * QUERIES + i;
    const bool is_one = of_row <= last_row && of_head < gqa && (gqa >= QUERIES || i / gqa < rows);
    return query_of(a, of_row, kv_head * gqa + of_head, is_one);
}

// Power of two that scales a query of largest magnitude max_abs into f16 range, and its inverse.
struct QueryScale {
    float up, down;

    __device__ __forceinline__ QueryScale(float max_abs) {
        // scales the largest magnitude to [256, 512)
        const int exponent = min(max(__float_as_int(max_abs) >> 23, 9), 253);
        up = __int_as_float((262 - exponent) << 23), down = __int_as_float((exponent - 8) << 23);
    }
    __device__ __forceinline__ float score_scale(const AttendParams& a) const {
        return __fmul_rn(a.is_plain() ? __fmul_rn(a.scale, LOG2_E) : a.scale, down);
    }
};

// Positions visible to all queries of the warp.
__device__ __forceinline__ KvRange common_range(const Query (&mine)[2]) {
    KvRange inner{0, 1 << 30};
    for (int half = 0; half < 2; half++)
        if (const KvRange one = mine[half].range; one.first <= one.last)
            inner = {max(inner.first, one.first), min(inner.last, one.last)};
    for (int i = 4; i < 32; i *= 2) {
        inner.first = max(inner.first, __shfl_xor_sync(ALL_LANES, inner.first, i));
        inner.last = min(inner.last, __shfl_xor_sync(ALL_LANES, inner.last, i));
    }
    return inner;
}

// Loads columns from `base` on of a query head, temperature applied; eight lanes hold 128 columns.
__device__ __forceinline__ void fetch_query(const AttendParams& a, const Query& one, int base, int lane,
                                            float2 (&x)[8]) {
    const float* q = a.q + ((long long)one.row * a.heads + one.head) * a.k_dim;
    const bool is_one = one.range.first <= one.range.last, are_pairs = a.k_dim % 2 == 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int c = base + 2 * (lane + 8 * i);
        x[i] = make_float2(0.f, 0.f);
        if (!is_one || c >= a.k_dim) continue;
        if (are_pairs)
            x[i] = *reinterpret_cast<const float2*>(q + c);
        else
            x[i] = make_float2(q[c], c + 1 < a.k_dim ? q[c + 1] : 0.f);
    }
    if (a.temper == 0.f || !is_one) return;
    const float temper = tempered(a, one.row);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = make_float2(__fmul_rn(x[i].x, temper), __fmul_rn(x[i].y, temper));
}
// Largest magnitude over the eight lanes.
__device__ __forceinline__ float max_magnitude(const float2 (&x)[8], float max_abs) {
#pragma unroll
    for (int i = 0; i < 8; i++) max_abs = fmaxf(max_abs, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
    for (int i = 4; i > 0; i >>= 1) max_abs = fmaxf(max_abs, __shfl_xor_sync(ALL_LANES, max_abs, i));
    return max_abs;
}
template <class Place>  // byte address of a column
__device__ __forceinline__ void put_query(const float2 (&x)[8], float up, int base, int columns, int lane,
                                          const Place& place) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int c = base + 2 * (lane + 8 * i);
        if (c < columns) *reinterpret_cast<u32*>(place(c)) = to_half2(__fmul_rn(x[i].x, up), __fmul_rn(x[i].y, up));
    }
}

// Place of column c of q, and of K in q8_0 and q4 tiles: a lane of mma reads four adjacent columns.
__device__ __forceinline__ int permuted_column(int c) {
    return (c & ~15) + (c / 4 & 3) * 2 + (c / 2 & 1) * 8 + (c & 1);
}

// Stores a query head as f16 and returns the factor of its scores. Eight lanes load 128 columns before using the first.
template <int type = F16>
__device__ __forceinline__ float load_query(const AttendParams& a, const Query& one, u8* to, int columns, int lane) {
    auto place = [&](int c) { return to + 2 * (type == F16 ? c : permuted_column(c)); };
    float2 x[8];
    float max_abs = 0.f;
    for (int base = (columns - 1) / 128 * 128; base >= 0; base -= 128) {
        fetch_query(a, one, base, lane, x);
        max_abs = max_magnitude(x, max_abs);
    }
    const QueryScale query_scale(max_abs);
    for (int base = 0; base < columns; base += 128) {
        if (base > 0) fetch_query(a, one, base, lane, x);
        put_query(x, query_scale.up, base, columns, lane, place);
    }
    return query_scale.score_scale(a);
}

// Score, or NO_SCORE if masked. A plain score is the bare product, scaled later by exp_weight_at.
__device__ __forceinline__ float score_at(const AttendParams& a, const Query& one, float product, int position,
                                          bool is_plain) {
    if (position < one.range.first || position > one.range.last) return NO_SCORE;
    return is_plain ? product : score_of(a, __fmul_rn(product, one.score_scale), one.head, position - one.at);
}

// exp2(score * factor - base), where `base` is the scaled maximum.
__device__ __forceinline__ float exp_weight_at(float score, float factor, float base) {
    return exp2_approx(__fmaf_rn(score, factor, -base));
}

// Dequantization of q8_0 to f16: (number / 64, exact) * (64 scale). So scales keep their bits where they would be f16
// subnormals.

// Two scales times 64 as f16x2, capped so that 127/64 times it is finite; NaN passes through.
__device__ __forceinline__ u32 scales_of(float low, float high) {
    low = __fmul_rn(low, 64.f), high = __fmul_rn(high, 64.f);
#ifdef WOOLLY_EMULATED
    constexpr float max_abs = 32992.f;
    return to_half2(low > max_abs ? max_abs : low, high > max_abs ? max_abs : high);
#else
    u32 out;
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(out) : "r"(to_half2(low, high)), "r"(0x78077807u));
    return out;
#endif
}

// Converts bytes `first` and first + 1, biased by 128, to f16 / 64: as mantissa bits of 16.0 they read 18 too large.
template <int first>
__device__ __forceinline__ u32 whole_numbers(u32 bytes) {
    return half_add(pick_bytes(bytes, 0x4C4C4C4Cu, first == 0 ? 0x4140u : 0x4342u), 0xCC80CC80u);
}
constexpr u32 TOP_BITS = 0x80808080u;

// Eight numbers.
__device__ __forceinline__ Words4 dequantized(Words2 numbers, u32 scales) {
    const u32 x = numbers.x ^ TOP_BITS, y = numbers.y ^ TOP_BITS;
    return Words4{half_mul(whole_numbers<0>(x), scales), half_mul(whole_numbers<2>(x), scales),
                  half_mul(whole_numbers<0>(y), scales), half_mul(whole_numbers<2>(y), scales)};
}
// Same, for eight q4 codes.
__device__ __forceinline__ Words4 dequantized_q4(u32 codes, u32 scales) {
    return dequantized(Words2{iq4_values(codes & 0xffffu) ^ TOP_BITS, iq4_values(codes >> 16) ^ TOP_BITS}, scales);
}

// cp.async of 16 bytes, or zero fill without a read.
__device__ __forceinline__ void cp_async16_zfill(void* to, const void* from, bool is_copied) {
#ifdef WOOLLY_EMULATED
    if (is_copied)
        cp_async16(to, from);
    else
        *static_cast<Words4*>(to) = Words4{0, 0, 0, 0};
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(is_copied ? 16 : 0)
                 : "memory");
#endif
}

// Starts the copy of a KV tile of K or V to shared memory as f16. Masked positions are zero-filled: 0 x NaN would spoil
// sums. Quantized types are dequantized by this thread, synchronously. IS_PERMUTED: columns in the order of
// permuted_column.
template <int type, bool IS_PERMUTED = false>
__device__ __forceinline__ void copy_kv_tile(u8* to, const u8* entry, const int* pages, int kv_heads, int kv_head,
                                             int room, int columns, int tile, KvRange range, int tid, int n_threads) {
    constexpr int at_once = type == F16 ? 1 : 4;  // independent loads
    const int per_row = columns / 8, stride = stride_of(columns);
    const int rows = n_threads / per_row, rest = n_threads % per_row;
    const u8* heads[KV_TILE / PAGE];
    for (int i = 0; i < KV_TILE / PAGE; i++) {
        const int from = tile * KV_TILE + i * PAGE;
        const int page = from <= range.last && from + PAGE > range.first ? pages[from / PAGE] : 0;
        heads[i] = head_of<type>(entry, page, kv_heads, kv_head, room);
    }
    for (int row = tid / per_row, c = tid % per_row; row < KV_TILE;) {
        Words2 numbers[at_once];
        float scales[at_once];
        u8* into[at_once];
        int permuted_offset[at_once];
#pragma unroll
        for (int i = 0; i < at_once; i++) {
            const int p = tile * KV_TILE + row;
            const u8* const head = row < PAGE ? heads[0] : heads[1];
            const bool is_visible = row < KV_TILE && p >= range.first && p <= range.last;
            into[i] = row < KV_TILE ? to + row * stride + c * 16 : nullptr, permuted_offset[i] = c % 2 * 8;
            if (type == F16) {
                if (is_visible)
                    cp_async16(into[i], head + (p % PAGE * room + c * 8) * 2);
                else
                    *reinterpret_cast<Words4*>(into[i]) = Words4{0, 0, 0, 0};
            } else {
                numbers[i] = Words2{0, 0}, scales[i] = 0.f;
                if (is_visible && type == Q4) {
                    const u8* const scale = head + PAGE * room / 2 + (p % PAGE * (room / 32) + c / 4) * 2;
                    numbers[i].x = *reinterpret_cast<const u32*>(head + p % PAGE * (room / 2) + c * 4);
                    scales[i] = __int_as_float(int(u32(*reinterpret_cast<const u16*>(scale)) << 16));
                } else if (is_visible) {
                    numbers[i] = *reinterpret_cast<const Words2*>(head + p % PAGE * room + c * 8);
                    scales[i] = reinterpret_cast<const float*>(head + PAGE * room)[p % PAGE * (room / 32) + c / 4];
                }
            }
            row += rows, c += rest;
            if (c >= per_row) c -= per_row, row++;
        }
#pragma unroll
        for (int i = 0; type != F16 && i < at_once; i++)
            if (into[i] != nullptr) {
                const u32 two = scales_of(scales[i], scales[i]);
                const Words4 out = type == Q4 ? dequantized_q4(numbers[i].x, two) : dequantized(numbers[i], two);
                if (!IS_PERMUTED) {
                    *reinterpret_cast<Words4*>(into[i]) = out;
                    continue;
                }
                u8* const first = into[i] - permuted_offset[i];  // 16-column group
                *reinterpret_cast<Words2*>(first) = Words2{out.x, out.z};
                *reinterpret_cast<Words2*>(first + 16) = Words2{out.y, out.w};
            }
    }
}

// True in the last of n blocks to arrive at `done`, which is reset to 0; the writes of the others are visible.
static __device__ bool is_last_of(int n, u32* done, bool& is_last) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(done, 1u) == u32(n - 1);
        if (is_last) *done = 0;
    }
    __syncthreads();
    __threadfence();
    return is_last;
}

// Merges all partials of the queries in order: KV tiles into splits if they are separate, splits into the result.
static __device__ void merge_partials(const AttendParams& a, const Partials& partials, const Query* queries, int tid,
                                      int n_threads) {
    constexpr int at_once = 8;  // independent loads
    const int chunks = (a.v_dim + 3) / 4;
    for (int i = tid; i < QUERIES * chunks; i += n_threads) {
        const Query one = queries[i / chunks];
        if (one.range.first > one.range.last) continue;
        const int c = i % chunks * 4, first = one.range.first / partials.span, last = one.range.last / partials.span;
        const float* from = partials.at(a, one.row, one.head, 0);
        Softmax all, split;
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f), of_split = sum;
        auto add = [](float4& to, Softmax& s, float max_score, float total, const float4& x) {
            float mine, others;
            s.merge(max_score, total, mine, others);
            to.x = merged(to.x, mine, x.x, others), to.y = merged(to.y, mine, x.y, others);
            to.z = merged(to.z, mine, x.z, others), to.w = merged(to.w, mine, x.w, others);
        };
        for (int p = first; p <= last; p += at_once) {
            float2 softmaxes[at_once];
            float4 values[at_once];
#pragma unroll
            for (int j = 0; j < at_once; j++)
                if (p + j <= last) {
                    const float* partial = from + (long long)(p + j) * a.partial_stride();
                    softmaxes[j] = __ldcg(reinterpret_cast<const float2*>(partial));
                    values[j] = __ldcg(reinterpret_cast<const float4*>(partial + 4 + c));
                }
#pragma unroll
            for (int j = 0; j < at_once; j++) {
                if (p + j > last) continue;
                add(of_split, split, softmaxes[j].x, softmaxes[j].y, values[j]);
                if (partials.span < KV_SPLIT && (p + j) % (KV_SPLIT / KV_TILE) != KV_SPLIT / KV_TILE - 1 &&
                    p + j != last)
                    continue;
                add(sum, all, split.max_score, split.sum, of_split);
                split = Softmax(), of_split = make_float4(0.f, 0.f, 0.f, 0.f);
            }
        }
        const float inv_sum = inv_sum_of(a, all, one.head);
        float* to = a.out + ((long long)one.row * a.heads + one.head) * a.v_dim + c;
        to[0] = __fmul_rn(sum.x, inv_sum);
        if (c + 1 < a.v_dim) to[1] = __fmul_rn(sum.y, inv_sum);
        if (c + 2 < a.v_dim) to[2] = __fmul_rn(sum.z, inv_sum);
        if (c + 3 < a.v_dim) to[3] = __fmul_rn(sum.w, inv_sum);
    }
}

// Stores the results of a thread's two queries: sum holds columns 8 j + 2 t and the next, of query g, then of g + 8.
template <int columns>
__device__ __forceinline__ void store_sums(const AttendParams& a, const Query (&mine)[2], const Softmax (&all)[2],
                                           const float4* sums, int t) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const Query& one = mine[half];
        if (one.range.first > one.range.last) continue;
        const float inv_sum = inv_sum_of(a, all[half], one.head);
        float* const to = a.out + ((long long)one.row * a.heads + one.head) * a.v_dim;
#pragma unroll
        for (int j = 0; j < columns / 8; j++) {
            const float4 sum = sums[j * 32];
            const int c = 8 * j + 2 * t;
            if (c < a.v_dim) to[c] = __fmul_rn(half ? sum.z : sum.x, inv_sum);
            if (c + 1 < a.v_dim) to[c + 1] = __fmul_rn(half ? sum.w : sum.y, inv_sum);
        }
    }
}
