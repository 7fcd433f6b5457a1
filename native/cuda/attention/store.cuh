// Heads before attention: norm and RoPE of q and k, stores of k and v in the cache. One warp per head, in shared
// memory.
#pragma once

#include "attention/attend.cuh"
#include "primitives/division.cuh"

// Norm and RoPE of heads.
struct NormRope {
    const Batch* b;
    const float *q_norm, *k_norm;
    int n_rot, column;  // rotated columns, and their first column in the cosine table
    int is_adjacent;    // pairs (2i, 2i + 1), else (i, i + n_turned / 2)
    float eps;

    // Offset of a row in the cosine table.
    __device__ long long table(int row) const { return (long long)b->rope_rows[row] * b->rope_width + column; }
};

// RMSNorm factor of a head of n columns; `sum` is this lane's sum of squares.
static __device__ float norm_scale(float sum, int n, float eps) {
    for (int i = 16; i > 0; i >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, i));
    return scale_of_norm(sum, float(n), eps);
}

// RMSNorm of a head in place.
static __device__ void norm(float* head, const float* weight, int n, float eps, int lane) {
    float sum = 0.f;
    for (int c = lane; c < n; c += 32) sum = __fmaf_rn(head[c], head[c], sum);
    const float scale = norm_scale(sum, n, eps);
    for (int c = lane; c < n; c += 32) head[c] = __fmul_rn(__fmul_rn(head[c], scale), weight[c]);
    __syncwarp();
}

static __device__ void rotate(const NormRope& s, float* head, const float* cosines, const float* sines, int lane) {
    const int half = s.n_rot / 2;
    for (int i = lane; i < half; i += 32) {
        const int left = s.is_adjacent ? 2 * i : i, right = s.is_adjacent ? 2 * i + 1 : i + half;
        const float x = head[left], y = head[right], cosine = cosines[i], sine = sines[i];
        head[left] = __fsub_rn(__fmul_rn(x, cosine), __fmul_rn(y, sine));
        head[right] = __fadd_rn(__fmul_rn(x, sine), __fmul_rn(y, cosine));
    }
    __syncwarp();
}

// Scale of a q8_0 block and its inverse. The scale is NaN if the block is not finite.
struct Scale {
    float scale, inverse;

    __device__ __forceinline__ Scale(float max_abs, bool are_numbers)
        : scale(are_numbers ? __fdiv_rn(max_abs, 127.f) : __int_as_float(0x7fc00000)),
          inverse(max_abs > 0.f ? __fdiv_rn(127.f, max_abs) : 0.f) {}
    __device__ __forceinline__ bool is_one() const { return scale == scale; }
};
// Scale of a block with one number per lane.
static __device__ Scale scale_of_block(float x) {
    float max_abs = fabsf(x);
    for (int i = 16; i > 0; i >>= 1) max_abs = fmaxf(max_abs, __shfl_xor_sync(ALL_LANES, max_abs, i));
    return Scale(max_abs, __all_sync(ALL_LANES, fabsf(x) <= 3e38f));
}
__device__ __forceinline__ signed char whole_number(float x, float inverse, bool are_numbers) {
    return are_numbers ? (signed char)(__float2int_rn(__fmul_rn(x, inverse))) : (signed char)(1);
}

// Size of the Hadamard transform for heads of `room` columns; see native/cpu/ops/hadamard.h.
__device__ __forceinline__ int hadamard_size(int room, bool inside) { return inside ? 32 : room & -room; }

// Normalized Hadamard transform (its own inverse) of a head in shared memory.
static __device__ void hadamard(float* head, int room, int together, int lane) {
    __syncwarp();
    for (int half = 1; half < together; half *= 2) {
        for (int i = lane; i < room / 2; i += 32) {
            const int left = i / half * 2 * half + i % half;
            const float a = head[left], b = head[left + half];
            head[left] = __fadd_rn(a, b), head[left + half] = __fsub_rn(a, b);
        }
        __syncwarp();
    }
    const float scale = __fdiv_rn(1.f, __fsqrt_rn(float(together)));
    for (int c = lane; c < room; c += 32) head[c] = __fmul_rn(head[c], scale);
    __syncwarp();
}

static __device__ float sum_of_lanes(float x) {
    for (int i = 16; i > 0; i >>= 1) x = __fadd_rn(x, __shfl_xor_sync(ALL_LANES, x, i));
    return x;
}

// 32 numbers, one per lane, as IQ4_NL codes and a bf16 scale.
struct Fit {
    u32 code, scale;
    float error;  // squared error

    // Codes by scale `first`, then the least-squares scale for these codes.
    __device__ __forceinline__ Fit(float x, float first) : code(0) {
        const float near = __fmul_rn(x, first == 0.f ? 0.f : __fdiv_rn(1.f, first));
        // twice the midpoints between adjacent values
        constexpr int middles[15] = {-231, -187, -148, -114, -84, -57, -32, -9, 14, 38, 63, 91, 122, 158, 202};
#pragma unroll
        for (int k = 0; k < 15; k++) code += near > 0.5f * float(middles[k]) ? 1 : 0;
        const float value = float(int(iq4_values(code) & 255u) - 128);
        const float best = __fdiv_rn(sum_of_lanes(__fmul_rn(value, x)), sum_of_lanes(__fmul_rn(value, value)));
        const u32 wide = u32(__float_as_int(best));
        scale = (wide + 0x7fffu + (wide >> 16 & 1u)) >> 16;
        const float off = __fsub_rn(x, __fmul_rn(value, __int_as_float(int(scale << 16))));
        error = sum_of_lanes(__fmul_rn(off, off));
    }
};

// Better of two fits: the largest magnitude mapped to either end of the table. The scale is NaN if the block is not
// finite.
static __device__ Fit fit_of_block(float x, int lane) {
    const bool are_numbers = __all_sync(ALL_LANES, fabsf(x) <= 3e38f);
    float max_abs = fabsf(x);
    for (int i = 16; i > 0; i >>= 1) max_abs = fmaxf(max_abs, __shfl_xor_sync(ALL_LANES, max_abs, i));
    int first = fabsf(x) == max_abs ? lane : 31;
    for (int i = 16; i > 0; i >>= 1) first = min(first, __shfl_xor_sync(ALL_LANES, first, i));
    max_abs = __shfl_sync(ALL_LANES, x, first);
    const Fit low(x, __fdiv_rn(max_abs, -127.f)), high(x, __fdiv_rn(max_abs, 113.f));
    Fit better = high.error < low.error ? high : low;
    if (!are_numbers) better.scale = 0x7fc0u;
    return better;
}

// Stores a head in its page, zero-padded to `room` columns.
template <int type>
__device__ void put(const float* head, int n, int room, u8* page, int slot, int lane) {
    if (type == F32) {
        for (int c = lane; c < room; c += 32) reinterpret_cast<float*>(page)[slot * room + c] = c < n ? head[c] : 0.f;
    } else if (type == F16) {
        for (int c = 2 * lane; c < room; c += 64)
            reinterpret_cast<u32*>(page)[(slot * room + c) / 2] =
                to_half2_saturated(c < n ? head[c] : 0.f, c + 1 < n ? head[c + 1] : 0.f);
    } else if (type == Q4) {  // already transformed and padded
        for (int c = lane; c < room; c += 32) {
            const Fit fit = fit_of_block(head[c], lane);
            const u32 other = __shfl_xor_sync(ALL_LANES, fit.code, 1);
            if (lane % 2 == 0) page[(slot * room + c) / 2] = u8(fit.code | other << 4);
            if (lane == 0) reinterpret_cast<u16*>(page + PAGE * room / 2)[slot * (room / 32) + c / 32] = u16(fit.scale);
        }
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

// Loads a head, norms and rotates it.
static __device__ void load_head(const NormRope& s, float* head, const float* from, const float* weight, int n,
                                 const float* cosines, const float* sines, int lane) {
    for (int c = lane; c < n; c += 32) head[c] = from[c];
    __syncwarp();
    if (weight != nullptr) norm(head, weight, n, s.eps, lane);
    rotate(s, head, cosines, sines, lane);
}

// Returns true if V is finite. Tensor cores multiply masked positions by 0, and 0 x NaN is NaN: a V that is not finite
// is stored as zeros, and the last column of K becomes NaN for the queries that do see it.
static __device__ bool check_value(float* k, int k_dim, const float* v, int v_dim, int lane) {
    if (are_numbers(v == nullptr ? k : v, v == nullptr ? k_dim : v_dim, lane)) return true;
    __syncwarp();
    for (int c = lane; c < k_dim; c += 32)
        k[c] = c == k_dim - 1 ? __int_as_float(0x7fc00000) : v == nullptr ? 0.f : k[c];
    __syncwarp();
    return false;
}
