// Kernel table, with the contract of each kernel. Only plain data crosses it: the functions behind it are compiled once
// per instruction set and must not share code with other files.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/types.h"

namespace woolly {

constexpr int kPanel = 16;  // rows of a weight matrix that are packed and computed together

// One quantized row. For f32 only `x` is set.
struct ActivationRow {
    const float* x;
    const int8_t* q;       // [columns]
    const float* scale;    // [columns / 32 or / 256]
    const int32_t* sums;   // of q, [columns / 32 or / 16]
    const float* lows;     // q8_32: scale * sum, the contribution of a minimum of 1
    const int8_t* planes;  // q8_256: the sums as bytes, [columns / 256][kPlanes]
    bool ordinary;         // f32: each value is 0 or has a magnitude from 2^-60 to 2^28 (cpu/kernels/isa/neon_f16.h)
};

// Sums of 256 columns in bytes, sum = low + 64 * high: 16 low and 16 high bytes for runs of 16 columns, then 8 and 8
// for runs of 32 columns; then the total in 32 bits.
constexpr int kPlanes = 64, kPlanesAll = 48;

constexpr int kDotRows = 8;
// tile[m * 16 + row] = dot(panel row, activation m), for m < n_rows <= kDotRows.
// `panel` is packed (cpu/weights/pack.h), `columns` is the width of the matrix.
using PanelDot = void (*)(const uint8_t* panel, int64_t columns, const ActivationRow* rows, int n_rows, float* tile);

// Kernels for many rows. Weights of a panel are opened, kWideColumns columns at a time: converted once for all rows
// into the form used by the arithmetic. Null if a type or level has none.
struct Ahead;
struct Wide {
    void (*open)(const uint8_t* panel, int64_t n_blocks, uint8_t* to);
    // acc[m * 16 + row] += dot(opened blocks, columns of activation m from block `first` on), for m < n_rows. The rows
    // have a constant stride in memory. Called with the blocks in order on sums that start at zero, it is bit-identical
    // to PanelDot.
    void (*dot)(const uint8_t* open, int64_t n_blocks, const ActivationRow* rows, int64_t first, int n_rows, float* acc,
                Ahead& ahead);
    int block, bytes;  // columns of a block, and the bytes of it packed ...
    int open_bytes;    // ... and opened
};
constexpr int64_t kWideColumns = 1024;
// Packed weights that are opened next: prefetched line by line during the present computation.
struct Ahead {
    const uint8_t* at;
    const uint8_t* end;
};

// Kernels for many rows whose activations are packed in tiles: 16 rows by the columns of a block of the type, 256 or
// 32; floats have blocks of 256 columns, the last of which may be shorter, a multiple of 4. Weights are opened some
// blocks of some panels at a time. Null if a type or level has none.
struct GridBlocks {
    const uint8_t* open;  // [n_panels][n_blocks][Grid::open_bytes]
    int n_panels, n_blocks;
    const uint8_t* tiles;  // row tiles of the first block; those of the next block start tiles_step bytes later
    int64_t tiles_step;
    float* acc;  // [n_panels][n_tiles * 16][16], panels acc_step numbers apart
    int64_t acc_step;
    int last_columns;  // of the last block, which may be shorter for floats
};
// Packed panels, for few rows.
struct FewBlocks {
    const uint8_t* panels;  // packed blocks, panels panels_step bytes apart
    int64_t panels_step;
    int n_panels, n_blocks;
    const uint8_t* tiles;  // as in GridBlocks
    int64_t tiles_step;
    float* acc;
    int64_t acc_step;
    uint8_t* open;  // [kFewBytes]: buffer for opened blocks
};
constexpr int kFewRows = 32, kFewBytes = 3 * 1024 + 2 * 8192;
using FewDot = void (*)(const FewBlocks& blocks, int n_rows);
struct Grid {
    void (*open)(const uint8_t* block, int n_columns, uint8_t* to);
    // acc[panel][m][row] += dot(opened blocks of the panel's row, activation m), for m < n_rows; unspecified for the
    // other rows of their tiles, whose activations may hold any value. Called with the blocks in order on sums that
    // start at zero, it is bit-identical to PanelDot.
    void (*dot)(const GridBlocks& blocks, int n_rows);
    int columns, bytes, open_bytes;  // of a block, packed and opened
    int together;                    // preferred number of panels per call
    // Fused opening and dots for up to kFewRows rows, with the same sums. Null: none.
    FewDot few;
};
// A tile of q8_256: quants [4][16][64], scales [16], sums of 32 columns in 16 bits [16][8], of 16 columns [16][16].
constexpr int kTileRows = 16, kTileColumns = 256;
constexpr int kTileScales = 4096, kTileSums32 = kTileScales + 64, kTileSums16 = kTileSums32 + 256,
              kTileBytes = kTileSums16 + 512;
// A tile of q8_32: quants [16][32], scales [16], lows [16], sums less than 0 [16].
constexpr int kTile32Scales = 512, kTile32Lows = kTile32Scales + 64, kTile32Less = kTile32Lows + 64,
              kTile32Bytes = kTile32Less + 64;
// A tile of f32: 16 rows by 256 columns, [4][64][16], first the columns 0, 4, 8 and so on.
constexpr int kFloatColumns = 256, kTileF32Bytes = kFloatColumns * kTileRows * 4;
constexpr int tile_bytes(Activation kind) {
    return kind == Activation::f32 ? kTileF32Bytes : kind == Activation::q8_32 ? kTile32Bytes : kTileBytes;
}

// Types of KV cache, a row each: X(name, struct in generic/kv_blocks.h, bytes of 32 numbers with their scales, column
// alignment of heads). q4 stores rotated heads (cpu/ops/hadamard.h). See docs/make/add-a-kv-type.md.
#define WOOLLY_KV_TYPES(X) X(f32, KvF32, 128, 16) X(f16, KvF16, 64, 16) X(q8_0, KvQ8, 36, 32) X(q4, KvQ4, 18, 32)

#define WOOLLY_ROW(name, kept, bytes, columns) name,
enum class KvType : uint8_t { WOOLLY_KV_TYPES(WOOLLY_ROW) };
#undef WOOLLY_ROW

struct KvInfo {
    const char* name;
    int bytes, columns;
};
#define WOOLLY_ROW(name, kept, bytes, columns) KvInfo{#name, bytes, columns},
inline constexpr KvInfo kKvInfos[] = {WOOLLY_KV_TYPES(WOOLLY_ROW)};
#undef WOOLLY_ROW
inline constexpr int kKvTypes = int(sizeof kKvInfos / sizeof kKvInfos[0]);

// Attention in progress for several queries.
struct AttentionSums {
    float* out;  // [n_queries, v_dim]: sum of exp(score - max) * v
    float* max;  // [n_queries]
    float* sum;  // [n_queries]: sum of exp(score - max)
};

constexpr int kSplit = 128;        // positions per split: fixed, so that results do not depend on the threads
constexpr int kChunk = 64;         // positions opened at a time
constexpr int kTileQueries = 128;  // maximum queries whose scores are buffered together
constexpr size_t attention_scratch(int k_dim, int v_dim) {
    return size_t(kTileQueries * kSplit + kChunk * (k_dim + v_dim));
}

struct AttentionTile;

// Kernels of one cache type (cpu/kernels/generic/kv_blocks.h).
struct KvKernels {
    // Writes one token's K or V (head_dim values) into its slot of a block of 16 positions.
    void (*store_k)(const float* k, int head_dim, int slot, uint8_t* block);
    void (*store_v)(const float* v, int head_dim, int slot, uint8_t* block);
    // Converts `n` blocks from `block` on to f32: K in columns of kChunk positions, V position by position.
    void (*open_k)(const AttentionTile& tile, int block, int n, float* keys);
    void (*open_v)(const AttentionTile& tile, int block, int n, float* values);
    // Few queries from `query` on: scaled products with blocks [block, end) of K; weighted values of positions [from,
    // to) of the split, added to the sums. Rows of scores and of weights are kSplit numbers apart. Null if the type has
    // none.
    void (*score_few)(const AttentionTile& tile, int query, int n, int block, int end, float* scores);
    void (*add_few)(const AttentionTile& tile, int query, int n, int from, int to, const float* weights);
};

// Queries over one split of cached positions: rows of one sequence by the heads that share a KV head. Results are
// bit-identical to those of a single query.
struct AttentionTile {
    const float* const* q;  // [n_queries][k_dim], rotated and not scaled
    const int* first;       // [n_queries]: positions that are seen, exclusive of `last`; none if first >= last
    const int* last;
    const float* const* bias;  // [n_queries]: added to the score of each position; null: none
    const float* slopes;       // [n_queries]: decrease of scores per position of distance (ALiBi); null: none
    const int* positions;      // [n_queries]: of the query; only with slopes
    const float* const*
        terms;               // [n_queries][n_terms]: coefficients; their products with `rotations` are added to scores
    const float* rotations;  // [n_terms][kSplit]: by position of the split, shared by all queries
    int n_terms;             // 0 for none; only types of cache without score_few
    int n_queries;
    int k_dim, v_dim;  // columns of a head, padded to blocks of the cache types
    const KvKernels *k, *v;
    float scale;
    float softcap;
    const uint8_t* const* k_blocks;  // for each block of 16 positions from position `first_block * 16`
    const uint8_t* const* v_blocks;  // null if V is the first v_dim columns of K
    // [kSplit / 16]: blocks that the caller processes next, prefetched meanwhile; null: none.
    const uint8_t* const* next_k;
    const uint8_t* const* next_v;
    int first_block, n_blocks;  // at most kSplit / 16
    float* scratch;             // [attention_scratch(k_dim, v_dim)]
    AttentionSums sums;
};

// Epilogue of products of rows with complete panels: residual + (sum + bias) * scale, or silu(gate) * sum.
struct Ends {
    const float* sums;      // [n_panels][n_rows][kPanel], panels `step` numbers apart
    const float* gates;     // same layout; null if not gated
    const float* bias;      // [n_panels * kPanel]; null for none
    const float* residual;  // same layout as `to`; null: none
    float* to;              // [n_rows], `width` numbers apart
    int64_t step, width;
    int n_rows, n_panels;
    float scale;
};

// Norms, activations, quantization and attention.
struct RowKernels {
    int row_block;  // rows of a batch per opening of a panel, for all types

    // Quantizes one row of `columns` (a multiple of 32 or 256) values.
    void (*quantize_32)(const float* x, int64_t columns, int8_t* q, float* scale, int32_t* sums);
    void (*quantize_256)(const float* x, int64_t columns, int8_t* q, float* scale, int32_t* sums);
    // Computes the planes from the sums per 16 columns.
    void (*planes)(const int32_t* sums, int64_t columns, int8_t* planes);

    // y = x / rms(x) * weight over n columns. y may be x.
    void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);
    // y = silu(gate) * up. y may be gate or up.
    void (*swiglu)(const float* gate, const float* up, int64_t n, float* y);
    void (*end)(const Ends& ends);
    // y = gelu(x) with erf, tanh or a sigmoid, times `up` if it is not null. y may be x or up.
    void (*gelu_erf)(const float* x, const float* up, int64_t n, float* y);
    void (*gelu)(const float* x, const float* up, int64_t n, float* y);
    void (*gelu_quick)(const float* x, const float* up, int64_t n, float* y);

    KvKernels kv[kKvTypes];
    void (*attend)(const AttentionTile& tile);
    // Scores of the positions of all blocks: a row per query, rows `step` numbers apart; or, with weights, one row, the
    // sum over queries of weight * max(product, 0). Reads only q, k and the blocks of the tile.
    void (*rank)(const AttentionTile& tile, const float* weights, float* scores, int64_t step);
    // Merges the result of the next split into that of the earlier ones; call in order of splits.
    void (*merge)(const AttentionSums& to, const AttentionSums& next, int n_queries, int v_dim);
};

struct KernelTable : RowKernels {
    const char* name;

    PanelDot dot[kWeightTypes];  // null if a type has no kernel
    Wide wide[kWeightTypes];
    Grid grid[kWeightTypes];
    bool q4_k_in_row_pairs;   // Q4_K is packed in row pairs (cpu/weights/pack.h)
    bool f16_must_be_finite;  // F16 dot requires finite weights, and checks `ordinary` of activations
};

// Bytes of K (or of V) of one KV head in a block of 16 positions.
constexpr size_t kv_block_bytes(KvType type, int head_dim) {
    return size_t(head_dim) * 16 / 32 * size_t(kKvInfos[int(type)].bytes);
}

}  // namespace woolly
