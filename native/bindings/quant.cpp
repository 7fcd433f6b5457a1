#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <optional>

#include "bindings/bindings.h"
#include "cpu/weights/pack.h"
#include "quant/decode.h"
#include "quant/encode.h"
#include "quant/types.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace woolly {

namespace {

using Source = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Target = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using Columns = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::pair<int, int64_t> bind_quantize_rows(int source_type, const Source& source, int64_t columns, int type, Target out,
                                           int threads, std::optional<Columns> importance) {
    const TypeInfo from = type_info(source_type), to = type_info(type);
    if (from.block == 0 || !can_quantize(type)) throw nb::value_error("no rows of this type");
    if (columns < 1 || columns % from.block != 0 || columns % to.block != 0) {
        throw nb::value_error("columns must be a whole number of blocks");
    }
    if (threads < 1 || threads > 1024) throw nb::value_error("threads must be 1 to 1024");
    const size_t bytes = row_bytes(from, columns), rows = source.size() / bytes;
    if (source.size() % bytes != 0 || out.size() != rows * row_bytes(to, columns)) {
        throw nb::value_error("source and out must hold the same whole number of rows");
    }
    if (importance && int64_t(importance->size()) != columns)
        throw nb::value_error("importance must have a number for each column");
    QuantizeResult result{};
    {
        nb::gil_scoped_release release;
        result = quantize_rows(source_type, source.data(), int64_t(rows), columns, type,
                               importance ? importance->data() : nullptr, out.data(), threads);
    }
    return {int(result.fault), result.row};
}

void bind_pack(int type, int64_t rows, int64_t columns, const Source& source, const Target& out,
               bool q4_k_in_row_pairs) {
    const TypeInfo info = type_info(type);
    if (info.block == 0 || rows < 1 || columns < 1 || columns % info.block != 0)
        throw nb::value_error("the matrix does not fit its type's blocks");
    const size_t stride = row_bytes(info, columns), panel = panel_bytes(info, columns);
    if (source.size() < stride * size_t(rows) || out.size() < panel * size_t((rows + kPanel - 1) / kPanel))
        throw nb::value_error("the arrays are too short for the matrix");
    const nb::gil_scoped_release release;
    for (int64_t r = 0; r < rows; r += kPanel)
        pack_panel(type, source.data() + size_t(r) * stride, stride, int(std::min<int64_t>(kPanel, rows - r)), columns,
                   q4_k_in_row_pairs, out.data() + size_t(r / kPanel) * panel);
}

void bind_dequantize_row(int type, const Source& source, int64_t columns,
                         nb::ndarray<float, nb::ndim<1>, nb::c_contig> out) {
    const TypeInfo info = type_info(type);
    if (info.block == 0 || columns % info.block != 0 || source.size() < row_bytes(info, columns) ||
        int64_t(out.size()) < columns)
        throw nb::value_error("the arrays do not fit the row");
    dequantize_row(type, source.data(), columns, out.data());
}

const char* name_of(Activation activation) {
    return activation == Activation::f32 ? "f32" : activation == Activation::q8_32 ? "q8_32" : "q8_256";
}

nb::dict weight_types() {
    nb::dict types;
    for (int id = 0; id < kWeightTypes; ++id) {
        const TypeInfo info = kTypes.of[id];
        if (info.block != 0) types[info.name] = nb::make_tuple(id, info.block, info.bytes, name_of(info.activation));
    }
    return types;
}

template <class Book>
nb::bytes bytes_of(const Book& book) {
    return nb::bytes(reinterpret_cast<const char*>(book.words), sizeof book.words);
}

nb::dict codebooks() {
    nb::dict books;
    books["IQ2_XXS"] = bytes_of(kIq2Xxs), books["IQ2_XS"] = bytes_of(kIq2Xs), books["IQ2_S"] = bytes_of(kIq2S);
    books["IQ3_XXS"] = bytes_of(kIq3Xxs), books["IQ3_S"] = bytes_of(kIq3S), books["IQ1"] = bytes_of(kIq1);
    return books;
}

}  // namespace

void bind_quantize(nb::module_& m) {
    m.def(
        "can_quantize", [](int type) { return can_quantize(type); }, "type"_a,
        "Whether rows can be written as this type.");
    m.def("types", &weight_types,
          "Weight types that the kernels compute with: name -> (id, columns per block, bytes per block, activations).");
    m.def("codebooks", &codebooks, "The points of the IQ types, a signed byte for each of their 8 (IQ3: 4) columns.");
    m.def("pack", &bind_pack, "type"_a, "rows"_a, "columns"_a, "source"_a, "out"_a, "q4_k_in_row_pairs"_a = false,
          "Pack a matrix into panels, as a program does.");
    m.def("dequantize_row", &bind_dequantize_row, "type"_a, "source"_a, "columns"_a, "out"_a,
          "Write one row as float32.");
    m.attr("PANEL_ROWS") = kPanel;
    m.def("quantize_rows", &bind_quantize_rows, "source_type"_a, "source"_a, "columns"_a, "type"_a, "out"_a,
          "threads"_a, "importance"_a = nb::none(),
          "Write rows as another type; returns a fault (0 none, 1 not finite, 2 too large) and the row of the first.");
}

}  // namespace woolly
