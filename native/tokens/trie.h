#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace woolly {

// Byte trie whose children are contiguous and sorted by label: built level by level from sorted keys.
class Trie {
  public:
    static constexpr std::int32_t kNone = -1;
    static constexpr std::uint32_t kRoot = 0;
    static constexpr std::uint32_t kMissing = 0;  // the root is nobody's child

    struct Node {
        std::uint32_t first = 0;     // index of the first child
        std::uint16_t children = 0;  // at most 256
        std::uint8_t label = 0;      // byte on the edge that leads here
        std::int32_t value = kNone;  // of the key that ends here
    };

    Trie() : Trie(std::vector<std::pair<std::string, std::int32_t>>()) {}

    // For duplicate keys the later value is kept. Empty keys are ignored.
    explicit Trie(std::vector<std::pair<std::string, std::int32_t>> keys) {
        std::ranges::stable_sort(keys, {}, &std::pair<std::string, std::int32_t>::first);
        struct Range {
            std::size_t begin, end, depth;
        };
        nodes_.emplace_back();
        std::vector<Range> ranges{{0, keys.size(), 0}};
        for (std::size_t n = 0; n < nodes_.size(); ++n) {
            auto [begin, end, depth] = ranges[n];
            for (; begin < end && keys[begin].first.size() == depth; ++begin)
                if (depth > 0) nodes_[n].value = keys[begin].second;
            nodes_[n].first = static_cast<std::uint32_t>(nodes_.size());
            while (begin < end) {
                const char label = keys[begin].first[depth];
                std::size_t stop = begin + 1;
                while (stop < end && keys[stop].first[depth] == label) ++stop;
                Node child;
                child.label = static_cast<std::uint8_t>(label);
                nodes_.push_back(child);
                ranges.push_back({begin, stop, depth + 1});
                ++nodes_[n].children;
                begin = stop;
            }
        }
        for (std::uint32_t i = 0; i < nodes_[kRoot].children; ++i) {
            const std::uint32_t child = nodes_[kRoot].first + i;
            roots_[nodes_[child].label] = child;
        }
    }

    const Node& node(std::uint32_t index) const { return nodes_[index]; }
    std::size_t size() const { return nodes_.size(); }

    // Child of `index` along `byte`, or kMissing.
    std::uint32_t step(std::uint32_t index, std::uint8_t byte) const {
        if (index == kRoot) return roots_[byte];
        const Node& parent = nodes_[index];
        const auto first = nodes_.begin() + parent.first;
        const auto last = first + parent.children;
        const auto it = std::lower_bound(first, last, byte, [](const Node& n, std::uint8_t b) { return n.label < b; });
        return it != last && it->label == byte ? static_cast<std::uint32_t>(it - nodes_.begin()) : kMissing;
    }

  private:
    std::vector<Node> nodes_;
    std::array<std::uint32_t, 256> roots_{};
};

}  // namespace woolly
