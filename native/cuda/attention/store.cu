// Norms and rotates q and k per head, and writes k and v to the cache. A warp processes some heads of q, then k and v
// of some KV heads, of one row.
#include "attention/store.cuh"
#include "primitives/mma.cuh"

constexpr int WARPS = 4;
constexpr int MAX_COLUMNS = 576;

namespace {

struct Store {
    NormRope norm_rope;
    const float *q, *k, *v;  // v: null if it is part of k (MLA)
    float* out;              // q, normed and rotated
    int entry, heads, kv_heads, k_dim, v_dim, k_room, v_room;
};

// Fast path without shared memory for heads of 128 columns with full RoPE and no norm: a lane has two RoPE pairs, (x,
// y) and (z, w).
struct Head128 {
    static constexpr int columns = 128, at_once = 4;
    float2 cosines, sines;
    int is_adjacent, lane;

    // Cosines and sines do not depend on the previous kernel.
    __device__ __forceinline__ Head128(const NormRope& norm_rope, long long table, int lane)
        : cosines(*reinterpret_cast<const float2*>(norm_rope.b->cosines + table + 2 * lane)),
          sines(*reinterpret_cast<const float2*>(norm_rope.b->sines + table + 2 * lane)),
          is_adjacent(norm_rope.is_adjacent),
          lane(lane) {}
    __device__ __forceinline__ float4 load(const float* head) const {
        if (is_adjacent) return __ldcg(reinterpret_cast<const float4*>(head) + lane);
        const float2 left = __ldcg(reinterpret_cast<const float2*>(head) + lane);
        const float2 right = __ldcg(reinterpret_cast<const float2*>(head + columns / 2) + lane);
        return make_float4(left.x, right.x, left.y, right.y);
    }
    __device__ __forceinline__ float4 rotate(const float4& v) const {
        return make_float4(__fsub_rn(__fmul_rn(v.x, cosines.x), __fmul_rn(v.y, sines.x)),
                           __fadd_rn(__fmul_rn(v.x, sines.x), __fmul_rn(v.y, cosines.x)),
                           __fsub_rn(__fmul_rn(v.z, cosines.y), __fmul_rn(v.w, sines.y)),
                           __fadd_rn(__fmul_rn(v.z, sines.y), __fmul_rn(v.w, cosines.y)));
    }
    __device__ __forceinline__ void store(const float4& v, float* head) const {
        if (is_adjacent) {
            reinterpret_cast<float4*>(head)[lane] = v;
        } else {
            reinterpret_cast<float2*>(head)[lane] = make_float2(v.x, v.z);
            reinterpret_cast<float2*>(head + columns / 2)[lane] = make_float2(v.y, v.w);
        }
    }
    // As put<F16>.
    __device__ __forceinline__ void put(const float4& v, u8* page, int slot) const {
        u32* const head = reinterpret_cast<u32*>(page) + slot * (columns / 2);
        if (is_adjacent) {
            reinterpret_cast<Words2*>(head)[lane] = {to_half2_saturated(v.x, v.y), to_half2_saturated(v.z, v.w)};
        } else {
            head[lane] = to_half2_saturated(v.x, v.z);
            head[columns / 4 + lane] = to_half2_saturated(v.y, v.w);
        }
    }
};

__device__ __forceinline__ bool is_plain(const Store& s, long long table) {
    const bool are_whole = s.k_dim == Head128::columns && s.norm_rope.n_rot == s.k_dim && s.k_room == s.k_dim;
    return are_whole && s.v != nullptr && s.v_dim == s.k_dim && s.v_room == s.k_dim && table % 2 == 0 &&
           s.norm_rope.q_norm == nullptr && s.norm_rope.k_norm == nullptr;
}

// Heads h, h + step, ... of a row, by one warp.
__device__ __forceinline__ void store_plain(const Store& s, const Head128& plain, const Entry& entry, int row, int page,
                                            int slot, int h, int step) {
    constexpr int n = Head128::columns;
    for (int each = Head128::at_once * step; h < s.heads; h += each) {
        float4 v[Head128::at_once];
        const long long first = (long long)row * s.heads + h;
#pragma unroll
        for (int i = 0; i < Head128::at_once; i++)
            if (h + i * step < s.heads) v[i] = plain.load(s.q + (first + i * step) * n);
#pragma unroll
        for (int i = 0; i < Head128::at_once; i++)
            if (h + i * step < s.heads) plain.store(plain.rotate(v[i]), s.out + (first + i * step) * n);
    }
    while (h - step >= s.heads) h -= step;  // first KV head of the warp
    for (; h < s.heads + s.kv_heads; h += step) {
        const int kv_head = h - s.heads;
        const long long at = ((long long)row * s.kv_heads + kv_head) * n;
        float4 k = plain.load(s.k + at), v = plain.load(s.v + at);
        k = plain.rotate(k);
        // as check_value
        const bool are_numbers =
            fabsf(v.x) <= 3e38f && fabsf(v.y) <= 3e38f && fabsf(v.z) <= 3e38f && fabsf(v.w) <= 3e38f;
        if (!__all_sync(ALL_LANES, are_numbers)) {
            v = make_float4(0.f, 0.f, 0.f, 0.f);
            if (plain.lane == 31) k.w = __int_as_float(0x7fc00000);
        }
        plain.put(k, const_cast<u8*>(head_of<F16>(entry.k, page, s.kv_heads, kv_head, n)), slot);
        plain.put(v, const_cast<u8*>(head_of<F16>(entry.v, page, s.kv_heads, kv_head, n)), slot);
    }
}

// Fast path for heads without norm, with full or no RoPE, of a multiple of 8 columns: a thread has two float4s of q, or
// of k and v. Pairs are between the two float4s or, if adjacent, within each.
struct VectorHead {
    const Store& s;
    const bool is_rotated, is_adjacent;
    const int each, second;  // 8-column groups per head; offset of the second float4

    __device__ __forceinline__ VectorHead(const Store& s)
        : s(s),
          is_rotated(s.norm_rope.n_rot > 0),
          is_adjacent(!is_rotated || s.norm_rope.is_adjacent),
          each(s.k_dim / 8),
          second(is_adjacent ? 4 : s.k_dim / 2) {}

    static __device__ __forceinline__ bool are_possible(const Store& s, long long table) {
        const bool are_alike = s.v != nullptr && s.k_dim % 8 == 0 && s.v_dim == s.k_dim && s.v_room == s.k_room;
        const bool are_whole = s.norm_rope.n_rot == s.k_dim && table % 4 == 0 && s.out != s.q;
        return are_alike && (s.norm_rope.n_rot == 0 || are_whole) && s.norm_rope.q_norm == nullptr &&
               s.norm_rope.k_norm == nullptr;
    }

    static __device__ __forceinline__ float4 load(const float* from) {
        return __ldcg(reinterpret_cast<const float4*>(from));
    }
    static __device__ __forceinline__ bool are_numbers(const float4& v) {
        return fabsf(v.x) <= 3e38f && fabsf(v.y) <= 3e38f && fabsf(v.z) <= 3e38f && fabsf(v.w) <= 3e38f;
    }
    static __device__ __forceinline__ void rotate_pair(float& x, float& y, float cosine, float sine) {
        const float left = __fsub_rn(__fmul_rn(x, cosine), __fmul_rn(y, sine));
        y = __fadd_rn(__fmul_rn(x, sine), __fmul_rn(y, cosine));
        x = left;
    }
    __device__ __forceinline__ void rotate(float4& a, float4& b, const float4& cosines, const float4& sines) const {
        if (is_adjacent) {
            rotate_pair(a.x, a.y, cosines.x, sines.x), rotate_pair(a.z, a.w, cosines.y, sines.y);
            rotate_pair(b.x, b.y, cosines.z, sines.z), rotate_pair(b.z, b.w, cosines.w, sines.w);
        } else {
            rotate_pair(a.x, b.x, cosines.x, sines.x), rotate_pair(a.y, b.y, cosines.y, sines.y);
            rotate_pair(a.z, b.z, cosines.z, sines.z), rotate_pair(a.w, b.w, cosines.w, sines.w);
        }
    }
    // As put<F16>; the last group of a head also clears the padding.
    __device__ __forceinline__ void put(const float4& a, const float4& b, const u8* page, int slot, int at,
                                        bool is_last) const {
        u8* const head = const_cast<u8*>(page) + slot * s.k_room * 2;
        *reinterpret_cast<Words2*>(head + at * 2) = {to_half2_saturated(a.x, a.y), to_half2_saturated(a.z, a.w)};
        *reinterpret_cast<Words2*>(head + (at + second) * 2) = {to_half2_saturated(b.x, b.y),
                                                                to_half2_saturated(b.z, b.w)};
        for (int c = s.k_dim; is_last && c < s.k_room; c += 8)
            *reinterpret_cast<Words4*>(head + c * 2) = Words4{0, 0, 0, 0};
    }

    // Heads of this block, as the general path assigns them. Returns false if V is not finite; everything written until
    // then is written again.
    __device__ __forceinline__ bool store(const Entry& entry, int row, int page, int slot, long long table) const {
        const int n = s.k_dim, step = gridDim.y * WARPS, n_heads = s.heads + s.kv_heads;
        const int n_units = (n_heads + step - 1) / step * WARPS * each;
        for (int base = 0; base < n_units; base += int(blockDim.x)) {
            const int unit = base + int(threadIdx.x), i = unit / each, j = unit - i * each;
            const int h = i / WARPS * step + blockIdx.y * WARPS + i % WARPS, kv_head = h - s.heads;
            const bool is_one = unit < n_units && h < n_heads, is_q = h < s.heads;
            const int at = is_adjacent ? 8 * j : 4 * j;
            const long long q_at = ((long long)row * s.heads + h) * n + at,
                            kv_at = ((long long)row * s.kv_heads + kv_head) * n + at;
            float4 a, b, c, d;
            if (is_one)
                a = load((is_q ? s.q + q_at : s.k + kv_at)), b = load((is_q ? s.q + q_at : s.k + kv_at) + second);
            if (is_one && !is_q) c = load(s.v + kv_at), d = load(s.v + kv_at + second);
            if (__syncthreads_or(is_one && !is_q && !(are_numbers(c) && are_numbers(d)))) return false;
            if (!is_one) continue;
            if (is_rotated)
                rotate(a, b, *reinterpret_cast<const float4*>(s.norm_rope.b->cosines + table + 4 * j),
                       *reinterpret_cast<const float4*>(s.norm_rope.b->sines + table + 4 * j));
            if (is_q) {
                *reinterpret_cast<float4*>(s.out + q_at) = a;
                *reinterpret_cast<float4*>(s.out + q_at + second) = b;
                continue;
            }
            put(a, b, head_of<F16>(entry.k, page, s.kv_heads, kv_head, s.k_room), slot, at, j == each - 1);
            put(c, d, head_of<F16>(entry.v, page, s.kv_heads, kv_head, s.k_room), slot, at, j == each - 1);
        }
        return true;
    }
};

// Zero-pads a head to complete blocks and applies the Hadamard transform, for q4 caches.
__device__ __forceinline__ void pad_and_hadamard(float* head, int n, int room, bool inside, int lane) {
    for (int c = n + lane; c < room; c += 32) head[c] = 0.f;
    hadamard(head, room, hadamard_size(room, inside), lane);
}

template <int k_type, int v_type>
__device__ void store(const Store& s) {
    __shared__ float heads[WARPS][MAX_COLUMNS];
    launch_dependents();
    const Batch& b = *s.norm_rope.b;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x, step = gridDim.y * WARPS;
    int h = blockIdx.y * WARPS + warp;
    if (row >= b.n_rows) {
        wait_for_previous_kernel();  // the next kernel relies on the previous one as well
        return;
    }
    const int position = b.positions[row];
    const Entry entry = b.entries[s.entry];
    const int page = entry.pages[(long long)b.sequences[row] * b.max_pages + position / PAGE], slot = position % PAGE;
    const long long table = s.norm_rope.table(row);
    if (k_type == F16 && v_type == F16 && is_plain(s, table)) {
        const Head128 plain(s.norm_rope, table, lane);
        wait_for_previous_kernel();
        store_plain(s, plain, entry, row, page, slot, h, step);
        return;
    }
    wait_for_previous_kernel();
    if (k_type == F16 && v_type == F16 && VectorHead::are_possible(s, table) &&
        VectorHead(s).store(entry, row, page, slot, table))
        return;
    float* const head = heads[warp];
    for (; h < s.heads + s.kv_heads; h += step) {
        const bool is_q = h < s.heads;
        const int kv_head = h - s.heads;
        const float* from = is_q ? s.q + ((long long)row * s.heads + h) * s.k_dim
                                 : s.k + ((long long)row * s.kv_heads + kv_head) * s.k_dim;
        __syncwarp();  // wait for readers of the previous head
        load_head(s.norm_rope, head, from, is_q ? s.norm_rope.q_norm : s.norm_rope.k_norm, s.k_dim, b.cosines + table,
                  b.sines + table, lane);
        if (is_q) {
            for (int c = lane; c < s.k_dim; c += 32) s.out[((long long)row * s.heads + h) * s.k_dim + c] = head[c];
            continue;
        }
        u8* const k = const_cast<u8*>(head_of<k_type>(entry.k, page, s.kv_heads, kv_head, s.k_room));
        const float* value = s.v == nullptr ? nullptr : s.v + ((long long)row * s.kv_heads + kv_head) * s.v_dim;
        const bool is_number = k_type == F32 || check_value(head, s.k_dim, value, s.v_dim, lane);
        if (k_type == Q4) pad_and_hadamard(head, s.k_dim, s.k_room, s.v == nullptr, lane);
        put<k_type>(head, s.k_dim, s.k_room, k, slot, lane);
        if (s.v == nullptr) continue;
        u8* const v = const_cast<u8*>(head_of<v_type>(entry.v, page, s.kv_heads, kv_head, s.v_room));
        const int n = is_number ? s.v_dim : 0;
        if (v_type == Q4) {
            __syncwarp();  // wait for readers of K
            for (int c = lane; c < n; c += 32) head[c] = value[c];
            pad_and_hadamard(head, n, s.v_room, false, lane);
            value = head;
        }
        put<v_type>(value, n, s.v_room, v, slot, lane);
    }
}

}  // namespace

#define STORE_PARAMETERS                                                                                       \
    const Batch *b, const float *q, const float *k, const float *v, float *out, const float *q_norm,           \
        const float *k_norm, int entry, int heads, int kv_heads, int k_dim, int v_dim, int k_room, int v_room, \
        int n_rot, int column, int is_adjacent, float eps
#define STORE_ARGUMENTS                                                                                           \
    Store {                                                                                                       \
        {b, q_norm, k_norm, n_rot, column, is_adjacent, eps}, q, k, v, out, entry, heads, kv_heads, k_dim, v_dim, \
            k_room, v_room                                                                                        \
    }

KERNEL_BOUNDS(128, 8, store_f16)(STORE_PARAMETERS) { store<F16, F16>(STORE_ARGUMENTS); }
KERNEL(store_f32)(STORE_PARAMETERS) { store<F32, F32>(STORE_ARGUMENTS); }
KERNEL(store_q8_0)(STORE_PARAMETERS) { store<Q8_0, Q8_0>(STORE_ARGUMENTS); }
KERNEL(store_q4)(STORE_PARAMETERS) { store<Q4, Q4>(STORE_ARGUMENTS); }
KERNEL(store_q8_0_q4)(STORE_PARAMETERS) { store<Q8_0, Q4>(STORE_ARGUMENTS); }
KERNEL(store_f16_q4)(STORE_PARAMETERS) { store<F16, Q4>(STORE_ARGUMENTS); }
