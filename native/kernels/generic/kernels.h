// The whole kernel table of one level, built over the primitives that were included before.

// clang-format off: each needs the ones before it
#include "kernels/generic/fields.h"
#include "kernels/generic/blocks32.h"
#include "kernels/generic/blocks256.h"
#include "kernels/generic/wide32.h"
#include "kernels/generic/wide256.h"
#include "kernels/generic/sums.h"
#include "kernels/generic/floats.h"
#include "kernels/generic/vectors.h"
#include "kernels/generic/cached.h"
#include "kernels/generic/attention.h"
// clang-format on

namespace woolly::WOOLLY_TARGET {

template <class Type>
struct Blocks32 {
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        dot_blocks32<Type, M>(panel, columns, rows, tile);
    }
};
template <class Type>
struct Blocks256 {
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        dot_blocks256<Type, M>(panel, columns, rows, tile);
    }
};
template <class Type>
struct Floats {
    template <int M>
    static void dot(const uint8_t* panel, int64_t columns, const ActivationRow* rows, float* tile) {
        dot_floats<Type, M>(panel, columns, rows, tile);
    }
};

// Rows are taken four, two or one at a time, as far as the level has registers for them (kMaxRows).
template <class Type>
void dot_any(const uint8_t* panel, int64_t n_columns, const ActivationRow* rows, int n_rows, float* tile) {
    int m = 0;
    if constexpr (kMaxRows >= 4)
        for (; m + 4 <= n_rows; m += 4) Type::template dot<4>(panel, n_columns, rows + m, tile + 16 * m);
    if constexpr (kMaxRows >= 2)
        for (; m + 2 <= n_rows; m += 2) Type::template dot<2>(panel, n_columns, rows + m, tile + 16 * m);
    for (; m < n_rows; ++m) Type::template dot<1>(panel, n_columns, rows + m, tile + 16 * m);
}

template <class Open>
void dot_wide(const uint8_t* open, int64_t n_blocks, const ActivationRow* rows, int64_t first, int n_rows, float* acc,
              Ahead& ahead) {
    int m = 0;
    for (; m + kWideRows <= n_rows; m += kWideRows)
        Open::template dot<kWideRows>(open, n_blocks, rows + m, first, acc + 16 * m, ahead);
    if constexpr (kWideRows > 4)
        for (; m + 4 <= n_rows; m += 4) Open::template dot<4>(open, n_blocks, rows + m, first, acc + 16 * m, ahead);
    if constexpr (kWideRows > 2)
        for (; m + 2 <= n_rows; m += 2) Open::template dot<2>(open, n_blocks, rows + m, first, acc + 16 * m, ahead);
    if constexpr (kWideRows > 1)
        for (; m < n_rows; ++m) Open::template dot<1>(open, n_blocks, rows + m, first, acc + 16 * m, ahead);
}

template <class Type>
constexpr Wide wide_32() {
    return {Open32<Type>::open, dot_wide<Open32<Type>>, 32, Type::bytes, Open32<Type>::bytes};
}
template <class Type>
constexpr Wide wide_256() {
    return {Open256<Type>::open, dot_wide<Open256<Type>>, 256, Type::bytes, Open256<Type>::bytes};
}

template <class Type>
constexpr Wide wide_floats() {
    return {OpenFloats<Type>::open, OpenFloats<Type>::dot, 1, Type::bytes, OpenFloats<Type>::bytes};
}

constexpr KernelTable make_table(const char* name) {
    KernelTable t{};
    t.name = name;
    t.row_block = 128;
    const auto set = [&](WeightType type, PanelDot dot) { t.dot[int(type)] = dot; };
    set(WeightType::f32, dot_any<Floats<LoadF32>>);
    set(WeightType::f16, dot_any<Floats<LoadF16>>);
    set(WeightType::bf16, dot_any<Floats<LoadBf16>>);
    set(WeightType::q4_0, dot_any<Blocks32<Q4_0>>);
    set(WeightType::q4_1, dot_any<Blocks32<Q4_1>>);
    set(WeightType::q5_0, dot_any<Blocks32<Q5_0>>);
    set(WeightType::q5_1, dot_any<Blocks32<Q5_1>>);
    set(WeightType::q8_0, dot_any<Blocks32<Q8_0>>);
    set(WeightType::iq4_nl, dot_any<Blocks32<IQ4_NL>>);
    set(WeightType::mxfp4, dot_any<Blocks32<MXFP4>>);
    set(WeightType::q2_k, dot_any<Blocks256<Q2_K>>);
    set(WeightType::q3_k, dot_any<Blocks256<Q3_K>>);
    set(WeightType::q4_k, dot_any<Blocks256<Q4_K>>);
    set(WeightType::q5_k, dot_any<Blocks256<Q5_K>>);
    set(WeightType::q6_k, dot_any<Blocks256<Q6_K>>);
    set(WeightType::iq4_xs, dot_any<Blocks256<IQ4_XS>>);
    const auto wide = [&](WeightType type, Wide kernels) { t.wide[int(type)] = kernels; };
    wide(WeightType::f32, wide_floats<LoadF32>());
    wide(WeightType::f16, wide_floats<LoadF16>());
    wide(WeightType::bf16, wide_floats<LoadBf16>());
    wide(WeightType::q4_0, wide_32<Q4_0>());
    wide(WeightType::q4_1, wide_32<Q4_1>());
    wide(WeightType::q5_0, wide_32<Q5_0>());
    wide(WeightType::q5_1, wide_32<Q5_1>());
    wide(WeightType::q8_0, wide_32<Q8_0>());
    wide(WeightType::iq4_nl, wide_32<IQ4_NL>());
    wide(WeightType::mxfp4, wide_32<MXFP4>());
    wide(WeightType::q2_k, wide_256<Q2_K>());
    wide(WeightType::q3_k, wide_256<Q3_K>());
    wide(WeightType::q4_k, wide_256<Q4_K>());
    wide(WeightType::q5_k, wide_256<Q5_K>());
    wide(WeightType::q6_k, wide_256<Q6_K>());
    wide(WeightType::iq4_xs, wide_256<IQ4_XS>());
    t.quantize_32 = quantize<32, 32>;
    t.quantize_256 = quantize<256, 16>;
    t.planes = planes;
    t.rms_norm = rms_norm;
    t.swiglu = swiglu;
    t.store_k[0] = KvF32::store_k, t.store_v[0] = KvF32::store_v, t.attend[0] = attend<KvF32>;
    t.store_k[1] = KvF16::store_k, t.store_v[1] = KvF16::store_v, t.attend[1] = attend<KvF16>;
    t.store_k[2] = KvQ8::store_k, t.store_v[2] = KvQ8::store_v, t.attend[2] = attend<KvQ8>;
    return t;
}

}  // namespace woolly::WOOLLY_TARGET
