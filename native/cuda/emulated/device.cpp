// Launches on the emulated GPU: fibers, barriers and error reports.
#include "emulated/device.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "emulated/fiber.h"
#include "emulated/memory.h"

emulated::Dim threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {
namespace {

constexpr int kMaxThreads = 1024;         // threads of a block, and of concurrent blocks
constexpr int kMaxBlocks = 8;             // concurrent blocks
constexpr size_t kStackBytes = 1 << 18;   // committed page by page
constexpr size_t kMaxShared = 227 << 10;  // as on sm_90
constexpr uint64_t kCanary = 0x5A5A1234DEADC0DEull;

enum class Wait : uint8_t { none, block, blocks, named, warp, phase, done };

struct Thread {
    Dim index;
    void* stack;
    Wait wait;
    int barrier;           // number of a named barrier
    uint32_t mask;         // lanes of a warp exchange
    void* mine;            // its contribution
    Complete complete;     // operation of the exchange
    bool vote;             // vote at the block barrier, then its result
    const uint8_t* phase;  // value that has to change, and its old value
    uint8_t old_phase;
};

struct Kernel {
    std::string signature;
    Call call;
};

std::map<std::string, Kernel>& kernels() {
    static std::map<std::string, Kernel> all;
    return all;
}

// Lanes that wait in an exchange, and lanes that have exited.
struct Warp {
    uint32_t waiting, done;
};

std::mutex one_at_a_time;
Thread threads[kMaxThreads];
Warp warps[kMaxThreads / 32];
char* stacks = nullptr;
void* scheduler = nullptr;  // stack of the scheduler while a fiber runs
int current = 0;
int n_threads = 0;  // per block
int n_blocks = 1;   // concurrent blocks: neighbours along x
unsigned first_block = 0;
const Kernel* kernel = nullptr;
void** arguments = nullptr;
std::string kernel_name, message;
jmp_buf out_of_launch;
alignas(1024) unsigned char shared[kMaxBlocks][kMaxShared + 1024];

std::string dims(const Dim& d) {
    return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
}

// Index of a thread's block among the concurrent ones.
int block_of(int thread) { return thread / n_threads; }

Dim thread_of(int index) {
    const auto i = static_cast<unsigned>(index % n_threads);
    return {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
}

std::string place(int thread) {
    const Dim block{first_block + static_cast<unsigned>(block_of(thread)), blockIdx.y, blockIdx.z};
    return "kernel " + kernel_name + ", block " + dims(block) + ", thread " + dims(thread_of(thread));
}

[[noreturn]] void end_launch(const std::string& sentence) {
    message = sentence;
    longjmp(out_of_launch, 1);
}

void run_fiber() {
    kernel->call(arguments);
    threads[current].wait = Wait::done;
    warps[current / 32].done |= 1u << current % 32;
    void* unused;
    emulated_switch(&unused, scheduler);
    __builtin_unreachable();
}

void wait_for(Wait wait) {
    Thread& me = threads[current];
    me.wait = wait;
    emulated_switch(&me.stack, scheduler);
}

void resume(int index) {
    current = index;
    threadIdx = threads[index].index;
    blockIdx.x = first_block + static_cast<unsigned>(block_of(index));
    emulated_switch(&scheduler, threads[index].stack);
}

const char* name_of(Wait wait) {
    switch (wait) {
        case Wait::block:
            return "waits at __syncthreads";
        case Wait::blocks:
            return "waits for the blocks of its group";
        case Wait::phase:
            return "waits at a barrier in shared memory";
        case Wait::named:
            return "waits at a named barrier";
        case Wait::warp:
            return "waits for its warp";
        case Wait::done:
            return "has left";
        default:
            return "runs";
    }
}

[[noreturn]] void report_deadlock() {
    int first = 0;
    while (threads[first].wait == Wait::done) first++;
    int other = 0;
    while (other < n_threads * n_blocks && threads[other].wait == threads[first].wait) other++;
    std::string sentence = "deadlock in " + place(first) + ", which " + name_of(threads[first].wait) + " for ever";
    if (other < n_threads * n_blocks)
        sentence += "; thread " + dims(thread_of(other)) + " " + name_of(threads[other].wait);
    end_launch(sentence);
}

// Releases threads [first, last) if all of them wait. Exited threads never arrive.
bool release(int first, int last, Wait wait) {
    bool any = false;
    for (int i = first; i < last; i++) {
        if (threads[i].wait != wait) return false;
        any |= threads[i].vote;
    }
    for (int i = first; i < last; i++) {
        threads[i].wait = Wait::none;
        threads[i].vote = any;
    }
    return true;
}
bool release_blocks() {
    bool any = release(0, n_threads * n_blocks, Wait::blocks);
    for (int i = 0; i < n_blocks; i++) any |= release(i * n_threads, (i + 1) * n_threads, Wait::block);
    return any;
}

void release_named(int barrier, int n_expected) {
    const int first = block_of(current) * n_threads, last = first + n_threads;
    int n = 0;
    for (int i = first; i < last; i++) n += threads[i].wait == Wait::named && threads[i].barrier == barrier;
    if (n < n_expected) return;
    for (int i = first; i < last; i++)
        if (threads[i].wait == Wait::named && threads[i].barrier == barrier) threads[i].wait = Wait::none;
}

// Runs the concurrent blocks.
void run_blocks() {
    const int n_all = n_threads * n_blocks;
    for (int i = 0; i < n_all; i++) {
        char* const bottom = stacks + static_cast<size_t>(i) * kStackBytes;
        std::memcpy(bottom, &kCanary, sizeof(kCanary));
        // Staggered: equally spaced stacks would compete for the same cache sets.
        char* const top = bottom + kStackBytes - (i % 32) * 1088;
        threads[i] = {thread_of(i), new_stack(top, run_fiber), Wait::none, 0, 0, nullptr, nullptr, false, nullptr, 0};
    }
    std::memset(warps, 0, sizeof(warps));
    for (;;) {
        int n_ran = 0, n_done = 0;
        for (int warp = 0; warp < n_all; warp += 32) {
            const int last = warp + 32 < n_all ? warp + 32 : n_all;
            for (bool again = true; again;) {  // a warp runs as long as it can
                again = false;
                for (int i = warp; i < last; i++) {
                    Thread& one = threads[i];
                    if (one.wait == Wait::phase && *one.phase != one.old_phase) one.wait = Wait::none;
                    if (one.wait != Wait::none) continue;
                    resume(i);
                    again = true;
                    n_ran++;
                }
            }
            for (int i = warp; i < last; i++) n_done += threads[i].wait == Wait::done;
        }
        if (n_done == n_all) break;
        if (!release_blocks() && n_ran == 0) report_deadlock();
    }
    for (int i = 0; i < n_all; i++) {
        uint64_t canary;
        std::memcpy(&canary, stacks + static_cast<size_t>(i) * kStackBytes, sizeof(canary));
        if (canary != kCanary) end_launch(place(i) + " ran out of its stack");
    }
}

void on_fault(int signal, siginfo_t* info, void*) {
    // Compiler checks: array bounds and alignment.
    if (signal == SIGILL || signal == SIGTRAP)
        end_launch(place(current) + " used an index outside an array, or an address that is not aligned");
    char text[64];
    std::snprintf(text, sizeof(text), "%p", info->si_addr);
    end_launch(place(current) + " touched " + text + ", which is outside all memory of the device");
}

// Turns access to unmapped memory into the end of the launch, while it lives.
class Faults {
  public:
    Faults() {
        static char memory[1 << 16];
        stack_t own{};
        own.ss_sp = memory;
        own.ss_size = sizeof(memory);
        sigaltstack(&own, &old_stack_);
        struct sigaction action{};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int i = 0; i < kSignals; i++) sigaction(kCaught[i], &action, &old_[i]);
    }
    ~Faults() {
        for (int i = 0; i < kSignals; i++) sigaction(kCaught[i], &old_[i], nullptr);
        sigaltstack(&old_stack_, nullptr);
    }

  private:
    static constexpr int kSignals = 4;
    static constexpr int kCaught[kSignals] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP};
    stack_t old_stack_{};
    struct sigaction old_[kSignals] = {};
};

void run_grid(size_t shared_bytes) {
    if (setjmp(out_of_launch) != 0) return;
    for (unsigned z = 0; z < gridDim.z; z++)
        for (unsigned y = 0; y < gridDim.y; y++)
            for (unsigned x = 0; x < gridDim.x; x += static_cast<unsigned>(n_blocks)) {
                blockIdx = {x, y, z};
                first_block = x;
                for (int i = 0; i < n_blocks; i++) std::memset(shared[i], 0xFF, shared_bytes + 128);
                run_blocks();
                for (int block = 0; block < n_blocks; block++)
                    for (size_t i = 0; i < 128; i++)
                        if (shared[block][shared_bytes + i] != 0xFF)
                            end_launch(place(block * n_threads) + " wrote behind its shared memory");
            }
}

}  // namespace

void enter(const char* name, const char* signature, Call call) { kernels()[name] = {signature, call}; }

unsigned char* dynamic_shared() { return shared[block_of(current)]; }

unsigned char* dynamic_shared(int rank) { return shared[rank]; }

void fail(const char* sentence) { end_launch(place(current) + ": " + sentence); }

int lane() { return current % 32; }

void block_barrier() { wait_for(Wait::block); }

bool block_any(bool vote) {
    threads[current].vote = vote;
    wait_for(Wait::block);
    return std::exchange(threads[current].vote, false);
}

void group_barrier() { wait_for(Wait::blocks); }

void await_phase(const uint8_t* phase, uint8_t old) {
    if (*phase != old) return;
    threads[current].phase = phase;
    threads[current].old_phase = old;
    wait_for(Wait::phase);
}

void named_barrier(int id, int n_expected) {
    threads[current].barrier = id;
    threads[current].wait = Wait::named;
    release_named(id, n_expected);
    if (threads[current].wait == Wait::named) wait_for(Wait::named);
}

void together(uint32_t mask, void* mine, Complete complete) {
    const int first = current / 32 * 32;
    const uint32_t own = 1u << (current - first);
    Warp& warp = warps[current / 32];
    if ((mask & own) == 0) fail("a lane is not in the mask that it gives");
    if (n_blocks == 1 && first + 32 > n_threads && mask >> (n_threads - first) != 0)
        fail("a mask names a lane that the block does not have");
    if ((mask & warp.done) != 0) fail("a lane of the mask has left");
    Thread& me = threads[current];
    me.mask = mask;
    me.mine = mine;
    me.complete = complete;
    warp.waiting |= own;
    if ((mask & ~warp.waiting) != 0) return wait_for(Wait::warp);
    void* brought[32] = {};
    for (int i = 0; i < 32; i++) {
        if ((mask >> i & 1u) == 0) continue;
        const Thread& other = threads[first + i];
        if (other.mask != mask || other.complete != complete) fail("lanes of one mask do different things together");
        brought[i] = other.mine;
    }
    complete(brought);
    warp.waiting &= ~mask;
    for (int i = 0; i < 32; i++)
        if ((mask >> i & 1u) != 0) threads[first + i].wait = Wait::none;
}

}  // namespace emulated

using namespace emulated;

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Parameter letters of a kernel; null if there is none of this name.
EXPORTED const char* emulated_signature(const char* name) {
    const auto found = kernels().find(name);
    return found == kernels().end() ? nullptr : found->second.signature.c_str();
}

// Runs a kernel. Returns null, or an error sentence.
EXPORTED const char* emulated_launch(const char* name, const unsigned* grid, const unsigned* block,
                                     unsigned shared_bytes, void** args, unsigned group) {
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    if (stacks == nullptr) {
        void* const memory = mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return "no memory for the stacks of threads";
        stacks = static_cast<char*>(memory);
    }
    kernel_name = name;
    kernel = &kernels().at(name);
    arguments = args;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    message.clear();
    const uint64_t n = uint64_t{block[0]} * block[1] * block[2];
    if (n == 0 || n > kMaxThreads) return "a block has 1 to 1024 threads";
    if (group == 0 || group > kMaxBlocks || n * group > kMaxThreads || grid[0] % group != 0)
        return "a cluster has at most 8 blocks and 1024 threads, and the grid must be a multiple of the cluster";
    if (group > 1 && n % 32 != 0) return "blocks of a group have whole warps";
    if (shared_bytes > kMaxShared) return "a block has at most 227 KiB of shared memory";
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return "a grid has at least one block";
    if (grid[1] > 65535 || grid[2] > 65535) return "a grid has at most 65535 blocks along y and z";
    n_threads = static_cast<int>(n);
    n_blocks = static_cast<int>(group);
    {
        const Faults faults;
        run_grid(shared_bytes);
    }
    if (message.empty()) {
        message = damage();
        if (!message.empty()) message = "kernel " + kernel_name + " " + message;
    }
    return message.empty() ? nullptr : message.c_str();
}
