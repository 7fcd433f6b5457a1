// attend over f16 and q8_0 caches for many rows of a sequence.
#include "attention/attend_many.cuh"

#define ATTEND_MANY(name, type, D) \
    KERNEL(attend_many_##name##_##D)(ATTEND_PARAMETERS) { many::attend<type, type, D, D>(ATTEND_ARGUMENTS); }

#if !WOOLLY_HOPPER  // which has attend_wide.cu for these
ATTEND_MANY(f16, F16, 64)
ATTEND_MANY(f16, F16, 80)
ATTEND_MANY(f16, F16, 96)
ATTEND_MANY(f16, F16, 128)
ATTEND_MANY(q8_0, Q8_0, 64)
ATTEND_MANY(q8_0, Q8_0, 128)
#endif
ATTEND_MANY(q8_0, Q8_0, 96)
