#include "cpu/kernels/select.h"

#include <array>

#include "cpu/kernels/isa_requirements.h"
#include "cpu/kernels/isa_tables.h"
#include "machine/features.h"
#include "machine/system.h"

namespace woolly {

namespace {

// Levels of this build: all of the platform, except those excluded by CMake.
constexpr const Level* kLevels[] = {
#if defined(__x86_64__)
#if !defined(WOOLLY_WITHOUT_amx)
    &k_amx_level,
#endif
#if !defined(WOOLLY_WITHOUT_avx512)
    &k_avx512_level,
#endif
#if !defined(WOOLLY_WITHOUT_avx512f)
    &k_avx512f_level,
#endif
#if !defined(WOOLLY_WITHOUT_avxvnni)
    &k_avxvnni_level,
#endif
#if !defined(WOOLLY_WITHOUT_avx2)
    &k_avx2_level,
#endif
#elif defined(__aarch64__)
#if !defined(WOOLLY_WITHOUT_neon_i8mm)
    &k_neon_i8mm_level,
#endif
#if !defined(WOOLLY_WITHOUT_neon)
    &k_neon_level,
#endif
#endif
    &k_scalar_level,
};

// Built at first use, by code that every CPU can run.
const KernelTable* table_of(const std::string& name) {
    static const auto tables = [] {
        std::array<KernelTable, std::size(kLevels)> made;
        for (size_t i = 0; i < made.size(); ++i) made[i] = joined(*kLevels[i]);
        return made;
    }();
    for (const KernelTable& table : tables)
        if (name == table.name) return &table;
    return nullptr;
}

}  // namespace

std::vector<const KernelTable*> available_levels() {
    const std::vector<std::string> features = cpu_features();
    std::vector<const KernelTable*> out;
    for (const LevelNeeds& level : level_needs()) {
        const KernelTable* table = table_of(level.name);
        if (table != nullptr && meets(features, level) && (!level.tiles || tiles_allowed())) out.push_back(table);
    }
    out.push_back(table_of("scalar"));
    return out;
}

const KernelTable* find_level(const std::string& name) {
    for (const KernelTable* table : available_levels())
        if (name == table->name) return table;
    return nullptr;
}

}  // namespace woolly
