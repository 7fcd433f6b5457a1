#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include "machine/system.h"

namespace woolly {

// Windows grants large pages only on request: MEM_LARGE_PAGES needs a privilege that users rarely have, and commits the
// memory immediately. Committed memory counts against RAM and page file from the start, and is backed on first write.
uint8_t* take_pages(size_t n_bytes) {
    return static_cast<uint8_t*>(VirtualAlloc(nullptr, n_bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
}

void return_pages(uint8_t* data, size_t) { VirtualFree(data, 0, MEM_RELEASE); }

// VirtualUnlock removes pages that were never locked from the working set, as documented, and reports that they were
// not locked. DiscardVirtualMemory would be wrong: it is for private memory and loses the contents.
void give_back(const uint8_t* data, size_t n_bytes) {
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    const uintptr_t page = uintptr_t(system.dwPageSize);
    const uintptr_t first = (uintptr_t(data) + page - 1) / page * page;
    const uintptr_t last = (uintptr_t(data) + n_bytes) / page * page;
    if (first < last) VirtualUnlock(reinterpret_cast<void*>(first), last - first);
}

// Windows does not allow truncation of a mapped file.
int watch_file(const uint8_t*, size_t) { return -1; }
void unwatch_file(int) {}
bool is_file_lost(int) { return false; }

// Windows 11 slows down processes with a hidden window. A thread can request full speed.
void prefer_fast_core() {
    THREAD_POWER_THROTTLING_STATE state{};
    state.Version = THREAD_POWER_THROTTLING_CURRENT_VERSION;
    state.ControlMask = THREAD_POWER_THROTTLING_EXECUTION_SPEED;
    SetThreadInformation(GetCurrentThread(), ThreadPowerThrottling, &state, sizeof state);
}

int process_id() { return int(GetCurrentProcessId()); }

// Windows 11 and Server 2022 have the function; older systems do not support tiles. It applies to all threads,
// including running ones.
bool tiles_allowed() {
#if defined(__x86_64__)
    using Enable = BOOL(WINAPI*)(DWORD64);
    constexpr DWORD64 tile_data = DWORD64{1} << 18;
    static const bool allowed = [] {
        const HMODULE kernel = GetModuleHandleW(L"kernel32.dll");
        if (kernel == nullptr) return false;
        void* found = reinterpret_cast<void*>(GetProcAddress(kernel, "EnableProcessOptionalXStateFeatures"));
        return found != nullptr && reinterpret_cast<Enable>(found)(tile_data) != 0;
    }();
    return allowed;
#else
    return false;
#endif
}

}  // namespace woolly
