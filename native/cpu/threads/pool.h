// A pool of threads started once. The caller is worker 0. Idle workers spin for some microseconds, offer
// their cores for two milliseconds, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace woolly {

class Pool {
  public:
    explicit Pool(int n_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return n_threads_; }

    // Runs job(context, worker) on every worker and returns when all are done. One call at a time.
    void run(void (*job)(void*, int), void* context);

    // All workers of the running job meet here; what was written before is seen by all after.
    void barrier();

  private:
    void work(int worker, uint32_t seen);
    void start();
    void leave_threads();

    const int n_threads_;
    int owner_ = 0;  // process that started the threads: after a fork the child has none of them
    void (*job_)(void*, int) = nullptr;
    void* context_ = nullptr;
    bool stop_ = false;
    std::vector<std::thread> threads_;
    alignas(64) std::atomic<uint32_t> epoch_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
    alignas(64) std::atomic<int> running_{0};
};

}  // namespace woolly
