#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tokens/texts.h"

namespace woolly {

// Piece text -> id with open addressing. std::unordered_map takes four times as long to build, and its nodes miss the
// cache on every lookup of a merge candidate.
class PieceMap {
  public:
    static constexpr std::int32_t kNone = -1;

    explicit PieceMap(std::shared_ptr<const Texts> texts)
        : PieceMap(std::move(texts), [](std::size_t) { return true; }) {}

    // Adds the pieces for which `is_found` is true; of duplicates, the later id is found.
    template <class IsFound>
    PieceMap(std::shared_ptr<const Texts> texts, const IsFound& is_found) : texts_(std::move(texts)) {
        mask_ = std::bit_ceil(texts_->size() * 2 + 2) - 1;
        slots_.assign(mask_ + 1, Slot{kNone, 0});
        for (std::size_t id = 0; id < texts_->size(); ++id) {
            if (!is_found(id)) continue;
            const std::string_view text = (*texts_)[id];
            const std::uint64_t h = hash(text);
            slots_[locate(text, h)] = {static_cast<std::int32_t>(id), static_cast<std::uint32_t>(h >> 32)};
        }
    }

    std::int32_t find(std::string_view text) const { return slots_[locate(text, hash(text))].id; }

    const Texts& texts() const { return *texts_; }

  private:
    struct Slot {
        std::int32_t id;    // kNone: free
        std::uint32_t tag;  // upper half of the hash, compared before the bytes
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
            if (slot.tag == tag && (*texts_)[static_cast<std::size_t>(slot.id)] == text) return i;
        }
    }

    std::shared_ptr<const Texts> texts_;
    std::vector<Slot> slots_;
    std::size_t mask_ = 0;
};

}  // namespace woolly
