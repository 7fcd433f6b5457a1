// A pool of threads started once, which compute a job together. The caller is worker 0. A job is cut into phases by
// barriers. A phase is over when the workers that entered it are done. One that the system has put aside before it
// entered is left behind, and joins when it is back. Idle workers spin for some microseconds, offer their cores for two
// milliseconds, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace woolly {

class Pool {
  public:
    // Computes from a stage on: 0, or one that a barrier named.
    using Job = void (*)(void* context, int worker, int stage);

    explicit Pool(int n_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return n_threads_; }

    // Runs the job on all workers that come, and returns when these are done. Which ones come is open: work must be
    // handed out (cpu/threads/tasks.h). One call at a time. Throws std::runtime_error if the system refuses a thread;
    // the next call tries again.
    void run(Job job, void* context);

    // The workers that entered the phase meet here; what was written before is seen by all after. The last one calls
    // end() before any goes on. Workers that were left behind begin at `stage`, not negative. False: this worker was
    // left behind. It must return from the job at once and touch nothing of it: the job may be over.
    template <class F>
    [[nodiscard]] bool barrier(int worker, int stage, const F& end) {
        if (n_threads_ == 1) {
            end();
            return true;
        }
        const uint32_t phase = entered(worker);
        if (meet(phase)) {
            end();
            open(phase + 2, stage);
        }
        return enter(worker, phase, phase + 2);
    }

  private:
    struct alignas(64) Place {
        std::atomic<uint64_t> word{kBehind};  // the phase that the worker entered last, and whether it is behind
    };
    static constexpr uint64_t kBehind = uint64_t{1} << 32;

    Place& place(int worker) const { return places_[size_t(worker)]; }
    uint32_t entered(int worker) const { return uint32_t(place(worker).word.load(std::memory_order_relaxed)); }
    bool is_behind(int worker) const { return (place(worker).word.load(std::memory_order_relaxed) & kBehind) != 0; }

    bool meet(uint32_t phase);
    bool leave_behind(uint32_t phase);
    void open(uint32_t phase, int stage);
    bool enter(int worker, uint32_t from, uint32_t phase);
    int join(int worker);
    void compute(int worker, int stage);
    void work(int worker);
    void start();
    void stop();
    void leave_threads();

    const int n_threads_;
    int owner_ = 0;  // process that started the threads: after a fork the child has none of them
    Job job_ = nullptr;
    void* context_ = nullptr;
    std::atomic<bool> stop_{false};
    std::vector<std::thread> threads_;
    std::unique_ptr<Place[]> places_;
    // Phases of a job have even numbers, the time between two jobs an odd one.
    alignas(64) std::atomic<uint32_t> phase_{1};
    // The phase, how many workers are behind, and how many are not awaited: they have arrived, or are behind. If none
    // is awaited, only the one that arrived last may change it.
    alignas(64) std::atomic<uint64_t> count_{0};
    std::atomic<int> stage_{0};  // where workers that were left behind join the phase; waiting ones do not look here
};

}  // namespace woolly
