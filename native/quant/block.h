// Parts of weight type blocks, and bit layouts within bytes.
//
// Included by files compiled for a specific instruction set, so every function here is inlined or constexpr: an old CPU
// must never run a copy compiled for another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#define WOOLLY_INLINE [[gnu::always_inline]] inline

namespace woolly {

// Storage of an activation row for a linear. Integer dots are exact, so a result depends only on this quantization and
// the order of blocks, which is the same in every kernel.
enum class Activation : uint8_t {
    f32,    // unchanged
    q8_32,  // int8, one scale and one sum per 32 columns
    q8_256  // int8, one scale per 256 columns, one sum per 16
};

// One part of a block. Packing interleaves it over the 16 rows of a panel, element by element.
enum class Piece : uint8_t {
    none,
    half,  // 2 bytes, a float16
    one,   // 1 byte
    two,   // 2 bytes
    word   // 4 bytes
};
struct Part {
    Piece piece;
    int at, bytes;  // in the block
};

// Packed block: the parts in order. Quants that are not 4 or 8 bits wide follow as fields (cpu/weights/fields.h).
struct Layout {
    Part parts[5];
    int field_bits = 0;  // 2, 3, 5 or 6; 0 if a part holds the quants
};
#define WOOLLY_PART(piece, block, member) \
    Part { Piece::piece, int(offsetof(block, member)), int(sizeof(block::member)) }

// Four bytes as one word: byte i is column i.
WOOLLY_INLINE uint32_t word(const uint8_t* p) {
    uint32_t w;
    std::memcpy(&w, p, 4);
    return w;
}
// Bits [shift, shift + n) of each byte.
WOOLLY_INLINE uint32_t bits(uint32_t w, int shift, int n) { return (w >> shift) & (0x01010101u * ((1u << n) - 1)); }
// The four lowest bits, one to each byte.
WOOLLY_INLINE uint32_t spread(uint32_t four) { return ((four & 15) * 0x00204081u) & 0x01010101u; }
// Columns c to c + 3 of 32 nibbles: the low ones are columns 0 to 15.
WOOLLY_INLINE uint32_t nibbles(const uint8_t* p, int c) { return bits(word(p + c % 16), c / 16 * 4, 4); }

WOOLLY_INLINE uint32_t bits_of(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return bits;
}
WOOLLY_INLINE float float_of(uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}
// Branch-free, because entire rows are converted.
WOOLLY_INLINE float half_to_float(uint16_t h) {
    const uint32_t magnitude = h & 0x7fffu, sign = uint32_t(h & 0x8000u) << 16;
    // The product moves the exponent's bias from 15 to 127 and makes subnormal numbers normal.
    const uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f);
    const uint32_t special = 0x7f800000u | (magnitude << 13);
    return float_of(sign | (magnitude >= 0x7c00u ? special : finite));
}

struct Half {
    uint8_t bytes[2];
    WOOLLY_INLINE uint16_t bits() const {
        uint16_t h;
        std::memcpy(&h, bytes, 2);
        return h;
    }
    WOOLLY_INLINE float value() const { return half_to_float(bits()); }
    WOOLLY_INLINE bool is_finite() const { return (bits() & 0x7c00u) != 0x7c00u; }
};

// Bytes of a packed block per row: of all parts, or only of those before the quants.
consteval int part_bytes(Layout layout, bool all) {
    int sum = 0, last = 0;
    for (const Part& part : layout.parts)
        if (part.piece != Piece::none) sum += last = part.bytes;
    return all || layout.field_bits != 0 ? sum : sum - last;
}

}  // namespace woolly
