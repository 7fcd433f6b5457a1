#include "machine/bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "cpu/program/memory.h"
#include "cpu/threads/pool.h"

namespace woolly {

namespace {

constexpr size_t kLine = 64;  // bytes
constexpr size_t kWords = kLine / sizeof(uint64_t);
constexpr int kPasses = 6;
// The hardware prefetcher alone leaves a part of the bandwidth unused. How far ahead is best differs by machine: near
// on ARM servers, far on Xeons.
constexpr size_t kAhead[] = {512, 1024, 4096};

struct Task {
    Pool& pool;
    uint8_t* data;
    size_t n_lines;
    double fastest = 0;  // seconds; written by worker 0
};

// Eight sums side by side, which the compiler keeps in vector registers.
uint64_t sum_lines(const uint8_t* data, size_t n_lines, size_t ahead) {
    uint64_t sums[kWords] = {};
    for (size_t line = 0; line < n_lines; ++line, data += kLine) {
        __builtin_prefetch(data + ahead);
        uint64_t words[kWords];
        std::memcpy(words, data, kLine);
        for (size_t i = 0; i < kWords; ++i) sums[i] += words[i];
    }
    uint64_t sum = 0;
    for (const uint64_t s : sums) sum += s;
    return sum;
}

void read_passes(void* context, int worker) {
    Task& task = *static_cast<Task*>(context);
    const size_t n = size_t(task.pool.size()), w = size_t(worker);
    const size_t first = task.n_lines * w / n, last = task.n_lines * (w + 1) / n;
    // Each thread writes its own part first, so that the pages are in the memory nearest to it.
    std::memset(task.data + first * kLine, 1, (last - first) * kLine);
    for (int pass = 0; pass < kPasses; ++pass) {
        task.pool.barrier();
        const auto start = std::chrono::steady_clock::now();
        volatile uint64_t sum = sum_lines(task.data + first * kLine, last - first, kAhead[pass % 3]);
        static_cast<void>(sum);
        task.pool.barrier();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        if (worker == 0) task.fastest = pass == 0 ? took.count() : std::min(task.fastest, took.count());
    }
}

}  // namespace

double read_bandwidth(int n_threads, size_t n_bytes) {
    if (n_threads < 1 || n_threads > 1024) throw std::invalid_argument("threads must be from 1 to 1024");
    if (n_bytes < kLine) throw std::invalid_argument("at least 64 bytes must be read");
    const Memory memory(n_bytes);
    Pool pool(n_threads);
    Task task{pool, memory.data(), n_bytes / kLine};
    pool.run(read_passes, &task);
    return double(task.n_lines * kLine) / std::max(task.fastest, 1e-9) / 1e9;
}

}  // namespace woolly
