// Decodes rows of weights to f32, for embedding lookups and requantization.
#pragma once

#include <cstdint>

namespace woolly {

// Writes one row as f32, bit-identical to the NumPy decoders (woolly/quant/decode.py). `columns` is a multiple of the
// type's block.
void dequantize_row(int ggml_type, const uint8_t* source, int64_t columns, float* out);

}  // namespace woolly
