// attend over caches that keep V, or K and V, in 4 bits. Their heads are turned by Hadamard's matrix: queries are
// turned before, results after. One kernel for few rows of each sequence, one for many, with the same bits.
#include "attention/attend_few.cuh"
#include "attention/attend_prefill.cuh"
#include "attention/store.cuh"

// By the columns of V: 64 for each block of 16 of a warp.
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

// Heads of each row, turned: a warp takes one, fills it up to `room` columns and writes the first `n_to`.
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
