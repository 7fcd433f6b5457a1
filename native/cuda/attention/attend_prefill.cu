// Prefill attention over f16 and q8_0 caches.
#include "attention/attend_prefill.cuh"

#define ATTEND_PREFILL(name, type, D) \
    KERNEL(attend_prefill_##name##_##D)(ATTEND_PARAMETERS) { prefill::attend<type, type, D, D>(ATTEND_ARGUMENTS); }

#if !WOOLLY_HOPPER  // Hopper uses attend_prefill_wgmma.cu
ATTEND_PREFILL(f16, F16, 64)
ATTEND_PREFILL(f16, F16, 80)
ATTEND_PREFILL(f16, F16, 96)
ATTEND_PREFILL(f16, F16, 128)
ATTEND_PREFILL(q8_0, Q8_0, 64)
ATTEND_PREFILL(q8_0, Q8_0, 128)
#endif
ATTEND_PREFILL(q8_0, Q8_0, 96)
