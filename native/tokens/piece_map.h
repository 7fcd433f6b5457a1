#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tokens/pieces.h"

namespace woolly {

// Piece text -> id by open addressing over one blob of bytes. std::unordered_map takes four times as long to
// build and its nodes miss the cache on every lookup of a merge candidate.
class PieceMap {
  public:
    static constexpr std::int32_t kNone = -1;

    // The pieces that text can spell; of two equal ones the later id is found.
    explicit PieceMap(const Pieces& pieces) {
        std::size_t total = 0;
        for (const auto& text : pieces.texts) total += text.size();
        blob_.reserve(total);
        mask_ = std::bit_ceil(pieces.texts.size() * 2 + 2) - 1;
        slots_.assign(mask_ + 1, Slot{0, 0, kNone, 0});
        for (std::size_t id = 0; id < pieces.texts.size(); ++id) {
            if (!pieces.in_text(id)) continue;
            const std::string& text = pieces.texts[id];
            const std::uint64_t h = hash(text);
            Slot& slot = slots_[locate(text, h)];
            if (slot.id == kNone) {
                slot.offset = blob_.size();
                slot.size = static_cast<std::uint32_t>(text.size());
                slot.tag = static_cast<std::uint32_t>(h >> 32);
                blob_.append(text);
            }
            slot.id = static_cast<std::int32_t>(id);
        }
    }

    std::int32_t find(std::string_view text) const { return slots_[locate(text, hash(text))].id; }

  private:
    struct Slot {
        std::uint64_t offset;  // into blob_
        std::uint32_t size;    // bytes
        std::int32_t id;       // kNone: free
        std::uint32_t tag;     // upper half of the hash, compared before the bytes
    };

    static std::uint64_t hash(std::string_view text) {
        std::uint64_t h = 0x9E3779B97F4A7C15ull ^ text.size();
        const char* p = text.data();
        std::size_t left = text.size();
        for (; left >= 8; p += 8, left -= 8) {
            std::uint64_t word = 0;
            std::memcpy(&word, p, 8);
            h = mix(h ^ word);
        }
        std::uint64_t word = 0;
        if (left > 0) std::memcpy(&word, p, left);
        return mix(h ^ word);
    }

    static std::uint64_t mix(std::uint64_t x) {
        x *= 0xFF51AFD7ED558CCDull;
        x ^= x >> 33;
        x *= 0xC4CEB9FE1A85EC53ull;
        return x ^ (x >> 29);
    }

    std::size_t locate(std::string_view text, std::uint64_t h) const {
        const auto tag = static_cast<std::uint32_t>(h >> 32);
        for (std::size_t i = h & mask_;; i = (i + 1) & mask_) {
            const Slot& slot = slots_[i];
            if (slot.id == kNone) return i;
            if (slot.tag == tag && slot.size == text.size() &&
                std::memcmp(blob_.data() + slot.offset, text.data(), text.size()) == 0)
                return i;
        }
    }

    std::string blob_;
    std::vector<Slot> slots_;
    std::size_t mask_ = 0;
};

}  // namespace woolly
