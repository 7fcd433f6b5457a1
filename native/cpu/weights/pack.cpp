#include "cpu/weights/pack.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu/weights/fields.h"

namespace woolly {

namespace {

template <int piece>
uint8_t* interleave(const uint8_t* const* rows, int bytes, uint8_t* out) {
    for (int i = 0; i < bytes; i += piece)
        for (int r = 0; r < kPanel; ++r, out += piece) std::memcpy(out, rows[r] + i, piece);
    return out;
}

template <class Block>
uint8_t* pack_part(const Block* const* blocks, Part part, uint8_t* out) {
    const uint8_t* rows[kPanel];
    for (int r = 0; r < kPanel; ++r) rows[r] = reinterpret_cast<const uint8_t*>(blocks[r]) + part.at;
    switch (part.piece) {
        case Piece::none:
            return out;
        case Piece::one:
            return interleave<1>(rows, part.bytes, out);
        case Piece::half:
        case Piece::two:
            return interleave<2>(rows, part.bytes, out);
        case Piece::word:
            return interleave<4>(rows, part.bytes, out);
    }
    return out;
}

template <int field_bits>
WOOLLY_INLINE void pack_words(const uint32_t* w, uint32_t* out) {
    if constexpr (field_bits == 2) pack_two_bits(w, out);
    if constexpr (field_bits == 3) pack_three_bits(w, out);
    if constexpr (field_bits == 5) pack_five_bits(w, out);
    if constexpr (field_bits == 6) pack_six_bits(w, out);
}

// With compile-time columns, Q5_K packs 1.5 times as fast as with variable shifts.
template <class Block, int field_bits, int... units>
void pack_fields(const Block* const* rows, uint8_t* out, std::integer_sequence<int, units...>) {
    constexpr int columns = field_columns(field_bits), vectors = columns * field_bits / 32;
    const auto pack_unit = [&]<int c>() {
        for (int r = 0; r < kPanel; ++r) {
            uint32_t words[columns / 4], packed[vectors];
            for (int v = 0; v < columns / 4; ++v) words[v] = rows[r]->four(c + 4 * v);
            pack_words<field_bits>(words, packed);
            for (int v = 0; v < vectors; ++v) std::memcpy(out + 64 * v + 4 * r, &packed[v], 4);
        }
        out += 64 * vectors;
    };
    (pack_unit.template operator()<columns * units>(), ...);
}

// Quants of Q4_K: groups of 32 columns in 4 vectors; in vector i lanes 0 to 7 are columns 8i to 8i + 3 of rows 0 to 7
// and 8 to 15, lanes 8 to 15 the next four columns.
void pack_row_pairs(const BlockQ4_K* const* rows, uint8_t* out) {
    for (int g = 0; g < 8; ++g)
        for (int i = 0; i < 4; ++i)
            for (int lane = 0; lane < kPanel; ++lane, out += 4) {
                const int column = 32 * g + 8 * i + 4 * (lane / 8);
                const uint32_t low = rows[lane % 8]->four(column);
                const uint32_t high = rows[lane % 8 + 8]->four(column) ^ 0x08080808u;
                const uint32_t both = low | high << 4;
                std::memcpy(out, &both, 4);
            }
}

template <class Block, int columns>
void pack_blocks(const uint8_t* source, size_t stride, int n_rows, int64_t n_blocks, bool in_row_pairs,
                 uint8_t* panel) {
    static constexpr Block zeros{};
    constexpr int field_bits = Block::layout().field_bits;
    constexpr bool is_q4_k = std::is_same_v<Block, BlockQ4_K>;
    Layout layout = Block::layout();
    if (is_q4_k && in_row_pairs) layout.parts[3] = {};
    for (int64_t b = 0; b < n_blocks; ++b, panel += kPanel * sizeof(Block)) {
        const Block* rows[kPanel];
        for (int r = 0; r < kPanel; ++r)
            rows[r] = r < n_rows ? reinterpret_cast<const Block*>(source + size_t(r) * stride) + b : &zeros;
        uint8_t* out = panel;
        for (const Part& part : layout.parts) out = pack_part(rows, part, out);
        if constexpr (field_bits != 0)
            pack_fields<Block, field_bits>(rows, out,
                                           std::make_integer_sequence<int, columns / field_columns(field_bits)>());
        if constexpr (is_q4_k)
            if (in_row_pairs) pack_row_pairs(rows, out);
    }
}

}  // namespace

void pack_panel(int ggml_type, const uint8_t* source, size_t stride, int n_rows, int64_t columns,
                bool q4_k_in_row_pairs, uint8_t* panel) {
    switch (WeightType(ggml_type)) {
#define WOOLLY_ROW(name, id, block, bytes, activation, kernel) \
    case WeightType::name:                                     \
        return pack_blocks<Block##name, block>(source, stride, n_rows, columns / block, q4_k_in_row_pairs, panel);
        WOOLLY_WEIGHT_TYPES(WOOLLY_ROW)
#undef WOOLLY_ROW
    }
}

bool finite_halves(const uint8_t* panel, size_t bytes) {
    uint16_t broken = 0;
    for (size_t i = 0; i < bytes; i += 2) {
        uint16_t half;
        std::memcpy(&half, panel + i, 2);
        broken |= uint16_t((half & 0x7c00) == 0x7c00);
    }
    return broken == 0;
}

}  // namespace woolly
