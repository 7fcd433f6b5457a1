// Kernels of one ISA level, built over the primitives included before; targets/parts.h makes tables of them.

// clang-format off: each header needs the previous ones
#include "cpu/kernels/generic/loops.h"
#include "cpu/weights/fields.h"
#include "cpu/kernels/generic/blocks32.h"
#include "cpu/kernels/generic/k_quants.h"
#include "cpu/kernels/generic/codebooks.h"
#include "cpu/kernels/generic/blocks32_many_rows.h"
#include "cpu/kernels/generic/k_quants_many_rows.h"
#include "cpu/kernels/generic/blocks64.h"
#include "cpu/kernels/generic/sums.h"
#include "cpu/kernels/generic/floats.h"
#include "cpu/kernels/generic/vectors.h"
#include "cpu/kernels/generic/kv_blocks.h"
#include "cpu/kernels/generic/products.h"
#include "cpu/kernels/generic/attention.h"
// clang-format on

namespace woolly::WOOLLY_TARGET {

// Processes eight, four, two or one row at a time, up to the level's register limit (kMaxRows). Types with expensive
// lookups run row by row: opened panels already pay off for two rows.
template <class Type>
void dot_any(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, int n_rows, float* tile) {
    constexpr int most = Type::one_by_one ? 1 : kMaxRows;
    int m = 0;
    if constexpr (most >= 8)
        for (; m + 8 <= n_rows; m += 8) Type::template dot<8>(panel, n_columns, rows + m, tile + 16 * m);
    if constexpr (most >= 4)
        for (; m + 4 <= n_rows; m += 4) Type::template dot<4>(panel, n_columns, rows + m, tile + 16 * m);
    if constexpr (most >= 2)
        for (; m + 2 <= n_rows; m += 2) Type::template dot<2>(panel, n_columns, rows + m, tile + 16 * m);
    for (; m < n_rows; ++m) Type::template dot<1>(panel, n_columns, rows + m, tile + 16 * m);
}

template <class Open>
void dot_wide(const uint8_t* open, int64_t n_blocks, const ActivationRow* rows, int64_t first, int n_rows, float* acc,
              Ahead& ahead) {
    constexpr int half = kWideRows / 2;
    int m = 0;
    for (; m + kWideRows <= n_rows; m += kWideRows)
        Open::template dot<kWideRows>(open, n_blocks, rows + m, first, acc + 16 * m, ahead);
    if constexpr (half > 1)
        for (; m + half <= n_rows; m += half)
            Open::template dot<half>(open, n_blocks, rows + m, first, acc + 16 * m, ahead);
    if constexpr (kWideRows > 1)
        for (; m < n_rows; ++m) Open::template dot<1>(open, n_blocks, rows + m, first, acc + 16 * m, ahead);
}

// Super-blocks without minima share one opened format: one part of a level holds this code for all parts
// (targets/parts.h).
#if defined(WOOLLY_ONLY_ternary) && !defined(WOOLLY_DIFFERENCE)
#define WOOLLY_SHARED template
#elif defined(WOOLLY_ONLY) && !defined(WOOLLY_DIFFERENCE)
#define WOOLLY_SHARED extern template
#endif
#if defined(WOOLLY_SHARED)
WOOLLY_SHARED void dot_wide<OpenedOf<IQ4_XS>>(const uint8_t*, int64_t, const ActivationRow*, int64_t, int, float*,
                                              Ahead&);
WOOLLY_SHARED void dot_wide<OpenedOf<IQ2_S>>(const uint8_t*, int64_t, const ActivationRow*, int64_t, int, float*,
                                             Ahead&);
#endif

// The families of weight types, as the rows of quant/types.h name them: `dot` computes few rows, `many` many rows with
// panels that `Open` opened. A packed block has `columns` of each row and takes `bytes`.
template <class Type>
struct Blocks32 {
    using Open = Open32<Type>;
    static constexpr int columns = 32, bytes = Type::bytes;
    static constexpr bool one_by_one = false;
    static constexpr auto many = dot_wide<typename Open::Opened>;
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        dot_blocks32<Type, M>(panel, columns, rows, tile);
    }
};
template <class Type>
struct Blocks64 {
    using Open = Open64<Type>;
    static constexpr int columns = 64, bytes = Type::bytes;
    static constexpr bool one_by_one = false;
    static constexpr auto many = dot_wide<Open>;
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        dot_blocks64<Type, M>(panel, columns, rows, tile);
    }
};
template <class Type>
struct Blocks256 {
    using Open = Open256<Type>;
    static constexpr int columns = 256, bytes = Type::bytes;
    static constexpr bool one_by_one = Type::one_by_one;
    static constexpr auto many = dot_wide<typename Open::Opened>;
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        dot_blocks256<Type, M>(panel, columns, rows, tile);
    }
};
template <class Type>
struct Floats {
    using Open = OpenFloats<Type>;
    static constexpr int columns = 1, bytes = Type::bytes;
    static constexpr bool one_by_one = false;
    static constexpr auto many = Open::dot;
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        dot_floats<Type, M>(panel, columns, rows, tile);
    }
};

// Sets the kernels for many rows, over panels opened by `Open`.
template <class Open>
constexpr void set_wide(KernelTable& t, WeightType type, decltype(Wide::dot) dot) {
    const TypeInfo info = kTypes.of[int(type)];
    t.wide[int(type)] = {Open::open, dot, info.block, info.bytes * kPanel, Open::bytes};
}

// Sets the kernels for few rows and for many.
template <class Kernel>
constexpr void set_kernel(KernelTable& t, WeightType type) {
    t.dot[int(type)] = dot_any<Kernel>;
    set_wide<typename Kernel::Open>(t, type, Kernel::many);
}

}  // namespace woolly::WOOLLY_TARGET
