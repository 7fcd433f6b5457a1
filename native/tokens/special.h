#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tokens/trie.h"

namespace woolly {

struct SpecialToken {
    std::string text;
    std::int32_t id;
    bool always;  // matched even if control tokens are not parsed
    bool lstrip;  // strips the whitespace before it
    bool rstrip;  // strips the whitespace after it
};

// Splits a text at its special tokens. Longer tokens are matched before shorter ones anywhere in the text, the lower id
// before the higher among equals, each from left to right: overlaps depend on this order.
//
// One Aho-Corasick pass finds the longest token that ends at each byte; then one pass per length of a found token.
// Thousands of tokens cost nothing if none occurs, and a text of tokens alone stays linear.
class SpecialSplitter {
  public:
    using Fragment = std::tuple<std::size_t, std::size_t, std::int32_t>;  // begin, end, id or -1 for text

    explicit SpecialSplitter(std::vector<SpecialToken> tokens) : tokens_(std::move(tokens)) {
        std::erase_if(tokens_, [](const SpecialToken& t) { return t.text.empty(); });
        std::ranges::stable_sort(tokens_, [](const SpecialToken& a, const SpecialToken& b) {
            return a.text.size() != b.text.size() ? a.text.size() > b.text.size() : a.id < b.id;
        });
        std::vector<std::pair<std::string, std::int32_t>> keys;
        for (std::size_t rank = tokens_.size(); rank-- > 0;)  // for duplicates the first rank is kept
            keys.emplace_back(tokens_[rank].text, static_cast<std::int32_t>(rank));
        trie_ = Trie(std::move(keys));
        link();
    }

    // Fragments in order, without stripped whitespace. A text without special tokens is one fragment.
    std::vector<Fragment> split(std::string_view text, bool parse_control) const {
        std::vector<std::int32_t> ends;  // per byte: rank of the longest token ending there that is not tried yet
        std::vector<std::size_t> lengths;
        if (!scan(text, parse_control, ends, lengths)) {
            return text.empty() ? std::vector<Fragment>{} : std::vector<Fragment>{{0, text.size(), -1}};
        }
        std::vector<Fragment> placed;
        std::vector<bool> taken(text.size(), false);
        for (const std::size_t length : lengths) place(text, parse_control, length, ends, taken, placed);
        return fill(text, taken, placed);
    }

  private:
    // Aho-Corasick: fail_ is the longest proper suffix in the trie, output_ the longest suffix that is a
    // token.
    void link() {
        fail_.assign(trie_.size(), Trie::kRoot);
        output_.assign(trie_.size(), Trie::kNone);
        shorter_.assign(tokens_.size(), Trie::kNone);
        for (std::uint32_t n = 0; n < trie_.size(); ++n) {  // breadth first: parents precede their children
            const Trie::Node& node = trie_.node(n);
            if (n != Trie::kRoot) {
                const std::int32_t suffix = output_[fail_[n]];
                output_[n] = node.value != Trie::kNone ? node.value : suffix;
                if (node.value != Trie::kNone) shorter_[static_cast<std::size_t>(node.value)] = suffix;
            }
            for (std::uint32_t c = node.first; c < node.first + node.children; ++c)
                if (n != Trie::kRoot) fail_[c] = advance(fail_[n], trie_.node(c).label);
        }
    }

    std::uint32_t advance(std::uint32_t state, std::uint8_t byte) const {
        for (;;) {
            const std::uint32_t next = trie_.step(state, byte);
            if (next != Trie::kMissing) return next;
            if (state == Trie::kRoot) return Trie::kRoot;
            state = fail_[state];
        }
    }

    std::int32_t skip(std::int32_t rank, bool parse_control) const {
        while (rank != Trie::kNone && !parse_control && !tokens_[static_cast<std::size_t>(rank)].always)
            rank = shorter_[static_cast<std::size_t>(rank)];
        return rank;
    }

    bool scan(std::string_view text, bool parse_control, std::vector<std::int32_t>& ends,
              std::vector<std::size_t>& lengths) const {
        std::vector<bool> seen(tokens_.size(), false);
        std::uint32_t state = Trie::kRoot;
        for (std::size_t i = 0; i < text.size(); ++i) {
            state = advance(state, static_cast<std::uint8_t>(text[i]));
            std::int32_t rank = skip(output_[state], parse_control);
            if (rank == Trie::kNone) continue;
            if (ends.empty()) ends.assign(text.size(), Trie::kNone);
            ends[i] = rank;
            // A visited token has its shorter suffixes visited, too.
            for (; rank != Trie::kNone && !seen[static_cast<std::size_t>(rank)];
                 rank = skip(shorter_[static_cast<std::size_t>(rank)], parse_control)) {
                seen[static_cast<std::size_t>(rank)] = true;
                lengths.push_back(tokens_[static_cast<std::size_t>(rank)].text.size());
            }
        }
        std::ranges::sort(lengths, std::greater<>());
        lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
        return !lengths.empty();
    }

    void place(std::string_view text, bool parse_control, std::size_t length, std::vector<std::int32_t>& ends,
               std::vector<bool>& taken, std::vector<Fragment>& placed) const {
        std::vector<std::pair<std::int32_t, std::size_t>> found;  // rank, end
        for (std::size_t last = length - 1; last < text.size(); ++last) {
            std::int32_t& rank = ends[last];
            if (rank == Trie::kNone) continue;
            if (tokens_[static_cast<std::size_t>(rank)].text.size() != length) continue;
            found.emplace_back(rank, last + 1);
            rank = skip(shorter_[static_cast<std::size_t>(rank)], parse_control);
        }
        std::ranges::sort(found);
        for (const auto& [rank, end] : found) {
            const std::size_t begin = end - length;
            // Earlier matches are at least as long, so that an overlap covers one of the two ends.
            if (taken[begin] || taken[end - 1]) continue;
            const SpecialToken& token = tokens_[static_cast<std::size_t>(rank)];
            std::size_t from = begin;
            std::size_t to = end;
            while (token.lstrip && from > 0 && !taken[from - 1] && is_space(text[from - 1])) --from;
            while (token.rstrip && to < text.size() && !taken[to] && is_space(text[to])) ++to;
            std::fill(taken.begin() + static_cast<std::ptrdiff_t>(from),
                      taken.begin() + static_cast<std::ptrdiff_t>(to), true);
            placed.emplace_back(begin, end, token.id);
        }
    }

    static std::vector<Fragment> fill(std::string_view text, const std::vector<bool>& taken,
                                      std::vector<Fragment> placed) {
        for (std::size_t i = 0; i < text.size();) {
            std::size_t stop = i;
            while (stop < text.size() && !taken[stop]) ++stop;
            if (stop > i) placed.emplace_back(i, stop, -1);
            i = stop + 1;
        }
        std::ranges::sort(placed);
        return placed;
    }

    static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

    std::vector<SpecialToken> tokens_;  // in matching order: index = rank
    Trie trie_;
    std::vector<std::uint32_t> fail_;
    std::vector<std::int32_t> output_;   // per node: rank or kNone
    std::vector<std::int32_t> shorter_;  // per rank: rank of its longest proper suffix that is a token
};

}  // namespace woolly
