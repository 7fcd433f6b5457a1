// Every kernel, with its contract. Only plain data crosses this table: the functions behind it are compiled once per
// instruction set, and nothing of theirs may be shared with other files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace woolly {

constexpr int kPanel = 16;  // rows of a weight matrix that are packed and computed together

// How a row of activations is stored for a linear. Integer dots are exact, so all that decides the result of one
// output element is this quantization and the order of blocks, which is the same in every kernel.
enum class Activation : uint8_t {
    f32,    // as it is
    q8_32,  // int8, one scale and one sum per 32 columns
    q8_256  // int8, one scale per 256 columns, one sum per 16
};

// One quantized row. For f32 only `x` is set.
struct ActivationRow {
    const float* x;
    const int8_t* q;       // [columns]
    const float* scale;    // [columns / 32 or / 256]
    const int32_t* sums;   // of q, [columns / 32 or / 16]
    const float* lows;     // of q8_32: scale * sum, what a minimum of 1 contributes
    const int8_t* planes;  // of q8_256: the sums once more as bytes, [columns / 256][kPlanes]
    bool ordinary;         // of f32: each value is 0, or from 2^-60 to 2^28 in magnitude (kernels/isa/neon_halves.h)
};

// Sums of 256 columns in bytes, sum = low + 64 * high: 16 low ones and 16 high ones of 16 columns each, then 8 and 8
// of 32 columns each.
constexpr int kPlanes = 48;

// Storage types, by their ggml ids.
enum class WeightType : uint8_t {
    f32 = 0,
    f16 = 1,
    q4_0 = 2,
    q4_1 = 3,
    q5_0 = 6,
    q5_1 = 7,
    q8_0 = 8,
    q2_k = 10,
    q3_k = 11,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    iq4_nl = 20,
    iq4_xs = 23,
    bf16 = 30,
    mxfp4 = 39
};
constexpr int kWeightTypes = 40;

constexpr int kDotRows = 4;
// tile[m * 16 + row] = dot(panel row, activation m), for m < n_rows <= kDotRows.
// `panel` is packed (quant/pack.h says how), `columns` the matrix's.
using PanelDot = void (*)(const uint8_t* panel, int64_t columns, const ActivationRow* rows, int n_rows, float* tile);

// Kernels for many rows. The weights of a panel are opened, kWideColumns columns at a time: brought into the form that
// is computed with, once for all rows. Null where a type or level has none.
struct Ahead;
struct Wide {
    void (*open)(const uint8_t* panel, int64_t n_blocks, uint8_t* to);
    // acc[m * 16 + row] += dot(opened blocks, columns of activation m from block `first` on), for m < n_rows. The rows
    // lie in memory at equal distances. Called with the blocks in order, on sums that began as zeros, it gives what
    // PanelDot gives, to the bit.
    void (*dot)(const uint8_t* open, int64_t n_blocks, const ActivationRow* rows, int64_t first, int n_rows, float* acc,
                Ahead& ahead);
    int block, bytes;  // columns of a block, and the bytes of it packed ...
    int open_bytes;    // ... and opened
};
constexpr int64_t kWideColumns = 1024;
// Packed weights that are opened next: fetched line by line while the present ones are computed with.
struct Ahead {
    const uint8_t* at;
    const uint8_t* end;
};

enum class KvType : uint8_t { f32 = 0, f16 = 1, q8_0 = 8 };

// Queries over one range of cached positions: rows of one sequence by the heads that share a KV head. Each gets the
// bits that it gets alone.
struct AttentionTile {
    const float* const* q;  // [n_queries][head_dim], turned and not scaled
    const int* first;       // [n_queries]: positions that are seen, exclusive of `last`; none where first >= last
    const int* last;
    int n_queries;
    int head_dim;
    float scale;
    float softcap;
    const uint8_t* const* k_blocks;  // for each block of 16 positions from position `first_block * 16`
    const uint8_t* const* v_blocks;
    int first_block, n_blocks;
    float* scratch;  // [kTileQueries * 16 + 32 * head_dim]
    float* out;      // [n_queries, head_dim]: sum of exp(score - max) * v
    float* max;      // [n_queries]
    float* sum;      // [n_queries]: sum of exp(score - max)
};
constexpr int kTileQueries = 8;  // whose scores are held at a time

struct KernelTable {
    const char* name;

    PanelDot dot[kWeightTypes];  // null where a type has no kernel
    Wide wide[kWeightTypes];
    int row_block;  // rows of a batch for which a panel is opened once, for all types
    bool pairs;     // Q4_K is packed with rows in pairs (quant/pack.h)
    bool numbers;   // dot of F16 takes only weights that are numbers, and looks whether activations are ordinary

    // Quantizes one row of `columns` (a multiple of 32 or 256) values.
    void (*quantize_32)(const float* x, int64_t columns, int8_t* q, float* scale, int32_t* sums);
    void (*quantize_256)(const float* x, int64_t columns, int8_t* q, float* scale, int32_t* sums);
    // The planes of sums per 16 columns.
    void (*planes)(const int32_t* sums, int64_t columns, int8_t* planes);

    // y = x / rms(x) * weight over n columns. y may be x.
    void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);
    // y = silu(gate) * up. y may be gate or up.
    void (*swiglu)(const float* gate, const float* up, int64_t n, float* y);

    // Writes one token's K and V (head_dim values each) into its slot of a block of 16 positions.
    void (*store_k[3])(const float* k, int head_dim, int slot, uint8_t* block);
    void (*store_v[3])(const float* v, int head_dim, int slot, uint8_t* block);
    void (*attend[3])(const AttentionTile& tile);
};

// Index into store_k, store_v and attend.
constexpr int kv_index(KvType type) { return type == KvType::f32 ? 0 : type == KvType::f16 ? 1 : 2; }

// Bytes of K (or of V) of one KV head in a block of 16 positions.
constexpr size_t kv_block_bytes(KvType type, int head_dim) {
    const size_t n = size_t(head_dim) * 16;
    return type == KvType::f32 ? n * 4 : type == KvType::f16 ? n * 2 : n + n / 32 * 4;
}

}  // namespace woolly
