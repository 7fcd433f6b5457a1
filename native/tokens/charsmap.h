#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace woolly {

// SentencePiece's precompiled normalization: a Darts double array from prefixes to replacements, and the replacements
// as NUL-terminated strings. Layout: u32 byte count of the array, the array of u32, the strings.
class Charsmap {
  public:
    // Maximum bytes of a source prefix and of a replacement. Unicode's compatibility forms, the source of these maps,
    // need 33 for the longest replacement (U+FDFA); without limits a small file could expand without bound.
    static constexpr std::size_t kMaxPrefixBytes = 64;
    static constexpr std::size_t kMaxTextBytes = 256;

    // Throws std::invalid_argument for a block shorter than its header says, and for a replacement beyond
    // kMaxTextBytes.
    explicit Charsmap(std::string blob);

    // Replacement of the longest known prefix of `text`, and the number of replaced bytes; 0 if there is none.
    std::pair<std::string_view, std::size_t> longest(std::string_view text) const {
        if (units_ == 0) return {{}, 0};
        std::size_t size = 0;
        std::size_t target = 0;
        std::size_t node = base(unit(0));
        for (std::size_t i = 0; i < text.size() && i < kMaxPrefixBytes; ++i) {
            const auto byte = static_cast<unsigned char>(text[i]);
            if (byte == 0) break;
            node ^= byte;
            if (node >= units_) break;
            const std::uint32_t packed = unit(node);
            if ((packed & (0x80000000u | 0xFFu)) != byte) break;
            node ^= base(packed);
            if ((packed >> 8 & 1u) != 0 && node < units_) {
                size = i + 1;
                target = unit(node) & 0x7FFFFFFFu;
            }
        }
        if (size == 0 || texts_ + target >= blob_.size()) return {{}, 0};
        return {std::string_view(blob_.c_str() + texts_ + target), size};
    }

  private:
    std::uint32_t word(std::size_t offset) const {
        unsigned char b[4];
        std::memcpy(b, blob_.data() + offset, 4);
        return b[0] | std::uint32_t{b[1]} << 8 | std::uint32_t{b[2]} << 16 | std::uint32_t{b[3]} << 24;
    }
    std::uint32_t unit(std::size_t index) const { return word(4 + 4 * index); }
    static std::size_t base(std::uint32_t packed) {
        return static_cast<std::size_t>(packed >> 10) << ((packed & (1u << 9)) >> 6);
    }

    std::string blob_;
    std::size_t units_ = 0;  // entries of the double array
    std::size_t texts_ = 0;  // offset of the replacements
};

}  // namespace woolly
