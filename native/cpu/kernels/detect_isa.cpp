// Prints the best kernel level of this machine, or scalar; CMake runs it to choose the level to build. Sources are
// included because CMake's try_run takes one file.
#include <cstdio>

#include "cpu/kernels/isa_requirements.h"
#include "machine/features.cpp"
#if defined(_WIN32)
#include "machine/windows.cpp"
#else
#include "machine/posix.cpp"
#endif

int main() {
    const std::vector<std::string> features = woolly::cpu_features();
    for (const woolly::LevelNeeds& level : woolly::level_needs()) {
        if (!woolly::meets(features, level) || (level.tiles && !woolly::tiles_allowed())) continue;
        std::puts(level.name);
        return 0;
    }
    std::puts("scalar");
}
