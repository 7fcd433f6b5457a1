// All weight types, a row each: X(name, ggml's id, columns per block, bytes per block, activations, kernel). The block
// is Block##name in floats.h, blocks32.h, k_quants.h or codebooks.h; the kernel is a struct of the header with that
// name in cpu/kernels/generic. The list generates the table below, packing, decoding and the kernel table of every
// level. See docs/make/add-a-weight-type.md.
#pragma once

#include "quant/codebooks.h"
#include "quant/floats.h"
#include "quant/k_quants.h"

#define WOOLLY_WEIGHT_TYPES(X) WOOLLY_FLOATS(X) WOOLLY_BLOCKS_32(X) WOOLLY_BLOCKS_256(X) WOOLLY_CODEBOOKS(X)

namespace woolly {

enum class WeightType : uint8_t {
#define WOOLLY_ROW(name, id, columns, bytes, activation, kernel) name = id,
    WOOLLY_WEIGHT_TYPES(WOOLLY_ROW)
#undef WOOLLY_ROW
};

// A block has the file's size: packing neither drops nor adds bytes.
#define WOOLLY_ROW(name, id, columns, bytes, activation, kernel)                             \
    static_assert(sizeof(Block##name) == bytes && alignof(Block##name) == 1, "Block" #name); \
    static_assert(part_bytes(Block##name::layout(), true) + Block##name::layout().field_bits * columns / 8 == bytes);
WOOLLY_WEIGHT_TYPES(WOOLLY_ROW)
#undef WOOLLY_ROW

struct TypeInfo {
    const char* name;
    int block;  // columns per block; 0: type without kernels
    int bytes;  // per block and row
    Activation activation;
};

// Ids are below this.
constexpr int kWeightTypes = [] {
    int most = 0;
#define WOOLLY_ROW(name, id, columns, bytes, activation, kernel) most = id > most ? id : most;
    WOOLLY_WEIGHT_TYPES(WOOLLY_ROW)
#undef WOOLLY_ROW
    return most + 1;
}();

struct TypeTable {
    TypeInfo of[kWeightTypes];
};
inline constexpr TypeTable kTypes = [] {
    TypeTable t{};
#define WOOLLY_ROW(name, id, columns, bytes, activation, kernel) \
    t.of[id] = {#name, columns, bytes, Activation::activation};
    WOOLLY_WEIGHT_TYPES(WOOLLY_ROW)
#undef WOOLLY_ROW
    return t;
}();

WOOLLY_INLINE TypeInfo type_info(int ggml_type) {
    return ggml_type >= 0 && ggml_type < kWeightTypes ? kTypes.of[ggml_type] : TypeInfo{};
}

WOOLLY_INLINE size_t row_bytes(TypeInfo t, int64_t columns) { return size_t(columns / t.block) * size_t(t.bytes); }

}  // namespace woolly
