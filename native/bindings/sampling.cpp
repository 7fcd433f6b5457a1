#include "sampling/sampling.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "bindings/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace woolly {

namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableFloats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableInts = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Calls of up to 50 us keep the GIL: waiting to get it back could cost more than releasing it gains.
constexpr size_t short_list = 1024;

template <class Array>
auto span_of(const Array& array) {
    return std::span(array.data(), array.size());
}

bool bind_largest(const Floats& row, const WritableInts& ids, const WritableFloats& values) {
    if (ids.size() != values.size() || ids.size() > row.size())
        throw std::invalid_argument("ids and values must be equally long, and no longer than the row");
    if (ids.size() <= short_list) return largest(span_of(row), span_of(ids), span_of(values));
    const nb::gil_scoped_release release;
    return largest(span_of(row), span_of(ids), span_of(values));
}

void bind_mask(const Floats& row, const Words& words, const WritableFloats& out) {
    if (out.size() != row.size() || words.size() < (row.size() + 31) / 32)
        throw std::invalid_argument("row and out must be equally long, with a bit of words for each of their values");
    mask(span_of(row), span_of(words), span_of(out));
}

float bind_weigh(const Floats& row, float top, const WritableFloats& out) {
    if (out.size() != row.size()) throw std::invalid_argument("row and out must be equally long");
    if (row.size() <= short_list) return weigh(span_of(row), top, span_of(out));
    const nb::gil_scoped_release release;
    return weigh(span_of(row), top, span_of(out));
}

int64_t bind_draw(const Floats& row, float top, double u) {
    if (row.size() <= short_list) return draw(span_of(row), top, u);
    const nb::gil_scoped_release release;
    return draw(span_of(row), top, u);
}

void bind_logs(const Floats& values, const WritableFloats& out, bool base_2) {
    if (out.size() != values.size()) throw std::invalid_argument("values and out must be equally long");
    logs(span_of(values), base_2, span_of(out));
}

double bind_log_sum_exp(const Floats& row) {
    if (row.size() == 0) throw std::invalid_argument("the row is empty");
    const nb::gil_scoped_release release;
    return log_sum_exp(span_of(row));
}

void bind_repeat_lengths(const Ints& tokens, int32_t limit, const WritableInts& out) {
    if (out.size() != tokens.size()) throw std::invalid_argument("tokens and out must be equally long");
    repeat_lengths(span_of(tokens), limit, span_of(out));
}

}  // namespace

void bind_sampling(nb::module_& m) {
    m.def("largest", &bind_largest, "row"_a, "ids"_a, "values"_a,
          "Fills ids and values with the largest in descending order, equal ones by id; False where a value is NaN or "
          "inf, or all are -inf.");
    m.def("mask", &bind_mask, "row"_a, "words"_a, "out"_a,
          "out[i] = row[i] where bit i of the words is set, counted from the lowest of the first; else -inf.");
    m.def("weigh", &bind_weigh, "row"_a, "top"_a, "out"_a,
          "out[i] = exp(row[i] - top); gives their sum, added up in float32 from first to last.");
    m.def("draw", &bind_draw, "row"_a, "top"_a, "u"_a,
          "The first place at which the sum of exp(row[i] - top), in double, reaches u times the total.");
    m.def(
        "logs", &bind_logs, "values"_a, "out"_a, "base_2"_a = false,
        "out[i] = log(values[i]) in double, rounded to float32 once; by the C library, whatever NumPy was built for.");
    m.def("log_sum_exp", &bind_log_sum_exp, "row"_a, "log(sum(exp(row))) in double.");
    m.def("repeat_lengths", &bind_repeat_lengths, "tokens"_a, "limit"_a, "out"_a,
          "out[i]: how many tokens that end at i are also the last ones of all, at most limit.");
}

}  // namespace woolly
