// Rows of weights as f32: what embedding lookups and quantizing from another type need.
#pragma once

#include <cstdint>

namespace woolly {

// Writes one row as f32, with the bits of the NumPy decoders (woolly/quant/decode.py). `columns` is a multiple of the
// type's block.
void dequantize_row(int ggml_type, const uint8_t* source, int64_t columns, float* out);

}  // namespace woolly
