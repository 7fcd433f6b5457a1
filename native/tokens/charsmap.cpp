#include "tokens/charsmap.h"

#include <stdexcept>

namespace woolly {

Charsmap::Charsmap(std::string blob) : blob_(std::move(blob)) {
    if (blob_.empty()) return;
    if (blob_.size() < 4) throw std::invalid_argument("precompiled_charsmap is shorter than its header");
    const std::size_t bytes = word(0);
    if (bytes % 4 != 0 || bytes + 4 >= blob_.size() || blob_.back() != '\0')
        throw std::invalid_argument("precompiled_charsmap is shorter than its header says");
    units_ = bytes / 4;
    texts_ = 4 + bytes;
    for (std::size_t begin = texts_; begin < blob_.size();) {
        const std::size_t end = blob_.find('\0', begin);
        if (end - begin > kMaxTextBytes)
            throw std::invalid_argument("precompiled_charsmap has a replacement of " + std::to_string(end - begin) +
                                        " bytes, and at most " + std::to_string(kMaxTextBytes) + " are taken");
        begin = end + 1;
    }
}

}  // namespace woolly
