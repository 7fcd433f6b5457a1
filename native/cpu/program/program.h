// A plan compiled for the CPU: an array of steps over one arena, executed in order without further decisions.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <typeindex>
#include <vector>

#include "cpu/kernels/table.h"
#include "cpu/program/arguments.h"
#include "cpu/program/batch.h"
#include "cpu/program/memory.h"
#include "cpu/program/step.h"
#include "cpu/state/pages.h"
#include "cpu/threads/pool.h"
#include "cpu/threads/tasks.h"
#include "cpu/weights/matrix.h"

namespace woolly {

constexpr size_t aligned(size_t n) { return (n + 63) & ~size_t{63}; }

class Program {
  public:
    Program(const KernelTable& kernels, int n_threads, int64_t max_rows, size_t arena_bytes, int64_t max_context);

    ~Program() { stop_preparing(); }
    int add_matrix(int ggml_type, int64_t rows, int64_t columns, const uint8_t* source, bool mapped);
    int add_vector(const float* data, int64_t n);
    int add_value(size_t offset, int64_t width, bool output_rows);
    // Throws std::invalid_argument for an op missing from ops/table.cpp, or invalid arguments.
    void add_step(Arguments arguments, bool barrier_before);
    // Called once after the last add: allocates scratch memory.
    void finish();

    // Assigns memory for packed panels to a matrix (null: removes it).
    void set_packed(int matrix, uint8_t* memory);
    // Number of packed panels of a matrix.
    int64_t panels_done(int matrix) const;
    // Packs every matrix with memory in order of use, on a background thread, until all are done or a run begins: the
    // run packs the rest with all its threads.
    void prepare();
    void stop_preparing();

    // Runs steps [first, last). Throws std::invalid_argument for an invalid batch. Returns false if cancelled.
    bool run(const BatchView& batch, Cache& cache, int first, int last);
    void cancel() { cancel_.store(true, std::memory_order_relaxed); }

    // Called by ops while they are constructed.
    const KernelTable& kernels() const { return kernels_; }
    Matrix& matrix(int id) { return matrices_.at(size_t(id)); }
    const Vector& vector(int id) const { return vectors_.at(size_t(id)); }
    const Value& value(int id) const { return values_.at(size_t(id)); }
    int64_t max_rows() const { return max_rows_; }
    int64_t max_context() const { return max_context_; }
    int n_threads() const { return pool_.size(); }
    // Ensures that Worker::own has at least n bytes.
    void need_own(size_t n) { own_bytes_ = std::max(own_bytes_, n); }
    // Returns the program's only scratch of type T.
    template <class T>
    T& scratch() {
        for (auto& [type, found] : scratch_)
            if (type == typeid(T)) return static_cast<T&>(*found);
        scratch_.emplace_back(typeid(T), std::make_unique<T>());
        return static_cast<T&>(*scratch_.back().second);
    }

    int n_steps() const { return int(steps_.size()); }
    const char* level() const { return kernels_.name; }

    // Nanoseconds spent in each step by worker 0 since the last reset, barriers included in the step that waits.
    std::vector<int64_t>& times() { return times_; }
    void set_profiling(bool on) { profiling_ = on; }

    // Packs one panel and counts it (cpu/weights/prepare.cpp).
    void pack(Matrix& matrix, int64_t panel, uint8_t* to);

  private:
    friend struct Worker;
    void check(const BatchView& batch, const Cache& cache, int first, int last) const;
    static void check_windows(const BatchView& batch, const Cache& cache);
    static void check_slots(const BatchView& batch, const Cache& cache);
    void work(int worker, int stage);
    void run_steps(Worker& worker, int first);

    const KernelTable& kernels_;
    Pool pool_;
    Tasks tasks_;
    const int64_t max_rows_, max_context_;
    Memory arena_;
    std::deque<Matrix> matrices_;  // deques: steps hold addresses
    std::deque<Vector> vectors_;
    std::vector<Value> values_;
    std::vector<std::unique_ptr<Step>> steps_;

    size_t own_bytes_ = 0;
    std::vector<Memory> own_;  // per worker
    std::vector<std::pair<std::type_index, std::unique_ptr<Scratch>>> scratch_;
    std::unique_ptr<std::atomic<int64_t>[]> next_;  // [n_steps]
    std::vector<int32_t> row_sequence_;             // [max_rows]: the sequence of each row of the batch

    std::thread preparing_;
    int preparing_owner_ = 0;
    std::atomic<bool> stop_preparing_{false};

    // The current run.
    const BatchView* batch_ = nullptr;
    Cache* cache_ = nullptr;
    int first_ = 0, last_ = 0;
    std::atomic<bool> cancel_{false};
    // Written by one worker at the end of a phase: where workers join the next one, and a stop flag.
    int64_t round_ = 0;
    bool stops_ = false;
    bool profiling_ = false;
    std::vector<int64_t> times_;
    std::chrono::steady_clock::time_point timed_;  // by worker 0, time of the last measurement
};

}  // namespace woolly
