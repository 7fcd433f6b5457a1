#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokens/piece_map.h"
#include "tokens/texts.h"

namespace woolly {

// BPE of words: merges the adjacent pair of lowest rank first, the leftmost of equals.
class BytePairs {
  public:
    // `merges` are "left right", lowest rank first; the first duplicate counts. Throws std::invalid_argument with the
    // index of an invalid entry. With `byte_level` the vocabulary writes each byte as a character, in the order of
    // `byte_characters`; else a character without a token becomes tokens <0xXX>. With `ignore_merges` a word that is a
    // token is not split. `unknown` is -1 if there is no such token.
    BytePairs(std::shared_ptr<const PieceMap> tokens, const Texts& merges, const Texts& byte_characters,
              bool byte_level, bool ignore_merges, std::int32_t unknown);

    // Ids of the words, concatenated. Throws std::out_of_range for a character without an id.
    std::vector<std::int32_t> encode(const std::vector<std::string_view>& words) const;

  private:
    struct Rule {
        std::uint64_t pair = kFree;
        std::int32_t rank = 0;
        std::int32_t id = 0;
    };
    struct Symbol {
        std::int32_t id;    // kNone: not a token, merges with nothing
        std::int32_t prev;  // -1: none
        std::int32_t next;  // -1: none; kGone: merged into its left neighbour
    };
    struct Candidate {
        std::int32_t rank;
        std::int32_t left;
        std::int32_t id;
    };
    struct Work {
        std::vector<Symbol> symbols;
        std::vector<Candidate> queue;
        std::string written;  // a word in the vocabulary's characters
    };

    static constexpr std::int32_t kNone = PieceMap::kNone;
    static constexpr std::int32_t kGone = -2;
    static constexpr std::uint64_t kFree = ~std::uint64_t{0};

    static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
        return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
    }

    void read_merges(const Texts& merges);
    std::int32_t id_of_step(std::string_view text);
    std::int32_t lookup(std::string_view text) const;
    std::size_t locate(std::uint64_t pair) const;
    const Rule* rule(std::int32_t left, std::int32_t right) const;
    void encode_word(std::string_view word, Work& work, std::vector<std::int32_t>& out) const;
    void add_symbols(std::string_view word, Work& work) const;
    // True if a character can be written as tokens <0xXX>.
    bool has_bytes(std::string_view character) const;
    void consider(std::int32_t left, Work& work) const;
    void emit(std::int32_t id, std::vector<std::int32_t>& out) const;
    void emit_unknown(std::vector<std::int32_t>& out) const;

    std::shared_ptr<const PieceMap> tokens_;
    bool byte_level_;
    bool ignore_merges_;
    std::int32_t unknown_;
    std::array<std::string, 256> characters_;   // byte in the vocabulary's notation
    std::array<std::int32_t, 256> byte_ids_{};  // their ids, or those of <0xXX>
    std::vector<Rule> rules_;                   // open addressing by pair
    std::size_t mask_ = 0;
    std::vector<std::string> steps_;  // ids after the tokens: intermediate pieces of merges that are not tokens
    std::unordered_map<std::string, std::int32_t> ids_of_steps_;
};

}  // namespace woolly
