#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokens/charsmap.h"
#include "tokens/pieces.h"
#include "tokens/trie.h"
#include "tokens/utf8.h"

namespace woolly {

// SentencePiece Unigram: the segmentation with the highest sum of scores (Viterbi in double, as in the reference
// implementation); unknown characters score ten below the lowest score.
class Unigram {
  public:
    // User-defined pieces score 0. `unknown` is -1 if the vocabulary has no such piece.
    Unigram(Pieces pieces, Charsmap charsmap, std::int32_t unknown, bool add_space_prefix, bool merge_spaces)
        : charsmap_(std::move(charsmap)),
          byte_ids_(pieces.byte_ids()),
          unknown_(unknown),
          add_space_prefix_(add_space_prefix),
          merge_spaces_(merge_spaces) {
        double lowest = 0.0;
        std::vector<std::pair<std::string, std::int32_t>> keys;
        for (std::size_t id = 0; id < pieces.texts->size(); ++id) {
            if (!pieces.in_text(id)) continue;
            if (pieces.kinds[id] == PieceKind::kNormal)
                lowest = std::min(lowest, static_cast<double>(pieces.scores[id]));
            if (pieces.kinds[id] == PieceKind::kUserDefined) pieces.scores[id] = 0.0f;
            keys.emplace_back((*pieces.texts)[id], static_cast<std::int32_t>(id));
        }
        scores_ = std::move(pieces.scores);
        unknown_score_ = lowest - 10.0;
        trie_ = Trie(std::move(keys));
    }

    // Throws std::out_of_range for a character without an id, and the exceptions of normalize.
    std::vector<std::int32_t> encode(std::string_view raw) const {
        const std::string text = normalize(raw);
        std::vector<std::int32_t> out;
        const std::vector<Best> best = viterbi(text);
        bool after_unknown = false;  // the piece to the right is unknown: consecutive ones become one id
        for (std::size_t end = text.size(); end > 0; end = best[end].start) {
            const Best& last = best[end];
            if (last.id != Trie::kNone) {
                out.push_back(last.id);
            } else if (!emit_bytes(std::string_view(text).substr(last.start, end - last.start), out)) {
                if (unknown_ < 0) throw std::out_of_range(text.substr(last.start, end - last.start));
                if (!after_unknown) out.push_back(unknown_);
                after_unknown = true;
                continue;
            }
            after_unknown = false;
        }
        std::ranges::reverse(out);
        return out;
    }

    // Normalized text for matching: mapped, spaces as U+2581, with a leading one if the vocabulary requires it. Throws
    // std::length_error if the map expands the text beyond any Unicode form.
    std::string normalize(std::string_view raw) const {
        const std::size_t most = kMaxGrowth * raw.size() + Charsmap::kMaxTextBytes;
        std::string mapped;
        mapped.reserve(raw.size());
        for (std::size_t i = 0; i < raw.size();) {
            const auto [text, size] = charsmap_.longest(raw.substr(i));
            const std::size_t step = size > 0 ? size : character_size(raw, i);
            mapped.append(size > 0 ? text : raw.substr(i, step));
            if (mapped.size() > most)
                throw std::length_error("the vocabulary's precompiled_charsmap makes it more than " +
                                        std::to_string(kMaxGrowth) + " times as long");
            i += step;
        }
        std::string out;
        out.reserve(mapped.size() + mapped.size() / 2 + kSpaceMark.size());
        bool pending = false;  // spaces seen since the last other character
        for (const char c : mapped) {
            if (c == ' ' && merge_spaces_) {
                pending = !out.empty();
                continue;
            }
            if (pending || (out.empty() && add_space_prefix_)) out.append(kSpaceMark);
            pending = false;
            if (c == ' ')
                out.append(kSpaceMark);
            else
                out.push_back(c);
        }
        return out;
    }

  private:
    // Unicode's compatibility forms expand text at most 11 times: U+FDFA, from 3 bytes to 33.
    static constexpr std::size_t kMaxGrowth = 16;

    struct Best {
        double score = -std::numeric_limits<double>::max();
        std::size_t start = 0;
        std::int32_t id = Trie::kNone;  // kNone: one unknown character
    };

    std::vector<Best> viterbi(std::string_view text) const {
        std::vector<Best> best(text.size() + 1);
        best[0].score = 0.0;
        const auto offer = [&](std::size_t start, std::size_t end, double score, std::int32_t id) {
            if (best[start].score + score > best[end].score) best[end] = {best[start].score + score, start, id};
        };
        for (std::size_t start = 0; start < text.size();) {
            const std::size_t character = character_size(text, start);
            bool covered = false;  // a piece is exactly this character
            std::uint32_t node = Trie::kRoot;
            for (std::size_t end = start; end < text.size();) {
                node = trie_.step(node, static_cast<std::uint8_t>(text[end++]));
                if (node == Trie::kMissing) break;
                const std::int32_t id = trie_.node(node).value;
                if (id == Trie::kNone) continue;
                offer(start, end, static_cast<double>(scores_[static_cast<std::size_t>(id)]), id);
                covered = covered || end - start == character;
            }
            if (!covered) offer(start, start + character, unknown_score_, Trie::kNone);
            start += character;
        }
        return best;
    }

    // Byte pieces of `text`, last first; false if one is missing.
    bool emit_bytes(std::string_view text, std::vector<std::int32_t>& out) const {
        const auto id = [this](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
        if (!std::ranges::all_of(text, [&](char c) { return id(c) != Trie::kNone; })) return false;
        for (std::size_t i = text.size(); i-- > 0;) out.push_back(id(text[i]));
        return true;
    }

    std::vector<float> scores_;
    Charsmap charsmap_;
    Trie trie_;
    std::array<std::int32_t, 256> byte_ids_;
    double unknown_score_ = 0.0;
    std::int32_t unknown_;
    bool add_space_prefix_;
    bool merge_spaces_;
};

}  // namespace woolly
