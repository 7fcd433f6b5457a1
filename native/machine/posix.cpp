#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#endif
#if defined(__APPLE__)
#include <pthread/qos.h>
#endif

#include "machine/system.h"

namespace woolly {

namespace {

struct Watch {
    std::atomic<uintptr_t> begin{0};  // 0: free
    std::atomic<uintptr_t> end{0};
    std::atomic<bool> is_lost{false};
};

// A model has at most 1024 files. The handler checks all slots, because a list could change while it runs.
constexpr int kWatches = 4096;
Watch watches[kWatches];
std::mutex watch_mutex;  // taken only with the GIL held, which a fork needs: a child never inherits it locked
uintptr_t page_size;
// Previous handlers that this one replaced, the latest last.
constexpr int kHandlers = 16;
struct sigaction before[kHandlers];
std::atomic<int> n_before{0};

// Maps zeros from the address to the end of its file. Returns false if the address is in no watched file. mmap is a
// plain system call here, safe in a handler although POSIX does not list it.
bool replace_lost_pages(uintptr_t at) {
    for (Watch& watch : watches) {
        const uintptr_t begin = watch.begin.load(), end = watch.end.load();
        if (begin == 0 || at < begin || at >= end) continue;
        if (watch.begin.load() != begin) continue;  // the slot changed in between, so the end belongs to another file
        const uintptr_t first = at / page_size * page_size;
        const int error = errno;
        void* p = mmap(reinterpret_cast<void*>(first), end - first, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                       -1, 0);
        errno = error;
        if (p == MAP_FAILED) return false;
        watch.is_lost.store(true);
        return true;
    }
    return false;
}

// True if a process sent the signal, so that it has no fault address. Linux uses codes up to 0 for that, macOS large
// ones.
bool is_sent(const siginfo_t& info) { return info.si_code <= 0 || info.si_code == SI_USER || info.si_code == SI_QUEUE; }

// True if the signal may mean a missing page of a file. The code on macOS is unknown: XNU reports a misaligned address
// for other faults as well, and no kernel needs aligned reads of a file.
bool is_page_fault(const siginfo_t& info) {
#if defined(__APPLE__)
    return !is_sent(info);
#else
    return info.si_code == BUS_ADRERR;
#endif
}

// Handles SIGBUS at an address of a watched file. Otherwise it restores the previous handler, which then gets the
// signal: a fault occurs again when this one returns, and a sent signal is raised again.
void on_bus_error(int signal, siginfo_t* info, void*) {
    if (is_page_fault(*info) && replace_lost_pages(reinterpret_cast<uintptr_t>(info->si_addr))) return;
    int n = n_before.load();
    while (n > 0 && !n_before.compare_exchange_weak(n, n - 1)) {
    }
    if (n > 0) sigaction(signal, &before[n - 1], nullptr);
    if (is_sent(*info)) raise(signal);
}

// Installs the handler before all others, including later ones (Python's faulthandler). The caller holds the mutex.
void install_handler() {
    page_size = uintptr_t(sysconf(_SC_PAGESIZE));
    struct sigaction action{}, present{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, nullptr, &present) != 0 || present.sa_sigaction == on_bus_error) return;
    const int n = n_before.load();
    if (n == 0 || before[n - 1].sa_sigaction != present.sa_sigaction) {
        if (n == kHandlers) return;
        before[n] = present;  // stored before the handler can run
        n_before.store(n + 1);
    }
    sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

int watch_file(const uint8_t* data, size_t n_bytes) {
    const std::lock_guard lock(watch_mutex);
    install_handler();
    for (int i = 0; i < kWatches; ++i) {
        if (watches[i].begin.load() != 0) continue;
        watches[i].is_lost.store(false);
        watches[i].end.store(uintptr_t(data) + n_bytes);
        watches[i].begin.store(uintptr_t(data));
        return i;
    }
    return -1;
}

void unwatch_file(int watch) {
    if (watch >= 0) watches[watch].begin.store(0);
}

bool is_file_lost(int watch) {
    const std::lock_guard lock(watch_mutex);
    install_handler();
    return watch >= 0 && watches[watch].is_lost.load();
}

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
    if (first >= last) return;
#if defined(__APPLE__)
    // On macOS, MADV_DONTNEED is a hint that frees nothing immediately. This call also drops the system's copy of the
    // pages.
    msync(reinterpret_cast<void*>(first), last - first, MS_INVALIDATE);
#else
    madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
#endif
}

// Linux moves computing threads to fast cores automatically.
void prefer_fast_core() {
#if defined(__APPLE__)
    pthread_set_qos_class_self_np(QOS_CLASS_USER_INITIATED, 0);
#endif
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
