// store: q and k normed per head and turned; k and v written to the cache. A warp takes one head of q, or k and v of
// one KV head, of one row.
#include "mma.cuh"
#include "store.cuh"

constexpr int WARPS = 4;
constexpr int MOST_COLUMNS = 576;

namespace {

struct Store {
    Turned turned;
    const float *q, *k, *v;  // v is null if it is a part of k
    float* out;              // q normed and turned
    int entry, heads, kv_heads, k_dim, v_dim, k_room, v_room;
};

template <int type>
__device__ void store(const Store& s) {
    __shared__ float heads[WARPS][MOST_COLUMNS];
    let_next_kernel_begin();
    const Batch& b = *s.turned.b;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x, h = blockIdx.y * WARPS + warp;
    if (row >= b.n_rows || h >= s.heads + s.kv_heads) {
        wait_for_kernel_before();  // what comes after this kernel relies on the one before it, too
        return;
    }
    const bool is_q = h < s.heads;
    const int kv_head = h - s.heads, position = b.positions[row];
    const Entry entry = b.entries[s.entry];
    const int page = entry.pages[(long long)b.sequences[row] * b.max_pages + position / PAGE], slot = position % PAGE;
    wait_for_kernel_before();
    const float* from =
        is_q ? s.q + ((long long)row * s.heads + h) * s.k_dim : s.k + ((long long)row * s.kv_heads + kv_head) * s.k_dim;
    float* const head = heads[warp];
    const long long table = s.turned.table(position);
    load_head(s.turned, head, from, is_q ? s.turned.q_norm : s.turned.k_norm, s.k_dim, b.cosines + table,
              b.sines + table, lane);
    if (is_q) {
        for (int c = lane; c < s.k_dim; c += 32) s.out[((long long)row * s.heads + h) * s.k_dim + c] = head[c];
        return;
    }
    u8* const k = const_cast<u8*>(head_of<type>(entry.k, page, s.kv_heads, kv_head, s.k_room));
    const float* value = s.v == nullptr ? nullptr : s.v + ((long long)row * s.kv_heads + kv_head) * s.v_dim;
    const bool is_number = type == F32 || check_value(head, s.k_dim, value, s.v_dim, lane);
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
#define STORE_ARGUMENTS                                                                                              \
    Store {                                                                                                          \
        {b, q_norm, k_norm, n_turned, column, is_adjacent, eps}, q, k, v, out, entry, heads, kv_heads, k_dim, v_dim, \
            k_room, v_room                                                                                           \
    }

KERNEL(store_f16)(STORE_PARAMETERS) { store<F16>(STORE_ARGUMENTS); }
KERNEL(store_f32)(STORE_PARAMETERS) { store<F32>(STORE_ARGUMENTS); }
KERNEL(store_q8_0)(STORE_PARAMETERS) { store<Q8_0>(STORE_ARGUMENTS); }
