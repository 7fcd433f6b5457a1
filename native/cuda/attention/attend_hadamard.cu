// Attention over caches with 4-bit V, or K and V, whose heads are stored after a Hadamard transform: queries are
// transformed before, results after. The kernels for few rows and for prefill give the same bits.
#include "attention/attend_few.cuh"
#include "attention/attend_prefill.cuh"
#include "attention/store.cuh"

// Kernels by V columns: 64 per 16-column block of a warp.
#define ATTEND_FEW(name, k, v)                                                                              \
    KERNEL(attend_hadamard_few_##name##_64)(ATTEND_PARAMETERS) { few::attend<k, v, 1>(ATTEND_ARGUMENTS); }  \
    KERNEL(attend_hadamard_few_##name##_128)(ATTEND_PARAMETERS) { few::attend<k, v, 2>(ATTEND_ARGUMENTS); } \
    KERNEL(attend_hadamard_few_##name##_256)(ATTEND_PARAMETERS) { few::attend<k, v, 4>(ATTEND_ARGUMENTS); } \
    KERNEL(attend_hadamard_few_##name##_576)(ATTEND_PARAMETERS) { few::attend<k, v, 9>(ATTEND_ARGUMENTS); }
#define ATTEND_PREFILL(name, k, v)                                    \
    KERNEL(attend_hadamard_prefill_##name##_64)(ATTEND_PARAMETERS) {  \
        prefill::attend<k, v, 64, 64>(ATTEND_ARGUMENTS);              \
    }                                                                 \
    KERNEL(attend_hadamard_prefill_##name##_96)(ATTEND_PARAMETERS) {  \
        prefill::attend<k, v, 96, 96>(ATTEND_ARGUMENTS);              \
    }                                                                 \
    KERNEL(attend_hadamard_prefill_##name##_128)(ATTEND_PARAMETERS) { \
        prefill::attend<k, v, 128, 128>(ATTEND_ARGUMENTS);            \
    }

ATTEND_FEW(q4, Q4, Q4)
ATTEND_FEW(q8_0_q4, Q8_0, Q4)
ATTEND_FEW(f16_q4, F16, Q4)
ATTEND_PREFILL(q4, Q4, Q4)
ATTEND_PREFILL(q8_0_q4, Q8_0, Q4)
ATTEND_PREFILL(f16_q4, F16, Q4)

// Hadamard transform of each row's heads: one warp per head, zero-padded to `room` columns; stores the first `n_to`.
KERNEL(hadamard_heads)
(const Batch* b, const float* from, float* to, int heads, int n_from, int n_to, int room, int together) {
    __shared__ float all[4][576];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x, h = blockIdx.y * 4 + warp;
    if (row >= b->n_rows || h >= heads) return;
    float* const head = all[warp];
    const long long at = (long long)row * heads + h;
    for (int c = lane; c < room; c += 32) head[c] = c < n_from ? from[at * n_from + c] : 0.f;
    hadamard(head, room, together, lane);
    for (int c = lane; c < n_to; c += 32) to[at * n_to + c] = head[c];
}
