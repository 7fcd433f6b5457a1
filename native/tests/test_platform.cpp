// The system's part, as every platform must mean it: memory, pages given back, threads that meet, levels found.
// Linked with the whole of native/ but its bindings (tests/native, scripts/windows), so that it also shows what does
// not link.
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <io.h>
#include <windows.h>
#else
#include <sys/mman.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cpu/kernels/select.h"
#include "cpu/program/memory.h"
#include "cpu/threads/pool.h"
#include "cpu/threads/tasks.h"
#include "machine/bandwidth.h"
#include "machine/system.h"

namespace {

using namespace woolly;

bool any_failed = false;

void check(bool holds, const char* what) {
    if (holds) return;
    std::printf("%s\n", what);
    any_failed = true;
}

void test_memory() {
    constexpr size_t n_bytes = (size_t{8} << 20) + 100;
    Memory memory(n_bytes);
    check(std::all_of(memory.data(), memory.data() + n_bytes, [](uint8_t b) { return b == 0; }),
          "memory is not zeroed");
    std::fill(memory.data(), memory.data() + n_bytes, uint8_t{7});
    const Memory moved = std::move(memory);
    check(moved.data()[n_bytes - 1] == 7, "memory does not keep what is written");
    bool refused = false;
    try {
        const Memory too_much(size_t{1} << 62);
    } catch (const std::bad_alloc&) {
        refused = true;
    }
    check(refused, "memory that is not there is granted");
}

// The whole file, mapped to be read; the mapping is kept until the program ends.
const uint8_t* map(std::FILE* file, size_t n_bytes) {
#if defined(_WIN32)
    const HANDLE handle = reinterpret_cast<HANDLE>(_get_osfhandle(_fileno(file)));
    const HANDLE mapping = CreateFileMappingW(handle, nullptr, PAGE_READONLY, 0, 0, nullptr);
    return mapping == nullptr ? nullptr
                              : static_cast<const uint8_t*>(MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, n_bytes));
#else
    void* p = mmap(nullptr, n_bytes, PROT_READ, MAP_SHARED, fileno(file), 0);
    return p == MAP_FAILED ? nullptr : static_cast<const uint8_t*>(p);
#endif
}

void test_pages_given_back_are_read_again() {
    std::vector<uint8_t> content(300000);
    for (size_t i = 0; i < content.size(); ++i) content[i] = uint8_t(i * 7 + i / 256);
    std::FILE* file = std::fopen("test_platform.tmp", "w+b");
    check(file != nullptr && std::fwrite(content.data(), 1, content.size(), file) == content.size(), "no file to map");
    if (file == nullptr) return;
    std::fflush(file);
    const uint8_t* mapped = map(file, content.size());
    check(mapped != nullptr, "a file cannot be mapped");
    if (mapped != nullptr) {
        check(std::equal(content.begin(), content.end(), mapped), "a mapped file reads as something else");
        give_back(mapped + 1, content.size() - 2);
        give_back(mapped, 10);  // no whole page: nothing to do
        check(std::equal(content.begin(), content.end(), mapped), "pages given back read as something else");
    }
    std::fclose(file);
}

struct Meeting {
    Pool& pool;
    std::vector<int> rounds;
    std::atomic<bool> met{true};
};

void meet(void* context, int worker) {
    Meeting& m = *static_cast<Meeting*>(context);
    for (int round = 1; round <= 50; ++round) {
        m.rounds[size_t(worker)] = round;
        m.pool.barrier();
        if (std::any_of(m.rounds.begin(), m.rounds.end(), [&](int r) { return r != round; })) m.met = false;
        // Longer than threads spin and offer their cores: some of them sleep in the barrier.
        if (round % 25 == 0 && worker == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        m.pool.barrier();
    }
}

void test_threads_meet() {
    Pool pool(4);
    Meeting m{pool, std::vector<int>(4)};
    for (int run = 0; run < 5; ++run) {
        pool.run(meet, &m);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the workers sleep, and are woken by the next run
    }
    check(m.met, "a barrier let a thread through too early");
    check(process_id() != 0 && process_id() == process_id(), "the process has no number");
    check(read_bandwidth(2, size_t{1} << 20) > 0, "no bandwidth was measured");
}

struct Counting {
    Pool& pool;
    Tasks tasks;
    int64_t rounds = 0;  // of earlier runs
    std::vector<std::vector<std::atomic<int>>> counts;
    std::atomic<bool> fit{true};
};

constexpr int64_t kMostOfPiece = 4;

void count(void* context, int worker) {
    Counting& c = *static_cast<Counting*>(context);
    int64_t round = c.rounds;
    c.pool.barrier();
    for (auto& tasks : c.counts) {
        const auto run = [&](int64_t first, int64_t last) {
            if (first >= last || last - first > kMostOfPiece) c.fit = false;
            for (int64_t task = first; task < last; ++task) tasks[size_t(task)].fetch_add(1);
            // A worker that lost its core: the others do its tasks, and go on to rounds that it has not seen.
            if (worker == 1 && first == 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        };
        c.tasks.take(++round, worker, int64_t(tasks.size()), kMostOfPiece, run);
        if (round % 3 == 0) c.pool.barrier();
    }
    if (worker == 0) c.rounds = round;
}

void test_each_task_is_done_once() {
    Pool pool(4);
    Counting c{pool, Tasks(4), 0, {}, true};
    for (const size_t n : {0, 1, 2, 3, 4, 5, 7, 16, 33, 100, 1000, 3, 0, 64}) c.counts.emplace_back(n);
    constexpr int runs = 20;
    for (int run = 0; run < runs; ++run) {
        c.tasks.begin(c.rounds);
        pool.run(count, &c);
    }
    for (const auto& tasks : c.counts)
        for (const auto& n : tasks) check(n == runs, "a task was not done, or done twice");
    check(c.fit, "a piece has no tasks, or too many");
}

// More tasks than a word counts one by one.
void test_millions_of_tasks_are_done_once() {
    struct Marking {
        Tasks tasks{2};
        std::vector<uint8_t> marks = std::vector<uint8_t>(size_t{5} << 20);
    } m;
    Pool pool(2);
    pool.run(
        [](void* context, int worker) {
            auto& [tasks, marks] = *static_cast<Marking*>(context);
            tasks.take(1, worker, int64_t(marks.size()), 1000, [&](int64_t first, int64_t last) {
                for (int64_t task = first; task < last; ++task) ++marks[size_t(task)];
            });
        },
        &m);
    for (const uint8_t n : m.marks)
        if (n != 1) return check(false, "of millions of tasks one was not done, or done twice");
}

void test_levels() {
    const auto levels = available_levels();
    check(!levels.empty() && std::string(levels.back()->name) == "scalar", "the portable level is not the last one");
    std::printf("levels:");
    for (const KernelTable* table : levels) std::printf(" %s", table->name);
    std::printf("\n");
}

}  // namespace

int main() {
    test_memory();
    test_pages_given_back_are_read_again();
    test_threads_meet();
    test_each_task_is_done_once();
    test_millions_of_tasks_are_done_once();
    test_levels();
    return any_failed ? 1 : 0;
}
