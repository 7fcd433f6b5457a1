#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "tokens/texts.h"

namespace woolly {

// GGUF token types.
enum class PieceKind : char { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// Pieces of a SentencePiece vocabulary, by id.
struct Pieces {
    std::shared_ptr<const Texts> texts;
    std::vector<float> scores;
    std::vector<PieceKind> kinds;

    // Throws std::invalid_argument if a piece has no score or no kind.
    void check() const {
        if (scores.size() != texts->size() || kinds.size() != texts->size())
            throw std::invalid_argument("every piece needs one score and one type");
    }

    // Control, unknown and byte pieces never match text.
    bool in_text(std::size_t id) const {
        return kinds[id] == PieceKind::kNormal || kinds[id] == PieceKind::kUserDefined ||
               kinds[id] == PieceKind::kUnused;
    }

    // Id of the piece <0xXX> of each byte, -1 if missing.
    std::array<std::int32_t, 256> byte_ids() const {
        std::array<std::int32_t, 256> out;
        out.fill(-1);
        for (std::size_t id = 0; id < texts->size(); ++id)
            if (kinds[id] == PieceKind::kByte)
                if (const auto byte = byte_of_name((*texts)[id])) out[*byte] = static_cast<std::int32_t>(id);
        return out;
    }

  private:
    static std::optional<std::uint8_t> byte_of_name(std::string_view name) {
        if (name.size() != 6 || !name.starts_with("<0x") || name[5] != '>') return std::nullopt;
        unsigned value = 0;
        for (const char c : name.substr(3, 2)) {
            const bool digit = c >= '0' && c <= '9';
            const char lower = static_cast<char>(c | 0x20);
            if (!digit && (lower < 'a' || lower > 'f')) return std::nullopt;
            value = value * 16 + static_cast<unsigned>(digit ? c - '0' : lower - 'a' + 10);
        }
        return static_cast<std::uint8_t>(value);
    }
};

}  // namespace woolly
