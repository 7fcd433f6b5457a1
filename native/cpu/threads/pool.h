// Thread pool for parallel jobs, started once. The caller is worker 0. Barriers divide a job into phases. A phase ends
// when the workers that entered it are done; a worker preempted before it entered is left behind, and joins later. Idle
// workers spin for some microseconds, yield for two milliseconds, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace woolly {

class Pool {
  public:
    // Computes from a stage on: 0, or one passed to a barrier.
    using Job = void (*)(void* context, int worker, int stage);

    explicit Pool(int n_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return n_threads_; }

    // Runs the job on all available workers, and returns when they are done. Participation is unspecified: work must be
    // distributed dynamically (cpu/threads/tasks.h). One call at a time. Throws std::runtime_error if the system cannot
    // create a thread; the next call tries again.
    void run(Job job, void* context);

    // Barrier of the workers in the phase: earlier writes are visible to all afterwards. The last one calls end()
    // before any continues. Workers left behind start at `stage`, not negative. Returns false if this worker was left
    // behind: it must return immediately without touching the job, which may be over.
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
        std::atomic<uint64_t> word{kBehind};  // the phase that the worker entered last, and its behind flag
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
    int owner_ = 0;  // process that started the threads: a forked child has none of them
    Job job_ = nullptr;
    void* context_ = nullptr;
    std::atomic<bool> stop_{false};
    std::vector<std::thread> threads_;
    std::unique_ptr<Place[]> places_;
    // Phases of a job have even numbers, the time between two jobs an odd one.
    alignas(64) std::atomic<uint32_t> phase_{1};
    // The phase, the number of workers behind, and of those not awaited (arrived or behind). If none is awaited, only
    // the last arrival may change it.
    alignas(64) std::atomic<uint64_t> count_{0};
    std::atomic<int> stage_{0};  // stage where workers left behind join the phase; waiting workers do not read it
};

}  // namespace woolly
