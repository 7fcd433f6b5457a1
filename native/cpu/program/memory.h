// Anonymous memory from the system: zeroed, allocated at first write, with 2 MiB pages if available.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "machine/system.h"

namespace woolly {

class Memory {
  public:
    Memory() = default;
    explicit Memory(size_t n_bytes) : n_bytes_(n_bytes) {
        if (n_bytes == 0) return;
        data_ = take_pages(n_bytes);
        if (data_ == nullptr) throw std::bad_alloc();
    }
    ~Memory() {
        if (data_ != nullptr) return_pages(data_, n_bytes_);
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
