#include "cpu/threads/pool.h"

#include <chrono>

#include "machine/system.h"

namespace woolly {

namespace {

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Spins for about 50 us, which covers the gap between two tokens' steps, then sleeps until the value changes.
template <class T>
void wait_while(const std::atomic<T>& value, T old) {
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
        for (int i = 0; i < 256; ++i) {
            if (value.load(std::memory_order_acquire) != old) return;
            relax();
        }
        if (std::chrono::steady_clock::now() - start > std::chrono::microseconds(50)) break;
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

Pool::Pool(int n_threads) : n_threads_(n_threads < 1 ? 1 : n_threads) {}

Pool::~Pool() {
    if (threads_.empty()) return;
    if (owner_ != process_id()) {
        leave_threads();
        return;
    }
    stop_ = true;
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    for (auto& thread : threads_) thread.join();
}

// A forked child holds handles of threads that it does not have. Joining them would hang, and detaching them would hit
// whatever thread of the child took their memory since: the handles are left where they are.
void Pool::leave_threads() {
    if (!threads_.empty()) new std::vector<std::thread>(std::move(threads_));
    threads_.clear();
}

void Pool::start() {
    leave_threads();
    owner_ = process_id();
    arrived_ = 0;
    running_ = 0;
    const uint32_t seen = epoch_.load();
    for (int worker = 1; worker < n_threads_; ++worker) threads_.emplace_back([=, this] { work(worker, seen); });
}

void Pool::run(void (*job)(void*, int), void* context) {
    if (n_threads_ > 1 && owner_ != process_id()) start();
    job_ = job;
    context_ = context;
    running_.store(n_threads_ - 1, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    if (n_threads_ > 1) epoch_.notify_all();
    job(context, 0);
    for (int left; (left = running_.load(std::memory_order_acquire)) != 0;) wait_while(running_, left);
}

void Pool::work(int worker, uint32_t seen) {
    for (;;) {
        wait_while(epoch_, seen);
        seen = epoch_.load(std::memory_order_acquire);
        if (stop_) return;
        job_(context_, worker);
        if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
    }
}

void Pool::barrier() {
    if (n_threads_ == 1) return;
    const uint32_t phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == n_threads_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.fetch_add(1, std::memory_order_release);
        phase_.notify_all();
    } else {
        wait_while(phase_, phase);
    }
}

}  // namespace woolly
