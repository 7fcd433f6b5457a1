#include "quant/quantize.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include "bindings/bindings.h"
#include "quant/types.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace woolly {

namespace {

using Source = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Target = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::pair<int, int64_t> bind_quantize_rows(int source_type, const Source& source, int64_t columns, int type, Target out,
                                           int threads) {
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
    QuantizeResult result{};
    {
        nb::gil_scoped_release release;
        result = quantize_rows(source_type, source.data(), int64_t(rows), columns, type, out.data(), threads);
    }
    return {int(result.fault), result.row};
}

}  // namespace

void bind_quantize(nb::module_& m) {
    m.def(
        "can_quantize", [](int type) { return can_quantize(type); }, "type"_a,
        "Whether rows can be written as this type.");
    m.def("quantize_rows", &bind_quantize_rows, "source_type"_a, "source"_a, "columns"_a, "type"_a, "out"_a,
          "threads"_a,
          "Write rows as another type; returns a fault (0 none, 1 not finite, 2 too large) and the row of the first.");
}

}  // namespace woolly
