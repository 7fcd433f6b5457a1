#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace woolly {

// Strings by index, in one blob: building 150,000 separate strings takes ten times as long.
class Texts {
  public:
    void reserve(std::size_t count) { ends_.reserve(count); }

    void add(std::string_view text) {
        has_empty_ = has_empty_ || text.empty();
        blob_.append(text);
        ends_.push_back(blob_.size());
    }

    std::size_t size() const { return ends_.size(); }
    bool has_empty() const { return has_empty_; }

    std::string_view operator[](std::size_t index) const {
        const std::size_t begin = index == 0 ? 0 : ends_[index - 1];
        return std::string_view(blob_).substr(begin, ends_[index] - begin);
    }

  private:
    std::string blob_;
    std::vector<std::size_t> ends_;
    bool has_empty_ = false;
};

}  // namespace woolly
