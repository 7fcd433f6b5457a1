#include "gguf/strings.h"

namespace woolly {

namespace {

constexpr uint64_t kPrefix = 8;

uint64_t load_u64(const uint8_t* bytes) {
    // Byte by byte: the prefix is unaligned and little-endian; compilers make one load of it.
    uint64_t value = 0;
    for (int i = 7; i >= 0; --i) {
        value = (value << 8) | bytes[i];
    }
    return value;
}

}  // namespace

bool read_string(std::span<const uint8_t> bytes, uint64_t offset, std::span<const uint8_t>& text) {
    const uint64_t size = bytes.size();
    if (offset > size || size - offset < kPrefix) {
        return false;
    }
    const uint64_t begin = offset + kPrefix;
    const uint64_t length = load_u64(bytes.data() + offset);
    // Compared by subtraction: begin + length could wrap around.
    if (length > size - begin) {
        return false;
    }
    text = bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(length));
    return true;
}

StringWalk skip_strings(std::span<const uint8_t> bytes, uint64_t offset, uint64_t count) {
    StringWalk walk{offset, 0};
    std::span<const uint8_t> text;
    while (walk.n_strings < count && read_string(bytes, walk.end, text)) {
        walk.end += kPrefix + text.size();
        ++walk.n_strings;
    }
    return walk;
}

}  // namespace woolly
