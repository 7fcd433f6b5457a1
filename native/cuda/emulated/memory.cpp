// Memory of the emulated GPU: guard pages around each allocation, and a fill pattern in the rest of its pages.
#include "emulated/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

namespace emulated {
namespace {

constexpr size_t kAlignment = 256;
constexpr unsigned char kFilling = 0xA7;
constexpr unsigned char kFresh = 0xFF;  // NaN if read before written

struct Allocation {
    unsigned char* pages;  // guard page, allocation, guard page
    size_t n_page_bytes;
    size_t n_bytes;
};

std::mutex guard;
std::map<unsigned char*, Allocation>& allocations() {
    static std::map<unsigned char*, Allocation> all;
    return all;
}

size_t up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

bool is_filled(const unsigned char* first, const unsigned char* last) {
    // Compares the range with itself shifted by one: memcmp is faster than a loop, and every launch checks all
    // allocations.
    return first >= last || (*first == kFilling && std::memcmp(first, first + 1, size_t(last - first) - 1) == 0);
}

}  // namespace

std::string damage() {
    const std::lock_guard<std::mutex> lock(guard);
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    for (const auto& [at, one] : allocations()) {
        const std::string what = "an allocation of " + std::to_string(one.n_bytes) + " bytes";
        if (!is_filled(one.pages + page, at)) return "wrote before " + what;
        if (!is_filled(at + one.n_bytes, one.pages + one.n_page_bytes - page)) return "wrote behind " + what;
    }
    return "";
}

}  // namespace emulated

using namespace emulated;

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void* emulated_allocate(size_t n_bytes) {
    const std::lock_guard<std::mutex> lock(guard);
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t own = up(n_bytes == 0 ? 1 : n_bytes, kAlignment), inner = up(own, page), whole = inner + 2 * page;
    void* const memory = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    auto* const pages = static_cast<unsigned char*>(memory);
    mprotect(pages + page, inner, PROT_READ | PROT_WRITE);
    auto* const at = pages + page + inner - own;
    std::memset(pages + page, kFilling, inner);
    std::memset(at, kFresh, n_bytes);
    allocations()[at] = {pages, whole, n_bytes};
    return at;
}

// Returns 1 if it was an allocation.
EXPORTED int emulated_free(void* at) {
    const std::lock_guard<std::mutex> lock(guard);
    const auto found = allocations().find(static_cast<unsigned char*>(at));
    if (found == allocations().end()) return 0;
    munmap(found->second.pages, found->second.n_page_bytes);
    allocations().erase(found);
    return 1;
}

// Returns 1 if the range is within one allocation.
EXPORTED int emulated_owns(const void* at, size_t n_bytes) {
    const std::lock_guard<std::mutex> lock(guard);
    const auto* const first = static_cast<const unsigned char*>(at);
    auto found = allocations().upper_bound(const_cast<unsigned char*>(first));
    if (found == allocations().begin()) return 0;
    --found;
    return first + n_bytes <= found->first + found->second.n_bytes;
}
