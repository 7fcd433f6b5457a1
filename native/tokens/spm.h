#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokens/piece_map.h"
#include "tokens/pieces.h"

namespace woolly {

// SentencePiece BPE: merges the adjacent pair with the highest score first, the leftmost of equals; symbols that are
// not pieces in the end fall back to byte pieces, or to the unknown id.
class SentencePieceBPE {
  public:
    // `unknown` is -1 if the vocabulary has no such piece.
    SentencePieceBPE(Pieces pieces, std::int32_t unknown);

    // Ids of a text with spaces already mapped to U+2581. Throws std::out_of_range for a character without an id.
    std::vector<std::int32_t> encode(std::string_view text) const;

  private:
    struct Symbol {
        std::size_t start;  // into the text
        std::size_t size;   // 0: merged into its left neighbour
        std::int32_t prev;  // -1: none
        std::int32_t next;  // -1: none
    };
    struct Pair {
        float score;
        std::int32_t left;
        std::int32_t right;
        std::size_t size;  // of both; a different sum later means that the pair is stale
    };
    struct Work {
        std::vector<Symbol> symbols;
        std::vector<Pair> queue;
    };

    void encode_segment(std::string_view text, Work& work, std::vector<std::int32_t>& out) const;
    void consider(std::string_view text, std::int32_t left, std::int32_t right, Work& work) const;
    void emit(std::string_view piece, std::vector<std::int32_t>& out) const;

    PieceMap map_;
    std::vector<float> scores_;
    std::int32_t unknown_;
    std::array<std::int32_t, 256> byte_ids_;
    std::array<bool, 256> joins_{};  // some piece has this byte right before U+2581: no cut between them
};

}  // namespace woolly
