#include "cpu/kernels/scans.h"

#include <string_view>

namespace woolly {

extern const ScanTable k_scalar_scans;
#if defined(__x86_64__)
extern const ScanTable k_avx2_scans, k_avx512_scans;
#elif defined(__aarch64__)
extern const ScanTable k_neon_scans;
#endif

const ScanTable& scan_table(const char* level) {
    [[maybe_unused]] const std::string_view name = level;
#if defined(__x86_64__)
#if !defined(WOOLLY_WITHOUT_avx512) || !defined(WOOLLY_WITHOUT_avx512f)
    if (name == "amx" || name == "avx512" || name == "avx512f") return k_avx512_scans;
#endif
#if !defined(WOOLLY_WITHOUT_avx2) || !defined(WOOLLY_WITHOUT_avxvnni)
    if (name == "avxvnni" || name == "avx2") return k_avx2_scans;
#endif
#elif defined(__aarch64__) && !defined(WOOLLY_WITHOUT_neon)
    if (name != "scalar") return k_neon_scans;
#endif
    return k_scalar_scans;
}

}  // namespace woolly
