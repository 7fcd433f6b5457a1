// Quantizes rows of numbers, searching for the scales of least error.
#pragma once

#include <cstdint>

namespace woolly {

enum class Fault : int {
    none,
    not_finite,  // a number of the row is infinite or NaN
    too_large    // a number exceeds the range of the type
};

struct QuantizeResult {
    Fault fault;
    int64_t row;  // first invalid row
};

// True if rows can be encoded as this type.
bool can_quantize(int ggml_type);

// Encodes `n_rows` rows of `columns` numbers, stored as `source_type`, as consecutive rows of `type`, in `threads`
// threads; the bytes do not depend on the count. `columns` is a multiple of both types' blocks. `importance` weights
// the errors of each column; null: by magnitude.
QuantizeResult quantize_rows(int source_type, const uint8_t* source, int64_t n_rows, int64_t columns, int type,
                             const float* importance, uint8_t* out, int threads);

// Inputs of an encoder other than the block's numbers.
struct Importance {
    const float* columns;  // importance of the block's columns; null: unknown
    float mean_square;     // of the entire row
};

// One block of 256 columns of a k-quant or IQ4_XS. Scales beyond float16 become infinite.
void quantize_block_q2k(const float* x, Importance importance, uint8_t* out);
void quantize_block_q3k(const float* x, Importance importance, uint8_t* out);
void quantize_block_q4k(const float* x, Importance importance, uint8_t* out);
void quantize_block_q5k(const float* x, Importance importance, uint8_t* out);
void quantize_block_q6k(const float* x, Importance importance, uint8_t* out);
void quantize_block_iq4xs(const float* x, Importance importance, uint8_t* out);

// One block of 32 columns of IQ4_NL.
void quantize_block_iq4nl(const float* x, Importance importance, uint8_t* out);

// One block of 256 columns whose quants are points of a codebook.
void quantize_block_iq2xxs(const float* x, Importance importance, uint8_t* out);
void quantize_block_iq2xs(const float* x, Importance importance, uint8_t* out);
void quantize_block_iq2s(const float* x, Importance importance, uint8_t* out);
void quantize_block_iq3xxs(const float* x, Importance importance, uint8_t* out);
void quantize_block_iq3s(const float* x, Importance importance, uint8_t* out);
void quantize_block_iq1s(const float* x, Importance importance, uint8_t* out);
void quantize_block_iq1m(const float* x, Importance importance, uint8_t* out);

// One block of 256 ternary columns, of 32 of MXFP4 and of 64 of NVFP4.
void quantize_block_tq1(const float* x, Importance importance, uint8_t* out);
void quantize_block_tq2(const float* x, Importance importance, uint8_t* out);
void quantize_block_mxfp4(const float* x, Importance importance, uint8_t* out);
void quantize_block_nvfp4(const float* x, Importance importance, uint8_t* out);

}  // namespace woolly
