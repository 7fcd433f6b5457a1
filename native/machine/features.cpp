#include "machine/features.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
// Kernel headers older than the CPU do not define these.
#if !defined(HWCAP2_I8MM)
#define HWCAP2_I8MM (1UL << 13)
#endif
#if !defined(HWCAP2_BF16)
#define HWCAP2_BF16 (1UL << 14)
#endif
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif

namespace woolly {

#if defined(__x86_64__)

namespace {

struct Registers {
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
    Registers r;
    if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
    return r;
}

uint64_t xgetbv() {
    uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t{high} << 32) | low;
}

}  // namespace

std::vector<std::string> cpu_features() {
    std::vector<std::string> names;
    const auto has = [](uint32_t word, int bit) { return ((word >> bit) & 1u) != 0; };
    const Registers one = cpuid(1, 0);
    // Without OSXSAVE, the operating system saves only SSE registers, even if the CPU has wider ones.
    if (!has(one.ecx, 27)) return names;
    const uint64_t saved = xgetbv();
    const bool ymm = (saved & 0x6) == 0x6;
    const bool zmm = ymm && (saved & 0xe0) == 0xe0;
    const bool tiles = (saved & 0x60000) == 0x60000;
    const Registers seven = cpuid(7, 0);
    const Registers seven1 = cpuid(7, 1);
    const auto add = [&](bool os, uint32_t word, int bit, const char* name) {
        if (os && has(word, bit)) names.emplace_back(name);
    };
    add(ymm, one.ecx, 28, "avx");
    add(ymm, one.ecx, 29, "f16c");
    add(ymm, one.ecx, 12, "fma");
    add(ymm, seven.ebx, 5, "avx2");
    add(ymm, seven1.eax, 4, "avx_vnni");
    add(zmm, seven.ebx, 16, "avx512f");
    add(zmm, seven.ebx, 17, "avx512dq");
    add(zmm, seven.ebx, 30, "avx512bw");
    add(zmm, seven.ebx, 31, "avx512vl");
    add(zmm, seven.ecx, 1, "avx512_vbmi");
    add(zmm, seven.ecx, 11, "avx512_vnni");
    add(zmm, seven1.eax, 5, "avx512_bf16");
    add(zmm, seven.edx, 23, "avx512_fp16");
    add(tiles, seven.edx, 24, "amx_tile");
    add(tiles, seven.edx, 25, "amx_int8");
    add(tiles, seven.edx, 22, "amx_bf16");
    return names;
}

#elif defined(__aarch64__) && defined(__linux__)

std::vector<std::string> cpu_features() {
    std::vector<std::string> names;
    const unsigned long one = getauxval(AT_HWCAP);
    const unsigned long two = getauxval(AT_HWCAP2);
    const auto add = [&](unsigned long word, unsigned long bit, const char* name) {
        if ((word & bit) != 0) names.emplace_back(name);
    };
    add(one, HWCAP_ASIMD, "asimd");
    add(one, HWCAP_ASIMDHP, "asimdhp");
    add(one, HWCAP_ASIMDDP, "asimddp");
    add(one, HWCAP_SVE, "sve");
    add(two, HWCAP2_I8MM, "i8mm");
    add(two, HWCAP2_BF16, "bf16");
    return names;
}

#elif defined(__aarch64__) && defined(__APPLE__)

std::vector<std::string> cpu_features() {
    std::vector<std::string> names{"asimd"};
    const auto add = [&](const char* key, const char* name) {
        int value = 0;
        size_t size = sizeof(value);
        if (sysctlbyname(key, &value, &size, nullptr, 0) == 0 && value != 0) names.emplace_back(name);
    };
    add("hw.optional.arm.FEAT_FP16", "asimdhp");
    add("hw.optional.arm.FEAT_DotProd", "asimddp");
    add("hw.optional.arm.FEAT_I8MM", "i8mm");
    add("hw.optional.arm.FEAT_BF16", "bf16");
    return names;
}

#elif defined(__aarch64__) && defined(_WIN32)

std::vector<std::string> cpu_features() {
    std::vector<std::string> names{"asimd"};
    // Given by number, because older headers do not define them. An unknown number counts as absent.
    constexpr DWORD dot_product = 43, i8mm = 66, bf16 = 68;
    const auto add = [&](DWORD number, const char* name) {
        if (IsProcessorFeaturePresent(number) != 0) names.emplace_back(name);
    };
    add(dot_product, "asimddp");
    add(i8mm, "i8mm");
    add(bf16, "bf16");
    return names;
}

#else

std::vector<std::string> cpu_features() { return {}; }

#endif

}  // namespace woolly
