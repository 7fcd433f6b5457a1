#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace woolly {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, how SentencePiece writes a space

// Length in bytes of the character at `offset`, from its first byte, limited to the end of the text.
inline std::size_t character_size(std::string_view text, std::size_t offset) {
    const auto lead = static_cast<unsigned char>(text[offset]);
    const std::size_t size = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return std::min(size, text.size() - offset);
}

}  // namespace woolly
