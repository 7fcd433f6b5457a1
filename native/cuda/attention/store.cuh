// Heads before attention: q and k get their norm and rope, k and v go to the cache. A warp does one head, which it
// keeps in shared memory.
#pragma once

#include "attention/attend.cuh"

// How heads are normed and turned.
struct Turned {
    const Batch* b;
    const float *q_norm, *k_norm;
    int n_turned, column;  // how many leading elements turn, and where their turns begin in the table
    int is_adjacent;       // elements 2i and 2i + 1 turn together, else i and i + n_turned / 2
    float eps;

    // Where the turns of a row begin.
    __device__ long long table(int row) const { return (long long)b->turn_rows[row] * b->n_turns + column; }
};

// Returns the factor that gives a head of n numbers a root mean square of 1. `sum` is the lane's sum of squares.
static __device__ float norm_scale(float sum, int n, float eps) {
    for (int i = 16; i > 0; i >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, i));
    return __fdiv_rn(1.f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, float(n)), eps)));
}

// The head divided by its root mean square, times the weight.
static __device__ void norm(float* head, const float* weight, int n, float eps, int lane) {
    float sum = 0.f;
    for (int c = lane; c < n; c += 32) sum = __fmaf_rn(head[c], head[c], sum);
    const float scale = norm_scale(sum, n, eps);
    for (int c = lane; c < n; c += 32) head[c] = __fmul_rn(__fmul_rn(head[c], scale), weight[c]);
    __syncwarp();
}

static __device__ void turn(const Turned& s, float* head, const float* cosines, const float* sines, int lane) {
    const int half = s.n_turned / 2;
    for (int i = lane; i < half; i += 32) {
        const int left = s.is_adjacent ? 2 * i : i, right = s.is_adjacent ? 2 * i + 1 : i + half;
        const float x = head[left], y = head[right], cosine = cosines[i], sine = sines[i];
        head[left] = __fsub_rn(__fmul_rn(x, cosine), __fmul_rn(y, sine));
        head[right] = __fadd_rn(__fmul_rn(x, sine), __fmul_rn(y, cosine));
    }
    __syncwarp();
}

// Scale of a q8_0 block of 32 numbers, and its inverse. The scale is NaN if the block is not finite.
struct Scale {
    float scale, inverse;

    __device__ __forceinline__ Scale(float most, bool are_numbers)
        : scale(are_numbers ? __fdiv_rn(most, 127.f) : __int_as_float(0x7fc00000)),
          inverse(most > 0.f ? __fdiv_rn(127.f, most) : 0.f) {}
    __device__ __forceinline__ bool is_one() const { return scale == scale; }
};
// Returns the scale of the block whose numbers the lanes of a warp hold, one each.
static __device__ Scale scale_of_block(float x) {
    float most = fabsf(x);
    for (int i = 16; i > 0; i >>= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, i));
    return Scale(most, __all_sync(ALL_LANES, fabsf(x) <= 3e38f));
}
__device__ __forceinline__ signed char whole_number(float x, float inverse, bool are_numbers) {
    return are_numbers ? (signed char)(__float2int_rn(__fmul_rn(x, inverse))) : (signed char)(1);
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
            const Scale scale = scale_of_block(x);
            reinterpret_cast<signed char*>(page)[slot * room + c] = whole_number(x, scale.inverse, scale.is_one());
            if (lane == 0) reinterpret_cast<float*>(page + PAGE * room)[slot * (room / 32) + c / 32] = scale.scale;
        }
    }
}

static __device__ bool are_numbers(const float* x, int n, int lane) {
    bool are = true;
    for (int c = lane; c < n; c += 32) are = are && fabsf(x[c]) <= 3e38f;
    return __all_sync(ALL_LANES, are);
}

// Loads a head, norms and turns it.
static __device__ void load_head(const Turned& s, float* head, const float* from, const float* weight, int n,
                                 const float* cosines, const float* sines, int lane) {
    for (int c = lane; c < n; c += 32) head[c] = from[c];
    __syncwarp();
    if (weight != nullptr) norm(head, weight, n, s.eps, lane);
    turn(s, head, cosines, sines, lane);
}

// Returns whether V is finite. Tensor cores multiply masked positions by 0, and 0 x NaN is NaN: a V that is not finite
// is stored as zeros, and the last column of K becomes NaN for the queries that do see it.
static __device__ bool check_value(float* k, int k_dim, const float* v, int v_dim, int lane) {
    if (are_numbers(v == nullptr ? k : v, v == nullptr ? k_dim : v_dim, lane)) return true;
    __syncwarp();
    for (int c = lane; c < k_dim; c += 32)
        k[c] = c == k_dim - 1 ? __int_as_float(0x7fc00000) : v == nullptr ? 0.f : k[c];
    __syncwarp();
    return false;
}
