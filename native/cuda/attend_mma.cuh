// Attention over f16 caches on tensor cores. Its arithmetic, whichever kernel computes it:
// - q as halves times a power of two of its head; scores are chains of m16n8k16 over 16 columns each, in order.
// - Groups of 64 positions that begin at multiples of 64: their maximum, powers of 2 as halves, the sum of these halves
//   and the sums of V by chains over 16 positions each, in order.
// - Groups are merged in order into their unit, units in order into the result.
#pragma once

#include "attend.cuh"
#include "mma.cuh"

constexpr int GROUP = 64;
constexpr u32 ONES = 0x3C003C00u;  // two halves

// Four matrices of 8 x 8 halves from shared memory: lane 8 i + j has the address of row j of matrix i. A lane gets two
// neighbours of row lane / 4 of each, or, turned, of column lane / 4.
template <bool turned>
__device__ __forceinline__ void load_matrices(u32 (&out)[4], const u8* row) {
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
                    const int r = turned ? 2 * (lane % 4) + e : lane / 4, c = turned ? lane / 4 : 2 * (lane % 4) + e;
                    const u8* from = static_cast<Mine*>(brought[8 * i + r])->row;
                    if (reinterpret_cast<size_t>(from) % 16 != 0) emulated::fail("a row of a matrix is not aligned");
                    word |= u32(reinterpret_cast<const u16*>(from)[c]) << (16 * e);
                }
                static_cast<Mine*>(brought[lane])->out[i] = word;
            }
    });
#else
    const u32 at = shared_address(row);
    if (turned)
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

// Bytes from row to row in shared memory: an odd number of 16 bytes, so that eight rows lie in different banks.
__device__ __forceinline__ int stride_of(int columns) { return 2 * columns + 16; }

// A query: one head of one row.
struct Query {
    int row, head, at;  // at: its position
    Seen range;         // nothing if it is none
    float times;        // what products are multiplied by
};

__device__ __forceinline__ Query query_of(const Attend& a, int row, int head, bool is_one) {
    if (!is_one) return {0, 0, 0, {1, 0}, 0.f};
    return {row, head, a.b->positions[row], seen(a, row), 0.f};
}

// The query's head as halves times a power of two; gives what products are to be multiplied by. By one warp.
__device__ __forceinline__ float load_query(const Attend& a, const Query& one, u8* to, int lane) {
    u32* words = reinterpret_cast<u32*>(to);
    const float* q = a.q + ((long long)one.row * a.heads + one.head) * a.k_dim;
    const bool is_one = one.range.first <= one.range.last;
    const float temper = is_one ? tempered(a, one.row) : 0.f;
    float most = 0.f;
    if (is_one)
        for (int c = lane; c < a.k_dim; c += 32) most = fmaxf(most, fabsf(__fmul_rn(q[c], temper)));
    for (int i = 16; i > 0; i >>= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, i));
    const int exponent = min(max(__float_as_int(most) >> 23, 9), 253);  // the largest becomes 256 to 512
    const float up = __int_as_float((262 - exponent) << 23), down = __int_as_float((exponent - 8) << 23);
    for (int c = 2 * lane; c < a.k_room; c += 64) {
        const float x = is_one && c < a.k_dim ? __fmul_rn(__fmul_rn(q[c], temper), up) : 0.f;
        const float y = is_one && c + 1 < a.k_dim ? __fmul_rn(__fmul_rn(q[c + 1], temper), up) : 0.f;
        words[c / 2] = to_halves(x, y);
    }
    return __fmul_rn(a.is_plain() ? __fmul_rn(a.scale, LOG2_E) : a.scale, down);
}

// A score, or NOTHING where the query does not see the position.
__device__ __forceinline__ float score_at(const Attend& a, const Query& one, float product, int position,
                                          bool is_plain) {
    if (position < one.range.first || position > one.range.last) return NOTHING;
    const float x = __fmul_rn(product, one.times);
    return is_plain ? x : score_of(a, x, one.head, position - one.at);
}

// Starts the copy of a group of positions of K or V; zeros where no query sees, for a sum must not meet rubbish.
__device__ __forceinline__ void copy_group(u8* to, const u8* entry, const int* pages, int kv_heads, int kv_head,
                                           int room, int columns, int group, Seen range, int tid, int n_threads) {
    const int per_row = columns / 8, stride = stride_of(columns);
    const int rows = n_threads / per_row, rest = n_threads % per_row;
    const u8* heads[GROUP / PAGE];
    for (int i = 0; i < GROUP / PAGE; i++) {
        const int from = group * GROUP + i * PAGE;
        const int page = from <= range.last && from + PAGE > range.first ? pages[from / PAGE] : 0;
        heads[i] = head_of<F16>(entry, page, kv_heads, kv_head, room);
    }
    for (int row = tid / per_row, c = tid % per_row; row < GROUP;) {
        const int p = group * GROUP + row;
        u8* const into = to + row * stride + c * 16;
        if (p >= range.first && p <= range.last)
            copy16(into, (row < PAGE ? heads[0] : heads[1]) + (p % PAGE * room + c * 8) * 2);
        else
            *reinterpret_cast<Words4*>(into) = Words4{0, 0, 0, 0};
        row += rows, c += rest;
        if (c >= per_row) c -= per_row, row++;
    }
}
