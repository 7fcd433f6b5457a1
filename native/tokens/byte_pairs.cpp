#include "tokens/byte_pairs.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

#include "tokens/utf8.h"

namespace woolly {

namespace {

constexpr auto kHigherRank = [](const auto& a, const auto& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
};

std::string name_of_byte(std::size_t byte) {
    constexpr std::string_view digits = "0123456789ABCDEF";
    return std::string("<0x") + digits[byte >> 4] + digits[byte & 15] + '>';
}

}  // namespace

BytePairs::BytePairs(std::shared_ptr<const PieceMap> tokens, const Texts& merges, const Texts& byte_characters,
                     bool byte_level, bool ignore_merges, std::int32_t unknown)
    : tokens_(std::move(tokens)), byte_level_(byte_level), ignore_merges_(ignore_merges), unknown_(unknown) {
    if (byte_characters.size() != characters_.size()) throw std::invalid_argument("every byte needs one character");
    read_merges(merges);
    for (std::size_t byte = 0; byte < characters_.size(); ++byte) {
        characters_[byte] = byte_characters[byte];
        // A character that is not a token may still be part of a merge.
        byte_ids_[byte] = byte_level_ ? lookup(characters_[byte]) : tokens_->find(name_of_byte(byte));
    }
}

void BytePairs::read_merges(const Texts& merges) {
    mask_ = std::bit_ceil(merges.size() + merges.size() / 2 + 2) - 1;
    rules_.resize(mask_ + 1);
    std::string joined;
    for (std::size_t i = 0; i < merges.size(); ++i) {
        const std::string_view merge = merges[i];
        const std::size_t space = merge.find(' ', 1);  // the left piece may start with a space itself
        if (space == std::string_view::npos || space + 1 == merge.size())
            throw std::invalid_argument(std::to_string(i));
        const std::string_view left = merge.substr(0, space);
        const std::string_view right = merge.substr(space + 1);
        joined.assign(left).append(right);
        // A piece that is not a token may still become part of one in a later merge.
        const std::uint64_t pair = pair_of(id_of_step(left), id_of_step(right));
        const std::int32_t id = id_of_step(joined);
        if (Rule& rule = rules_[locate(pair)]; rule.pair == kFree) rule = {pair, static_cast<std::int32_t>(i), id};
    }
}

std::int32_t BytePairs::id_of_step(std::string_view text) {
    if (const std::int32_t id = lookup(text); id != kNone) return id;
    const auto id = static_cast<std::int32_t>(tokens_->texts().size() + steps_.size());
    steps_.emplace_back(text);
    ids_of_steps_.emplace(text, id);
    return id;
}

std::int32_t BytePairs::lookup(std::string_view text) const {
    const std::int32_t id = tokens_->find(text);
    if (id != kNone || ids_of_steps_.empty()) return id;
    const auto found = ids_of_steps_.find(std::string(text));
    return found == ids_of_steps_.end() ? kNone : found->second;
}

std::size_t BytePairs::locate(std::uint64_t pair) const {
    std::uint64_t h = pair * 0x9E3779B97F4A7C15ull;
    h ^= h >> 32;
    for (std::size_t i = h & mask_;; i = (i + 1) & mask_)
        if (rules_[i].pair == pair || rules_[i].pair == kFree) return i;
}

const BytePairs::Rule* BytePairs::rule(std::int32_t left, std::int32_t right) const {
    if (left == kNone || right == kNone) return nullptr;
    const Rule& found = rules_[locate(pair_of(left, right))];
    return found.pair == kFree ? nullptr : &found;
}

std::vector<std::int32_t> BytePairs::encode(const std::vector<std::string_view>& words) const {
    std::vector<std::int32_t> out;
    out.reserve(words.size() * 2);
    Work work;
    for (const std::string_view word : words) encode_word(word, work, out);
    return out;
}

void BytePairs::encode_word(std::string_view word, Work& work, std::vector<std::int32_t>& out) const {
    if (ignore_merges_) {
        if (byte_level_) {
            work.written.clear();
            for (const char c : word) work.written += characters_[static_cast<unsigned char>(c)];
        }
        if (const std::int32_t id = lookup(byte_level_ ? work.written : word); id != kNone) return emit(id, out);
    }
    work.symbols.clear();
    work.queue.clear();
    add_symbols(word, work);
    if (work.symbols.empty()) return;
    work.symbols.back().next = -1;
    for (std::int32_t left = 0; left + 1 < static_cast<std::int32_t>(work.symbols.size()); ++left) consider(left, work);
    while (!work.queue.empty()) {
        std::pop_heap(work.queue.begin(), work.queue.end(), kHigherRank);
        const Candidate best = work.queue.back();
        work.queue.pop_back();
        Symbol& left = work.symbols[static_cast<std::size_t>(best.left)];
        if (left.next < 0) continue;
        Symbol& right = work.symbols[static_cast<std::size_t>(left.next)];
        // Stale if the merge of the two has another result by now.
        const Rule* found = rule(left.id, right.id);
        if (found == nullptr || found->id != best.id) continue;
        left.id = best.id;
        left.next = std::exchange(right.next, kGone);
        if (left.next >= 0) work.symbols[static_cast<std::size_t>(left.next)].prev = best.left;
        if (left.prev >= 0) consider(left.prev, work);
        if (left.next >= 0) consider(best.left, work);
    }
    for (std::int32_t i = 0; i >= 0; i = work.symbols[static_cast<std::size_t>(i)].next)
        emit(work.symbols[static_cast<std::size_t>(i)].id, out);
}

void BytePairs::add_symbols(std::string_view word, Work& work) const {
    const auto add = [&work](std::int32_t id) {
        const auto index = static_cast<std::int32_t>(work.symbols.size());
        work.symbols.push_back({id, index - 1, index + 1});
    };
    if (byte_level_) {
        for (const char c : word) add(byte_ids_[static_cast<unsigned char>(c)]);
        return;
    }
    for (std::size_t at = 0; at < word.size();) {
        const std::string_view character = word.substr(at, character_size(word, at));
        at += character.size();
        const std::int32_t id = lookup(character);
        if (id == kNone && has_bytes(character)) {
            for (const char c : character) add(byte_ids_[static_cast<unsigned char>(c)]);
        } else {
            add(id);
        }
    }
}

bool BytePairs::has_bytes(std::string_view character) const {
    return !byte_level_ &&
           std::ranges::all_of(character, [this](char c) { return byte_ids_[static_cast<unsigned char>(c)] != kNone; });
}

void BytePairs::consider(std::int32_t left, Work& work) const {
    const Symbol& first = work.symbols[static_cast<std::size_t>(left)];
    const Rule* found = rule(first.id, work.symbols[static_cast<std::size_t>(first.next)].id);
    if (found == nullptr) return;
    work.queue.push_back({found->rank, left, found->id});
    std::push_heap(work.queue.begin(), work.queue.end(), kHigherRank);
}

void BytePairs::emit(std::int32_t id, std::vector<std::int32_t>& out) const {
    if (id != kNone && static_cast<std::size_t>(id) < tokens_->texts().size()) return out.push_back(id);
    if (id == kNone) return emit_unknown(out);
    // A step to a token that was not reached: its characters stay separate.
    const std::string_view text = steps_[static_cast<std::size_t>(id) - tokens_->texts().size()];
    for (std::size_t at = 0; at < text.size();) {
        const std::string_view character = text.substr(at, character_size(text, at));
        at += character.size();
        if (const std::int32_t known = tokens_->find(character); known != kNone) {
            out.push_back(known);
        } else if (has_bytes(character)) {
            for (const char c : character) out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
        } else {
            emit_unknown(out);
        }
    }
}

void BytePairs::emit_unknown(std::vector<std::int32_t>& out) const {
    if (unknown_ == kNone) throw std::out_of_range("a character without a token");
    out.push_back(unknown_);
}

}  // namespace woolly
