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

using Clock = std::chrono::steady_clock;

// A thread that waits spins first. Then it offers its core between two looks: to a thread of this pool that lost its
// own, or to another program. Only then it sleeps, so that the system has a core to move such a thread to. A sleeping
// thread is woken late, most of all on a virtual machine. If barriers slept as soon as one thread is late, those that
// are woken would be the late ones at the next barrier, and all would sleep at each.
constexpr auto kSpins = std::chrono::microseconds(50), kOffers = std::chrono::microseconds(2000);

template <class T>
void wait_while(const std::atomic<T>& value, T old) {
    const auto changed = [&] { return value.load(std::memory_order_acquire) != old; };
    const Clock::time_point start = Clock::now();
    do {
        for (int i = 0; i < 64; ++i) {
            if (changed()) return;
            relax();
        }
    } while (Clock::now() - start < kSpins);
    do {
        if (changed()) return;
        std::this_thread::yield();
    } while (Clock::now() - start < kOffers);
    while (!changed()) value.wait(old, std::memory_order_acquire);
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
