// attend over f16 and q8_0 caches for few rows of each sequence.
#include "attention/attend_few.cuh"

// By the columns of V: 64 for each block of 16 of a warp.
#define ATTEND_FEW(name, type)                                                                           \
    KERNEL(attend_few_##name##_64)(ATTEND_PARAMETERS) { few::attend<type, type, 1>(ATTEND_ARGUMENTS); }  \
    KERNEL(attend_few_##name##_128)(ATTEND_PARAMETERS) { few::attend<type, type, 2>(ATTEND_ARGUMENTS); } \
    KERNEL(attend_few_##name##_256)(ATTEND_PARAMETERS) { few::attend<type, type, 4>(ATTEND_ARGUMENTS); } \
    KERNEL(attend_few_##name##_576)(ATTEND_PARAMETERS) { few::attend<type, type, 9>(ATTEND_ARGUMENTS); }

ATTEND_FEW(f16, F16)
ATTEND_FEW(q8_0, Q8_0)
