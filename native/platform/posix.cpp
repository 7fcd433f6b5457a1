#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#endif

#include "platform/system.h"

namespace woolly {

uint8_t* take_pages(size_t n_bytes) {
    void* p = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return nullptr;
#if defined(MADV_HUGEPAGE)
    if (n_bytes >= (size_t{4} << 20)) madvise(p, n_bytes, MADV_HUGEPAGE);
#endif
    return static_cast<uint8_t*>(p);
}

void return_pages(uint8_t* data, size_t n_bytes) { munmap(data, n_bytes); }

void give_back(const uint8_t* data, size_t n_bytes) {
    const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
    const uintptr_t first = (uintptr_t(data) + page - 1) / page * page;
    const uintptr_t last = (uintptr_t(data) + n_bytes) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

int process_id() { return int(getpid()); }

bool tiles_allowed() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr long request_permission = 0x1023, tile_data = 18;
    static const bool allowed = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    return allowed;
#else
    return false;
#endif
}

}  // namespace woolly
