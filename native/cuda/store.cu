// store: q and k normed per head and turned; k and v written to the cache. A warp takes one head of q, or k and v of
// one KV head, of one row.
#include "attend.cuh"
#include "mma.cuh"

constexpr int WARPS = 4;
constexpr int MOST_COLUMNS = 576;

namespace {

struct Store {
    const Batch* b;
    const float *q, *k, *v;  // v is null if it is a part of k
    float* out;              // q normed and turned
    const float *q_norm, *k_norm;
    int entry, heads, kv_heads, k_dim, v_dim, k_room, v_room;
    int n_turned, column;  // how many leading elements turn, and where their turns begin in the table
    int is_adjacent;       // elements 2i and 2i + 1 turn together, else i and i + n_turned / 2
    float eps;
};

// The head divided by its root mean square, times the weight.
__device__ void norm(float* head, const float* weight, int n, float eps, int lane) {
    float sum = 0.f;
    for (int c = lane; c < n; c += 32) sum = __fmaf_rn(head[c], head[c], sum);
    for (int i = 16; i > 0; i >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, i));
    const float scale = __fdiv_rn(1.f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, float(n)), eps)));
    for (int c = lane; c < n; c += 32) head[c] = __fmul_rn(__fmul_rn(head[c], scale), weight[c]);
    __syncwarp();
}

__device__ void turn(const Store& s, float* head, int position, int lane) {
    const int half = s.n_turned / 2;
    const long long table = (long long)position * s.b->n_turns + s.column;
    for (int i = lane; i < half; i += 32) {
        const int left = s.is_adjacent ? 2 * i : i, right = s.is_adjacent ? 2 * i + 1 : i + half;
        const float x = head[left], y = head[right], cosine = s.b->cosines[table + i], sine = s.b->sines[table + i];
        head[left] = __fsub_rn(__fmul_rn(x, cosine), __fmul_rn(y, sine));
        head[right] = __fadd_rn(__fmul_rn(x, sine), __fmul_rn(y, cosine));
    }
    __syncwarp();
}

// A head into its place in a page; columns that fill up the room are zeros.
template <int type>
__device__ void put(const float* head, int n, int room, u8* page, int slot, int lane) {
    if (type == F32) {
        for (int c = lane; c < room; c += 32) reinterpret_cast<float*>(page)[slot * room + c] = c < n ? head[c] : 0.f;
    } else if (type == F16) {
        for (int c = 2 * lane; c < room; c += 64)
            reinterpret_cast<u32*>(page)[(slot * room + c) / 2] =
                to_halves_saturated(c < n ? head[c] : 0.f, c + 1 < n ? head[c + 1] : 0.f);
    } else {
        for (int c = lane; c < room; c += 32) {
            const float x = c < n ? head[c] : 0.f;
            float most = fabsf(x);
            bool is_number = x == x;
            for (int i = 16; i > 0; i >>= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, i));
            is_number = __all_sync(ALL_LANES, is_number && most <= 3e38f);
            const float inverse = most > 0.f ? __fdiv_rn(127.f, most) : 0.f;
            reinterpret_cast<signed char*>(page)[slot * room + c] =
                is_number ? (signed char)(__float2int_rn(__fmul_rn(x, inverse))) : (signed char)(1);
            // Blocks with what is no number are none.
            if (lane == 0)
                reinterpret_cast<float*>(page + PAGE * room)[slot * (room / 32) + c / 32] =
                    is_number ? __fdiv_rn(most, 127.f) : __int_as_float(0x7fc00000);
        }
    }
}

__device__ bool are_numbers(const float* x, int n, int lane) {
    bool are = true;
    for (int c = lane; c < n; c += 32) are = are && fabsf(x[c]) <= 3e38f;
    return __all_sync(ALL_LANES, are);
}

template <int type>
__device__ void store(const Store& s) {
    __shared__ float heads[WARPS][MOST_COLUMNS];
    let_next_kernel_begin();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x, h = blockIdx.y * WARPS + warp;
    if (row >= s.b->n_rows || h >= s.heads + s.kv_heads) {
        wait_for_kernel_before();  // what comes after this kernel relies on the one before it, too
        return;
    }
    const bool is_q = h < s.heads;
    const int kv_head = h - s.heads, position = s.b->positions[row];
    const Entry entry = s.b->entries[s.entry];
    const int page = entry.pages[(long long)s.b->sequences[row] * s.b->max_pages + position / PAGE],
              slot = position % PAGE;
    wait_for_kernel_before();
    const float* from =
        is_q ? s.q + ((long long)row * s.heads + h) * s.k_dim : s.k + ((long long)row * s.kv_heads + kv_head) * s.k_dim;
    float* const head = heads[warp];
    for (int c = lane; c < s.k_dim; c += 32) head[c] = from[c];
    __syncwarp();
    const float* weight = is_q ? s.q_norm : s.k_norm;
    if (weight != nullptr) norm(head, weight, s.k_dim, s.eps, lane);
    turn(s, head, position, lane);
    if (is_q) {
        for (int c = lane; c < s.k_dim; c += 32) s.out[((long long)row * s.heads + h) * s.k_dim + c] = head[c];
        return;
    }
    u8* const k = const_cast<u8*>(head_of<type>(entry.k, page, s.kv_heads, kv_head, s.k_room));
    // Products of tensor cores take what a query does not see times zero, which is none where it is no number: then V
    // is zeros, and a column of K that is not of V says what it was to those that see it.
    const float* value = s.v == nullptr ? head : s.v + ((long long)row * s.kv_heads + kv_head) * s.v_dim;
    const bool is_number = type == F32 || are_numbers(value, s.v == nullptr ? s.k_dim : s.v_dim, lane);
    if (!is_number) {
        __syncwarp();
        for (int c = lane; c < s.k_dim; c += 32)
            head[c] = c == s.k_dim - 1 ? __int_as_float(0x7fc00000) : s.v == nullptr ? 0.f : head[c];
        __syncwarp();
    }
    put<type>(head, s.k_dim, s.k_room, k, slot, lane);
    if (s.v == nullptr) return;
    u8* const v = const_cast<u8*>(head_of<type>(entry.v, page, s.kv_heads, kv_head, s.v_room));
    put<type>(value, is_number ? s.v_dim : 0, s.v_room, v, slot, lane);
}

}  // namespace

#define STORE_PARAMETERS                                                                                       \
    const Batch *b, const float *q, const float *k, const float *v, float *out, const float *q_norm,           \
        const float *k_norm, int entry, int heads, int kv_heads, int k_dim, int v_dim, int k_room, int v_room, \
        int n_turned, int column, int is_adjacent, float eps
#define STORE_ARGUMENTS                                                                                          \
    Store {                                                                                                      \
        b, q, k, v, out, q_norm, k_norm, entry, heads, kv_heads, k_dim, v_dim, k_room, v_room, n_turned, column, \
            is_adjacent, eps                                                                                     \
    }

KERNEL(store_f16)(STORE_PARAMETERS) { store<F16>(STORE_ARGUMENTS); }
KERNEL(store_f32)(STORE_PARAMETERS) { store<F32>(STORE_ARGUMENTS); }
KERNEL(store_q8_0)(STORE_PARAMETERS) { store<Q8_0>(STORE_ARGUMENTS); }
