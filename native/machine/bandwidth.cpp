#include "machine/bandwidth.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cpu/program/memory.h"

namespace woolly {

namespace {

constexpr size_t kLine = 64;  // bytes
constexpr size_t kWords = kLine / sizeof(uint64_t);
constexpr int kPasses = 6;
// The hardware prefetcher alone does not reach the full bandwidth. The best prefetch distance depends on the machine:
// short on ARM servers, long on Xeons.
constexpr size_t kAhead[] = {512, 1024, 4096};

struct Task {
    std::barrier<> all;
    uint8_t* data;
    size_t n_lines, n_threads;
    double fastest = 0;  // seconds; written by thread 0
};

// Eight independent sums, which the compiler keeps in vector registers.
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

void read_passes(Task& task, size_t thread) {
    const size_t n = task.n_threads;
    const size_t first = task.n_lines * thread / n, last = task.n_lines * (thread + 1) / n;
    // Each thread writes its part first, so that the pages are allocated in the memory nearest to it.
    std::memset(task.data + first * kLine, 1, (last - first) * kLine);
    for (int pass = 0; pass < kPasses; ++pass) {
        task.all.arrive_and_wait();
        const auto start = std::chrono::steady_clock::now();
        volatile uint64_t sum = sum_lines(task.data + first * kLine, last - first, kAhead[pass % 3]);
        static_cast<void>(sum);
        task.all.arrive_and_wait();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        if (thread == 0) task.fastest = pass == 0 ? took.count() : std::min(task.fastest, took.count());
    }
}

}  // namespace

double read_bandwidth(int n_threads, size_t n_bytes) {
    if (n_threads < 1 || n_threads > 1024) throw std::invalid_argument("threads must be from 1 to 1024");
    if (n_bytes < kLine) throw std::invalid_argument("at least 64 bytes must be read");
    const Memory memory(n_bytes);
    Task task{std::barrier<>(n_threads), memory.data(), n_bytes / kLine, size_t(n_threads)};
    std::vector<std::thread> threads;
    bool refused = false;
    try {
        for (int i = 1; i < n_threads; ++i) threads.emplace_back(read_passes, std::ref(task), size_t(i));
        read_passes(task, 0);
    } catch (const std::exception&) {  // running threads do not wait for the missing ones
        refused = true;
        for (size_t i = threads.size(); i < task.n_threads; ++i) task.all.arrive_and_drop();
    }
    for (std::thread& thread : threads) thread.join();
    if (refused) throw std::runtime_error("the system refuses to start " + std::to_string(n_threads) + " threads");
    return double(task.n_lines * kLine) / std::max(task.fastest, 1e-9) / 1e9;
}

}  // namespace woolly
