// Anonymous memory from the system: zeroed, taken page by page as it is first written, 2 MiB pages where granted.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace woolly {

class Memory {
  public:
    Memory() = default;
    explicit Memory(size_t n_bytes) : n_bytes_(n_bytes) {
        if (n_bytes == 0) return;
        void* p = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        data_ = static_cast<uint8_t*>(p);
#if defined(MADV_HUGEPAGE)
        if (n_bytes >= (size_t{4} << 20)) madvise(p, n_bytes, MADV_HUGEPAGE);
#endif
    }
    ~Memory() {
        if (data_ != nullptr) munmap(data_, n_bytes_);
    }
    Memory(Memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), n_bytes_(std::exchange(other.n_bytes_, 0)) {}
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(n_bytes_, other.n_bytes_);
        return *this;
    }

    uint8_t* data() const { return data_; }
    size_t size() const { return n_bytes_; }

  private:
    uint8_t* data_ = nullptr;
    size_t n_bytes_ = 0;
};

}  // namespace woolly
