#include "quant/decode.h"

#include "quant/types.h"

namespace woolly {

namespace {

template <class Block, int columns>
void decode(const uint8_t* source, int64_t n_blocks, float* out) {
    const Block* blocks = reinterpret_cast<const Block*>(source);
    for (int64_t b = 0; b < n_blocks; ++b, out += columns) {
        // A copy: the compiler would reload bytes after each store to `out`.
        const Block block = blocks[b];
        if constexpr (columns == 1) {
            *out = block.value();
        } else {
            for (int c = 0; c < columns; c += 4) {
                const uint32_t four = block.four(c);
                for (int i = 0; i < 4; ++i) out[c + i] = block.value(c + i, int(four >> (8 * i) & 255));
            }
        }
    }
}

}  // namespace

void dequantize_row(int ggml_type, const uint8_t* source, int64_t columns, float* out) {
    switch (WeightType(ggml_type)) {
#define WOOLLY_ROW(name, id, block, bytes, activation, kernel) \
    case WeightType::name:                                     \
        return decode<Block##name, block>(source, columns / block, out);
        WOOLLY_WEIGHT_TYPES(WOOLLY_ROW)
#undef WOOLLY_ROW
    }
}

}  // namespace woolly
