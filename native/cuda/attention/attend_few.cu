// Attention over f16 and q8_0 caches for few rows per sequence.
#include "attention/attend_few.cuh"

// Kernels by V columns: 64 per 16-column block of a warp.
#define ATTEND_FEW(name, type)                                                                           \
    KERNEL(attend_few_##name##_64)(ATTEND_PARAMETERS) { few::attend<type, type, 1>(ATTEND_ARGUMENTS); }  \
    KERNEL(attend_few_##name##_128)(ATTEND_PARAMETERS) { few::attend<type, type, 2>(ATTEND_ARGUMENTS); } \
    KERNEL(attend_few_##name##_256)(ATTEND_PARAMETERS) { few::attend<type, type, 4>(ATTEND_ARGUMENTS); } \
    KERNEL(attend_few_##name##_576)(ATTEND_PARAMETERS) { few::attend<type, type, 9>(ATTEND_ARGUMENTS); }

ATTEND_FEW(f16, F16)
ATTEND_FEW(q8_0, Q8_0)
