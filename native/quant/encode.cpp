// Converts rows between types: encoders of the 32-column types, and distribution of rows among threads.
#include "quant/encode.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "quant/decode.h"
#include "quant/encode_f16.h"
#include "quant/encode_search.h"
#include "quant/types.h"

namespace woolly {

namespace {

float reciprocal(float scale) {
    const float inverse = 1 / scale;
    return std::isfinite(inverse) ? inverse : 0;
}

void put_half(uint8_t* out, float value) {
    const uint16_t half = float_to_half(value);
    std::memcpy(out, &half, 2);
}

void pack_nibbles(const uint8_t* levels, uint8_t* out) {
    for (int i = 0; i < 16; ++i) out[i] = uint8_t((levels[i] & 15) | (levels[i + 16] << 4));
}

void pack_fifth(const uint8_t* levels, uint8_t* out) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) bits |= uint32_t(levels[i] >> 4) << i;
    std::memcpy(out, &bits, 4);
}

// Scale and levels 0..2*half-1 such that the largest magnitude becomes level 0 exactly.
float symmetric(const float* x, int half, uint8_t* levels) {
    float largest = x[0];
    for (int i = 1; i < 32; ++i) {
        if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
    }
    const float scale = largest / float(-half), inverse = reciprocal(scale), middle = float(half) + 0.5f;
    for (int i = 0; i < 32; ++i) {
        const int level = int(x[i] * inverse + middle);
        levels[i] = uint8_t(level > 2 * half - 1 ? 2 * half - 1 : level);
    }
    return scale;
}

// Scale, minimum and levels 0..top that span the block from its minimum to its maximum.
void affine(const float* x, int top, uint8_t* out, uint8_t* levels) {
    float low = x[0], high = x[0];
    for (int i = 1; i < 32; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    const float scale = (high - low) / float(top), inverse = reciprocal(scale);
    for (int i = 0; i < 32; ++i) {
        const float level = (x[i] - low) * inverse + 0.5f;
        levels[i] = uint8_t(int(level > float(top) ? float(top) : level));
    }
    put_half(out, scale);
    put_half(out + 2, low);
}

// As `symmetric`, with the scale of least error weighted by the columns' importance.
float symmetric_by(const float* x, Importance importance, int half, uint8_t* levels) {
    float weights[32];
    weigh_columns<32>(x, importance.columns, importance.mean_square, weights);
    const float scale = half_to_float(float_to_half(fit_symmetric<32>(x, float(half), weights)));
    const float inverse = reciprocal(scale), middle = float(half);
    for (int i = 0; i < 32; ++i) {
        const float level = nearest(std::min(std::max(x[i] * inverse, -middle), middle - 1));
        levels[i] = uint8_t(int(level) + half);
    }
    return scale;
}

// As `affine`, with the line of least error weighted by the columns' importance.
void affine_by(const float* x, Importance importance, int top, uint8_t* out, uint8_t* levels) {
    float weights[32];
    weigh_columns<32>(x, importance.columns, importance.mean_square, weights);
    const Affine line = fit_affine<32>(x, weights, float(top), -0.9f, 36, 0.05f);
    put_half(out, line.scale);
    put_half(out + 2, -line.offset);
    const float low = half_to_float(float_to_half(-line.offset));
    const float inverse = reciprocal(half_to_float(float_to_half(line.scale)));
    for (int i = 0; i < 32; ++i)
        levels[i] = uint8_t(int(nearest(std::min(std::max((x[i] - low) * inverse, 0.0f), float(top)))));
}

float levels_symmetric(const float* x, Importance importance, int half, uint8_t* levels) {
    return importance.columns == nullptr ? symmetric(x, half, levels) : symmetric_by(x, importance, half, levels);
}

void levels_affine(const float* x, Importance importance, int top, uint8_t* out, uint8_t* levels) {
    return importance.columns == nullptr ? affine(x, top, out, levels) : affine_by(x, importance, top, out, levels);
}

// Eight bits need no search: importance would change little.
void q8_0(const float* x, Importance, uint8_t* out) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
    const float scale = largest / 127, inverse = reciprocal(scale);
    put_half(out, scale);
    for (int i = 0; i < 32; ++i) {
        // Half away from zero; adding 0.5 would round 0.49999997 up.
        const float scaled = x[i] * inverse;
        const int whole = int(scaled);
        out[2 + i] = uint8_t(int8_t(whole + int(2 * (scaled - float(whole)))));
    }
}

void q4_0(const float* x, Importance importance, uint8_t* out) {
    uint8_t levels[32];
    put_half(out, levels_symmetric(x, importance, 8, levels));
    pack_nibbles(levels, out + 2);
}

void q4_1(const float* x, Importance importance, uint8_t* out) {
    uint8_t levels[32];
    levels_affine(x, importance, 15, out, levels);
    pack_nibbles(levels, out + 4);
}

void q5_0(const float* x, Importance importance, uint8_t* out) {
    uint8_t levels[32];
    put_half(out, levels_symmetric(x, importance, 16, levels));
    pack_fifth(levels, out + 2);
    pack_nibbles(levels, out + 6);
}

void q5_1(const float* x, Importance importance, uint8_t* out) {
    uint8_t levels[32];
    levels_affine(x, importance, 31, out, levels);
    pack_fifth(levels, out + 4);
    pack_nibbles(levels, out + 8);
}

using Encoder = void (*)(const float* x, Importance importance, uint8_t* out);

// Encodes one block; null for floats, which have no blocks, and for read-only types.
Encoder encoder_of(int ggml_type) {
    switch (WeightType(ggml_type)) {
        case WeightType::Q4_0:
            return q4_0;
        case WeightType::Q4_1:
            return q4_1;
        case WeightType::Q5_0:
            return q5_0;
        case WeightType::Q5_1:
            return q5_1;
        case WeightType::Q8_0:
            return q8_0;
        case WeightType::IQ4_NL:
            return quantize_block_iq4nl;
        case WeightType::IQ4_XS:
            return quantize_block_iq4xs;
        case WeightType::Q2_K:
            return quantize_block_q2k;
        case WeightType::Q3_K:
            return quantize_block_q3k;
        case WeightType::Q4_K:
            return quantize_block_q4k;
        case WeightType::Q5_K:
            return quantize_block_q5k;
        case WeightType::Q6_K:
            return quantize_block_q6k;
        case WeightType::IQ2_XXS:
            return quantize_block_iq2xxs;
        case WeightType::IQ2_XS:
            return quantize_block_iq2xs;
        case WeightType::IQ2_S:
            return quantize_block_iq2s;
        case WeightType::IQ3_XXS:
            return quantize_block_iq3xxs;
        case WeightType::IQ3_S:
            return quantize_block_iq3s;
        case WeightType::IQ1_S:
            return quantize_block_iq1s;
        case WeightType::IQ1_M:
            return quantize_block_iq1m;
        case WeightType::TQ1_0:
            return quantize_block_tq1;
        case WeightType::TQ2_0:
            return quantize_block_tq2;
        case WeightType::MXFP4:
            return quantize_block_mxfp4;
        case WeightType::NVFP4:
            return quantize_block_nvfp4;
        default:
            return nullptr;
    }
}

// True if no float16 of a block is infinite, which large inputs cause.
template <class Block>
bool halves_fit(const uint8_t* block) {
    bool fit = true;
    constexpr Layout layout = Block::layout();
    for (const Part& part : layout.parts)
        if (part.piece == Piece::half) fit = fit && reinterpret_cast<const Half*>(block + part.at)->is_finite();
    return fit;
}

bool fits(int ggml_type, const uint8_t* block) {
    // Types whose scale is not stored as one float16.
    if (WeightType(ggml_type) == WeightType::IQ1_M)
        return std::isfinite(reinterpret_cast<const BlockIQ1_M*>(block)->scale());
    if (WeightType(ggml_type) == WeightType::NVFP4) return std::count(block, block + 4, uint8_t(127)) == 0;
    switch (WeightType(ggml_type)) {
#define WOOLLY_ROW(name, id, columns, bytes, activation, kernel) \
    case WeightType::name:                                       \
        return halves_fit<Block##name>(block);
        WOOLLY_WEIGHT_TYPES(WOOLLY_ROW)
#undef WOOLLY_ROW
    }
    return false;
}

bool all_finite(const float* x, int64_t columns) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < columns; ++i) {
        const uint32_t magnitude = bits_of(x[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest < 0x7f800000u;
}

Fault write_row(int type, TypeInfo info, const float* x, int64_t columns, const float* importance, uint8_t* out) {
    if (!all_finite(x, columns)) return Fault::not_finite;
    if (WeightType(type) == WeightType::F32) {
        std::memcpy(out, x, size_t(columns) * 4);
        return Fault::none;
    }
    const Encoder encode = encoder_of(type);
    if (encode == nullptr) {
        const bool is_f16 = WeightType(type) == WeightType::F16;
        const uint32_t exponent = is_f16 ? 0x7c00u : 0x7f80u;
        bool is_finite = true;
        for (int64_t i = 0; i < columns; ++i) {
            const uint16_t h = is_f16 ? float_to_half(x[i]) : float_to_bfloat(x[i]);
            is_finite = is_finite && (h & exponent) != exponent;
            std::memcpy(out + 2 * i, &h, 2);
        }
        return is_finite ? Fault::none : Fault::too_large;
    }
    float sum = 0;
    for (int64_t i = 0; importance != nullptr && i < columns; ++i) sum += x[i] * x[i];
    Importance of_block{importance, sum / float(columns)};
    for (int64_t b = 0; b < columns / info.block; ++b, x += info.block, out += info.bytes) {
        encode(x, of_block, out);
        if (importance != nullptr) of_block.columns += info.block;
        if (!fits(type, out)) return Fault::too_large;
    }
    return Fault::none;
}

}  // namespace

bool can_quantize(int ggml_type) { return type_info(ggml_type).block == 1 || encoder_of(ggml_type) != nullptr; }

QuantizeResult quantize_rows(int source_type, const uint8_t* source, int64_t n_rows, int64_t columns, int type,
                             const float* importance, uint8_t* out, int threads) {
    const TypeInfo from = type_info(source_type), to = type_info(type);
    const size_t source_bytes = row_bytes(from, columns), out_bytes = row_bytes(to, columns);
    const int64_t share = std::max<int64_t>(1, (1 << 14) / columns);  // rows taken at a time
    std::atomic<int64_t> next{0};
    std::vector<QuantizeResult> results(size_t(threads), {Fault::none, n_rows});
    // All memory is allocated here, where std::bad_alloc can still be reported.
    std::vector<std::vector<float>> rows(static_cast<size_t>(threads),
                                         std::vector<float>(static_cast<size_t>(columns)));
    auto work = [&](size_t worker) {
        QuantizeResult& result = results[worker];
        std::vector<float>& x = rows[worker];
        for (int64_t first; result.fault == Fault::none && (first = next.fetch_add(share)) < n_rows;) {
            for (int64_t row = first; row < std::min(first + share, n_rows); ++row) {
                dequantize_row(source_type, source + size_t(row) * source_bytes, columns, x.data());
                const Fault fault = write_row(type, to, x.data(), columns, importance, out + size_t(row) * out_bytes);
                if (fault != Fault::none) {
                    result = {fault, row};
                    break;
                }
            }
        }
    };
    std::vector<std::thread> others;
    others.reserve(size_t(threads));
    try {
        for (int i = 1; i < threads && i * share < n_rows; ++i) others.emplace_back(work, size_t(i));
    } catch (const std::system_error&) {
        // The system cannot start more threads: continue with the running ones.
    }
    work(0);
    for (std::thread& other : others) other.join();
    QuantizeResult first = results[0];
    for (const QuantizeResult& result : results) {
        if (result.fault != Fault::none && result.row < first.row) first = result;
    }
    return first;
}

}  // namespace woolly
