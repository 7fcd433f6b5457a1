// Kernel levels other than scalar, best first, and the CPU features that each requires.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace woolly {

struct LevelNeeds {
    const char* name;
    std::vector<std::string> features;
    bool tiles = false;  // the system must also grant tile registers
};

inline std::vector<LevelNeeds> level_needs() {
    return {
#if defined(__x86_64__)
        {"amx",
         {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "fma", "f16c", "amx_tile", "amx_int8"},
         true},
        {"avx512", {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "fma", "f16c"}},
        {"avx512f", {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c"}},
        {"avxvnni", {"avx_vnni", "avx2", "fma", "f16c"}},
        {"avx2", {"avx2", "fma", "f16c"}},
#elif defined(__aarch64__)
        {"neon_i8mm", {"asimd", "asimddp", "i8mm"}},
        {"neon", {"asimd", "asimddp"}},
#endif
    };
}

inline bool meets(const std::vector<std::string>& features, const LevelNeeds& level) {
    return std::all_of(level.features.begin(), level.features.end(), [&](const std::string& name) {
        return std::find(features.begin(), features.end(), name) != features.end();
    });
}

}  // namespace woolly
