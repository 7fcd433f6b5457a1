#include "cpu/kernels/select.h"

#include <algorithm>

#include "machine/features.h"
#include "machine/system.h"

namespace woolly {

extern const KernelTable k_scalar_table;
#if defined(__x86_64__)
extern const KernelTable k_avx2_table, k_avxvnni_table, k_avx512_table, k_amx_table;
#elif defined(__aarch64__)
extern const KernelTable k_neon_table, k_neon_i8mm_table;
#endif

namespace {

struct Level {
    const KernelTable* table;
    std::vector<std::string> needs;
};

// Best first.
std::vector<Level> all_levels() {
    return {
#if defined(__x86_64__)
        {&k_amx_table,
         {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "fma", "f16c", "amx_tile", "amx_int8"}},
        {&k_avx512_table, {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "fma", "f16c"}},
        {&k_avxvnni_table, {"avx_vnni", "avx2", "fma", "f16c"}},
        {&k_avx2_table, {"avx2", "fma", "f16c"}},
#elif defined(__aarch64__)
        {&k_neon_i8mm_table, {"asimd", "asimddp", "i8mm"}},
        {&k_neon_table, {"asimd", "asimddp"}},
#endif
        {&k_scalar_table, {}},
    };
}

bool uses_tiles(const Level& level) {
    return std::find(level.needs.begin(), level.needs.end(), "amx_tile") != level.needs.end();
}

}  // namespace

std::vector<const KernelTable*> available_levels() {
    const std::vector<std::string> features = cpu_features();
    std::vector<const KernelTable*> out;
    for (const Level& level : all_levels()) {
        const bool can = std::all_of(level.needs.begin(), level.needs.end(), [&](const std::string& name) {
            return std::find(features.begin(), features.end(), name) != features.end();
        });
        if (can && (!uses_tiles(level) || tiles_allowed())) out.push_back(level.table);
    }
    return out;
}

const KernelTable* find_level(const std::string& name) {
    for (const KernelTable* table : available_levels())
        if (name == table->name) return table;
    return nullptr;
}

}  // namespace woolly
