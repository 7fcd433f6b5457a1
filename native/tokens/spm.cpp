#include "tokens/spm.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "tokens/utf8.h"

namespace woolly {

namespace {

constexpr auto kLowerScore = [](const auto& a, const auto& b) {
    return a.score < b.score || (a.score == b.score && a.left > b.left);
};

}  // namespace

SentencePieceBPE::SentencePieceBPE(Pieces pieces, std::int32_t unknown)
    : map_(pieces.texts, [&pieces](std::size_t id) { return pieces.in_text(id); }),
      scores_(std::move(pieces.scores)),
      unknown_(unknown),
      byte_ids_(pieces.byte_ids()) {
    for (std::size_t id = 0; id < pieces.texts->size(); ++id) {
        if (!pieces.in_text(id)) continue;
        const std::string_view text = (*pieces.texts)[id];
        for (auto at = text.find(kSpaceMark, 1); at != std::string_view::npos; at = text.find(kSpaceMark, at + 1))
            joins_[static_cast<unsigned char>(text[at - 1])] = true;
    }
}

std::vector<std::int32_t> SentencePieceBPE::encode(std::string_view text) const {
    std::vector<std::int32_t> out;
    out.reserve(text.size() / 3 + 4);
    Work work;
    // No merge crosses a position where no piece joins the character before a space to that space. Cutting there gives
    // the same ids, with queues of a few entries instead of one over the entire text.
    std::size_t start = 0;
    for (auto at = text.find(kSpaceMark, 1); at != std::string_view::npos; at = text.find(kSpaceMark, at + 1)) {
        if (joins_[static_cast<unsigned char>(text[at - 1])]) continue;
        encode_segment(text.substr(start, at - start), work, out);
        start = at;
    }
    encode_segment(text.substr(start), work, out);
    return out;
}

void SentencePieceBPE::encode_segment(std::string_view text, Work& work, std::vector<std::int32_t>& out) const {
    if (text.empty()) return;
    if (character_size(text, 0) == text.size()) return emit(text, out);
    work.symbols.clear();
    work.queue.clear();
    for (std::size_t offset = 0; offset < text.size();) {
        const std::size_t size = character_size(text, offset);
        const auto index = static_cast<std::int32_t>(work.symbols.size());
        const bool last = offset + size == text.size();
        work.symbols.push_back({offset, size, index - 1, last ? -1 : index + 1});
        offset += size;
    }
    for (std::int32_t right = 1; right < static_cast<std::int32_t>(work.symbols.size()); ++right)
        consider(text, right - 1, right, work);

    while (!work.queue.empty()) {
        std::pop_heap(work.queue.begin(), work.queue.end(), kLowerScore);
        const Pair pair = work.queue.back();
        work.queue.pop_back();
        Symbol& left = work.symbols[static_cast<std::size_t>(pair.left)];
        Symbol& right = work.symbols[static_cast<std::size_t>(pair.right)];
        if (left.size == 0 || right.size == 0 || left.size + right.size != pair.size) continue;
        left.size = pair.size;
        right.size = 0;
        left.next = right.next;
        if (right.next >= 0) work.symbols[static_cast<std::size_t>(right.next)].prev = pair.left;
        if (left.prev >= 0) consider(text, left.prev, pair.left, work);
        if (left.next >= 0) consider(text, pair.left, left.next, work);
    }
    for (std::int32_t i = 0; i >= 0; i = work.symbols[static_cast<std::size_t>(i)].next) {
        const Symbol& symbol = work.symbols[static_cast<std::size_t>(i)];
        emit(text.substr(symbol.start, symbol.size), out);
    }
}

void SentencePieceBPE::consider(std::string_view text, std::int32_t left, std::int32_t right, Work& work) const {
    const Symbol& first = work.symbols[static_cast<std::size_t>(left)];
    const std::size_t size = first.size + work.symbols[static_cast<std::size_t>(right)].size;
    const std::int32_t id = map_.find(text.substr(first.start, size));
    if (id == PieceMap::kNone) return;
    work.queue.push_back({scores_[static_cast<std::size_t>(id)], left, right, size});
    std::push_heap(work.queue.begin(), work.queue.end(), kLowerScore);
}

void SentencePieceBPE::emit(std::string_view piece, std::vector<std::int32_t>& out) const {
    if (const auto id = map_.find(piece); id != PieceMap::kNone) {
        out.push_back(id);
        return;
    }
    const auto byte_id = [this](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
    if (std::ranges::all_of(piece, [&](char c) { return byte_id(c) != PieceMap::kNone; })) {
        for (const char c : piece) out.push_back(byte_id(c));
        return;
    }
    if (unknown_ < 0) throw std::out_of_range(std::string(piece));
    out.push_back(unknown_);
}

}  // namespace woolly
