// Tests of the operating-system layer on every platform: memory, released pages, thread barriers, kernel levels. Linked
// with all of native/ except the bindings (tests/native, scripts/windows), so that link errors show up, too.
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <io.h>
#include <windows.h>
#else
#include <pthread.h>
#include <signal.h>
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

// Maps a complete file for reading; the mapping stays until the program ends.
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
        give_back(mapped, 10);  // no complete page: nothing to do
        check(std::equal(content.begin(), content.end(), mapped), "pages given back read as something else");
    }
    std::fclose(file);
}

constexpr int64_t kMaxPiece = 4;

// Job with several stages, which counts how often each task of a stage runs.
struct Counting {
    Pool pool;
    Tasks tasks;
    std::vector<std::vector<std::atomic<int>>> counts;
    int runs = 0;
    int64_t round = 0;  // round of the stage where workers join
    int together = 1;   // stages from one barrier to the next
    bool yields = false;
    std::atomic<bool> fit{true}, met{true};
    std::atomic<int> inside{0}, joined{0};

    Counting(int n_threads, std::vector<size_t> n_tasks) : pool(n_threads), tasks(n_threads) {
        for (const size_t n : n_tasks) counts.emplace_back(n);
    }
    bool are_done(size_t from, size_t to) const {
        return std::all_of(counts.begin() + ptrdiff_t(from), counts.begin() + ptrdiff_t(to), [&](const auto& stage) {
            return std::all_of(stage.begin(), stage.end(), [&](const auto& n) { return n == runs; });
        });
    }
    void run() {
        ++runs;
        round = 0;
        tasks.begin();
        pool.run([](void* self, int worker, int stage) { static_cast<Counting*>(self)->work(worker, stage); }, this);
        if (inside != 0) met = false;  // a worker is in a job that has ended
    }
    void work(int worker, int from) {
        ++inside;
        if (from > 0) ++joined;
        int64_t own_round = round;
        for (size_t stage = size_t(from); stage < counts.size(); ++stage) {
            if (stage > size_t(from) && stage % size_t(together) == 0) {
                --inside;
                const auto end = [&] {
                    if (!are_done(stage - size_t(together), stage)) met = false;
                    round = own_round;
                };
                if (!pool.barrier(worker, int(stage), end)) return;
                ++inside;
                if (!are_done(stage - size_t(together), stage)) met = false;
            }
            const auto run = [&](int64_t first, int64_t last) {
                if (first >= last || last - first > kMaxPiece) fit = false;
                for (int64_t task = first; task < last; ++task) counts[stage][size_t(task)].fetch_add(1);
                if (yields) std::this_thread::yield();
                // Simulates a preempted worker: the others do its tasks, and sleep in the barrier.
                if (worker == 1 && first == 3) std::this_thread::sleep_for(std::chrono::milliseconds(3));
            };
            tasks.take(++own_round, worker, int64_t(counts[stage].size()), kMaxPiece, run);
        }
        --inside;
    }
};

void test_each_task_is_done_once() {
    for (const int together : {1, 3}) {
        Counting c(4, {0, 1, 2, 3, 4, 5, 7, 16, 33, 100, 1000, 3, 0, 64});
        c.together = together;
        for (int run = 0; run < 20; ++run) {
            c.run();
            check(c.are_done(0, c.counts.size()), "a task was not done, or done twice");
            // Lets the workers fall asleep, so that the next run wakes them.
            if (run % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        check(c.met, "a barrier let a thread through too early");
        check(c.fit, "a piece has no tasks, or too many");
    }
}

// With more threads than cores, some are preempted at each barrier, are left behind, and join later.
void test_late_threads_join() {
    Counting c(int(std::thread::hardware_concurrency()) + 6, std::vector<size_t>(60, 9));
    c.yields = true;
    for (int run = 0; run < 5; ++run) c.run();
    check(c.are_done(0, c.counts.size()), "a task of a short stage was not done, or done twice");
    check(c.met, "a late thread met the others too early");
    std::printf("%d late threads\n", c.joined.load());
}

// New threads count as behind, and join the current stage, which waits for them.
void test_all_threads_come() {
    struct Waiting {
        Pool pool{5};
        std::atomic<int> n_came{0};
        std::atomic<bool> in_time{true};
    } w;
    w.pool.run(
        [](void* context, int worker, int stage) {
            auto& [pool, n_came, in_time] = *static_cast<Waiting*>(context);
            if (stage == 0 && !pool.barrier(worker, 7, [] {})) return;
            ++n_came;
            const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
            while (n_came < 5 && in_time) {
                std::this_thread::yield();
                if (std::chrono::steady_clock::now() > end) in_time = false;
            }
        },
        &w);
    check(w.in_time, "a thread does not join a job that is under way");
}

#if !defined(_WIN32)
// A signal stops a thread while it waits at a barrier, as if it had lost its core. The job ends without the thread: the
// barrier returns false to it, and it joins the next job.
struct Stopping {
    using Clock = std::chrono::steady_clock;
    static inline std::atomic<bool> is_held{false}, may_go{false}, was_freed{false};

    Pool pool{2};
    std::atomic<bool> came{false}, was_behind{false};
    pthread_t thread{};

    static bool wait_for(const std::atomic<bool>& what, std::chrono::milliseconds most) {
        for (const auto end = Clock::now() + most; !what;) {
            if (Clock::now() > end) return false;
            std::this_thread::yield();
        }
        return true;
    }
    // If the thread has not reached the barrier yet, all others wait for it, and this attempt does not count.
    static void hold(int) {
        is_held = true;
        if (!wait_for(may_go, std::chrono::milliseconds(500))) was_freed = true;
        is_held = false;
    }
    void work(int worker) {
        if (worker == 1) {
            thread = pthread_self();
            came = true;
            if (!pool.barrier(worker, 1, [] {})) was_behind = true;
            return;
        }
        wait_for(came, std::chrono::seconds(60));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the other thread reaches the barrier
        pthread_kill(thread, SIGUSR1);
        wait_for(is_held, std::chrono::seconds(60));
        if (!pool.barrier(worker, 1, [] {})) check(false, "the only thread at work was left behind");
    }
    // Returns true if a job ended while the thread was stopped.
    bool one() {
        came = may_go = was_freed = was_behind = false;
        pool.run(
            [](void* self, int worker, int stage) {
                if (stage == 0) static_cast<Stopping*>(self)->work(worker);
            },
            this);
        const bool ended = is_held && !was_freed;
        may_go = true;
        if (ended) check(wait_for(was_behind, std::chrono::seconds(60)), "a thread does not learn that it is behind");
        while (is_held) std::this_thread::yield();
        return ended;
    }
};

void test_a_stopped_thread_delays_nobody() {
    struct sigaction action{}, before{};
    action.sa_handler = Stopping::hold;
    sigaction(SIGUSR1, &action, &before);
    Stopping s;
    int n_ended = 0;
    const auto end = Stopping::Clock::now() + std::chrono::seconds(60);
    while (n_ended < 3 && Stopping::Clock::now() < end) n_ended += s.one();
    sigaction(SIGUSR1, &before, nullptr);
    check(n_ended == 3, "a job waits for a thread that is stopped at a barrier");
}
#endif

// More tasks than a word can count individually.
void test_millions_of_tasks_are_done_once() {
    struct Marking {
        Tasks tasks{2};
        std::vector<uint8_t> marks = std::vector<uint8_t>(size_t{5} << 20);
    } m;
    Pool pool(2);
    pool.run(
        [](void* context, int worker, int) {
            auto& [tasks, marks] = *static_cast<Marking*>(context);
            tasks.take(1, worker, int64_t(marks.size()), 1000, [&](int64_t first, int64_t last) {
                for (int64_t task = first; task < last; ++task) ++marks[size_t(task)];
            });
        },
        &m);
    for (const uint8_t n : m.marks)
        if (n != 1) return check(false, "of millions of tasks one was not done, or done twice");
}

void test_process() {
    check(process_id() != 0 && process_id() == process_id(), "the process has no number");
    check(read_bandwidth(2, size_t{1} << 20) > 0, "no bandwidth was measured");
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
    test_process();
    test_each_task_is_done_once();
    test_late_threads_join();
    test_all_threads_come();
#if !defined(_WIN32)
    test_a_stopped_thread_delays_nobody();
#endif
    test_millions_of_tasks_are_done_once();
    test_levels();
    return any_failed ? 1 : 0;
}
