#include "cpu/threads/pool.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

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

int64_t now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

// A waiting thread spins first. Then it yields its core between two checks: to a thread of this pool that was
// preempted, or to another program. Only then it sleeps, so that the system has a core for such a thread. Waking is
// slow, above all on a virtual machine. If barriers slept as soon as one thread is late, the woken threads would be
// late at the next barrier, and all would sleep at each.
constexpr int64_t kSpins = 50'000, kOffers = 2'000'000;  // nanoseconds

// Workers that have not entered a phase this long after another one finished its part are left behind.
constexpr int64_t kPatience = 5'000;

// Waits for the next phase. Calls impatient() once, which may end the current phase.
template <class Impatient>
void wait_while(const std::atomic<uint32_t>& phase, uint32_t old, const Impatient& impatient) {
    const auto changed = [&] { return phase.load(std::memory_order_acquire) != old; };
    const int64_t start = now();
    for (bool asked = false;;) {
        for (int i = 0; i < 64; ++i) {
            if (changed()) return;
            relax();
        }
        const int64_t waited = now() - start;
        if (!asked && waited >= kPatience) {
            asked = true;
            if (impatient()) return;
        }
        if (waited >= kSpins) break;
    }
    do {
        if (changed()) return;
        std::this_thread::yield();
    } while (now() - start < kOffers);
    while (!changed()) phase.wait(old, std::memory_order_acquire);
}

void wait_while(const std::atomic<uint32_t>& phase, uint32_t old) {
    wait_while(phase, old, [] { return false; });
}

constexpr uint64_t kOneArrived = 1, kOneBehind = uint64_t{1} << 16;
uint32_t phase_of(uint64_t count) { return uint32_t(count >> 32); }
int behind_of(uint64_t count) { return int(count >> 16 & 0xffff); }
int arrived_of(uint64_t count) { return int(count & 0xffff); }
uint64_t counted(uint32_t phase, int behind, int arrived) {
    return uint64_t(phase) << 32 | uint64_t(behind) << 16 | uint64_t(arrived);
}

}  // namespace

Pool::Pool(int n_threads)
    : n_threads_(std::clamp(n_threads, 1, 0xffff)), places_(std::make_unique<Place[]>(size_t(n_threads_))) {}

Pool::~Pool() {
    if (threads_.empty()) return;
    if (owner_ != process_id()) {
        leave_threads();
        return;
    }
    stop();
}

// A forked child has handles of threads that do not exist there. Joining would hang, and detaching would access memory
// that the child's threads may have reused: the handles are leaked.
void Pool::leave_threads() {
    if (!threads_.empty()) new std::vector<std::thread>(std::move(threads_));
    threads_.clear();
}

void Pool::stop() {
    stop_.store(true);
    phase_.fetch_add(2, std::memory_order_release);
    phase_.notify_all();
    for (auto& thread : threads_) thread.join();
    threads_.clear();
    stop_.store(false);
}

// All workers but the caller are behind until they join.
void Pool::start() {
    leave_threads();
    const uint32_t phase = phase_.load() | 1;
    phase_.store(phase);
    for (int i = 0; i < n_threads_; ++i) place(i).word.store(i == 0 ? phase : kBehind);
    count_.store(counted(phase, n_threads_ - 1, n_threads_));
    threads_.reserve(size_t(n_threads_));
    try {
        for (int worker = 1; worker < n_threads_; ++worker) {
            threads_.emplace_back([=, this] {
                prefer_fast_core();
                work(worker);
            });
        }
    } catch (...) {
        const size_t n = threads_.size() + 2;  // the caller is the first
        stop();
        throw std::runtime_error("the system refuses to start thread " + std::to_string(n) + " of " +
                                 std::to_string(n_threads_) + "; use fewer threads");
    }
    owner_ = process_id();
}

void Pool::run(Job job, void* context) {
    if (n_threads_ == 1) return job(context, 0, 0);
    if (owner_ != process_id()) start();
    job_ = job;
    context_ = context;
    const uint32_t phase = phase_.load(std::memory_order_relaxed) + 1;
    if (is_behind(0)) count_.fetch_sub(kOneBehind, std::memory_order_relaxed);
    place(0).word.store(phase, std::memory_order_relaxed);
    open(phase, 0);
    int stage = 0;
    do compute(0, stage);
    while ((stage = join(0)) >= 0);
}

// Begins a phase; called by the last arrival of the phase before. Workers that are behind count as arrived, and between
// two jobs all others do, too.
void Pool::open(uint32_t phase, int stage) {
    const int behind = behind_of(count_.load(std::memory_order_relaxed));
    stage_.store(stage, std::memory_order_relaxed);
    count_.store(counted(phase, behind, phase % 2 == 0 ? behind : n_threads_), std::memory_order_release);
    // Sequentially consistent with the check for sleepers in notify_all. A plain store could be reordered after that
    // check: a thread that falls asleep in between would see the old phase and never wake.
    phase_.store(phase, std::memory_order_seq_cst);
    phase_.notify_all();
}

// False if others already left it behind.
bool Pool::enter(int worker, uint32_t from, uint32_t phase) {
    uint64_t seen = from;
    return place(worker).word.compare_exchange_strong(seen, phase, std::memory_order_acq_rel);
}

// Joins the current phase as soon as there is one, and returns its stage. The caller gets -1 when the job is over, the
// others at shutdown.
int Pool::join(int worker) {
    for (;;) {
        const uint32_t phase = phase_.load(std::memory_order_acquire);
        if (worker == 0 && phase % 2 != 0) return -1;
        if (stop_.load(std::memory_order_relaxed)) return -1;
        if (phase % 2 == 0 && !is_behind(worker)) {
            // First phase of a job, which cannot end while a worker is awaited.
            if (enter(worker, entered(worker), phase)) return stage_.load(std::memory_order_relaxed);
            continue;
        }
        if (phase % 2 == 0) {
            // The count names the next phase shortly before that begins. If the phase ends after its stage was read,
            // the exchange fails.
            uint64_t count = count_.load(std::memory_order_acquire);
            const int stage = stage_.load(std::memory_order_relaxed);
            if (phase_of(count) == phase && arrived_of(count) < n_threads_) {
                const uint64_t joined = count - kOneBehind - kOneArrived;
                if (!count_.compare_exchange_strong(count, joined, std::memory_order_acq_rel)) continue;
                place(worker).word.store(phase, std::memory_order_relaxed);
                return stage;
            }
        }
        wait_while(phase_, phase);
    }
}

// True if this worker is the last to arrive in the phase, or left the last ones behind. Otherwise waits for the next
// phase.
bool Pool::meet(uint32_t phase) {
    if (arrived_of(count_.fetch_add(kOneArrived, std::memory_order_acq_rel)) + 1 == n_threads_) return true;
    bool last = false;
    wait_while(phase_, phase, [&] { return last = leave_behind(phase); });
    return last;
}

// Leaves behind the workers that have not entered the phase. Returns true if only they were awaited. The phase cannot
// end before such a worker is counted, so if it has ended, others have left it behind or it has entered.
bool Pool::leave_behind(uint32_t phase) {
    for (int i = 0; i < n_threads_; ++i) {
        uint64_t seen = place(i).word.load(std::memory_order_relaxed);
        if ((seen & kBehind) != 0 || int32_t(phase - uint32_t(seen)) <= 0) continue;
        if (!place(i).word.compare_exchange_strong(seen, seen | kBehind, std::memory_order_acq_rel)) continue;
        const uint64_t count = count_.fetch_add(kOneArrived + kOneBehind, std::memory_order_acq_rel);
        if (arrived_of(count) + 1 == n_threads_) return true;
    }
    return false;
}

void Pool::compute(int worker, int stage) {
    job_(context_, worker, stage);
    if (is_behind(worker)) return;
    const uint32_t phase = entered(worker);
    if (meet(phase)) open(phase + 1, 0);
}

void Pool::work(int worker) {
    for (int stage; (stage = join(worker)) >= 0;) compute(worker, stage);
}

}  // namespace woolly
