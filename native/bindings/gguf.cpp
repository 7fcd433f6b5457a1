#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include "bindings/bindings.h"
#include "gguf/strings.h"
#include "machine/system.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace woolly {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const uint8_t> as_span(const Bytes& bytes) { return {bytes.data(), bytes.size()}; }

std::pair<uint64_t, uint64_t> bind_skip_strings(const Bytes& bytes, uint64_t offset, uint64_t count) {
    const std::span<const uint8_t> span = as_span(bytes);
    StringWalk walk{};
    {
        nb::gil_scoped_release release;
        walk = skip_strings(span, offset, count);
    }
    return {walk.end, walk.n_strings};
}

nb::list decode_strings(const Bytes& bytes, uint64_t offset, uint64_t count) {
    const std::span<const uint8_t> span = as_span(bytes);
    // Appended one by one, so that a count that the bytes cannot hold never becomes an allocation.
    nb::list strings;
    std::span<const uint8_t> text;
    for (uint64_t i = 0; i < count; ++i) {
        if (!read_string(span, offset, text)) {
            throw nb::value_error("a string reaches beyond the end of its buffer");
        }
        // surrogateescape keeps bytes that are not UTF-8, so that writing the text back restores them.
        PyObject* decoded = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(text.data()),
                                                 static_cast<Py_ssize_t>(text.size()), "surrogateescape");
        if (decoded == nullptr) {
            throw nb::python_error();
        }
        strings.append(nb::steal(decoded));
        offset += 8 + text.size();
    }
    return strings;
}

}  // namespace

void bind_gguf(nb::module_& m) {
    m.def(
        "watch_file", [](const Bytes& bytes) { return watch_file(bytes.data(), bytes.size()); }, "buffer"_a,
        "Let a mapped file that becomes shorter read as zeros instead of ending the process; returns a number for "
        "unwatch_file and is_file_lost.");
    m.def("unwatch_file", &unwatch_file, "watch"_a, "Forget a file, before it is unmapped.");
    m.def("is_file_lost", &is_file_lost, "watch"_a, "Whether a part that is gone was read.");
    m.def("skip_strings", &bind_skip_strings, "buffer"_a, "offset"_a, "count"_a,
          "Walk length-prefixed strings; returns the offset after the last whole one and how many were whole.");
    m.def("decode_strings", &decode_strings, "buffer"_a, "offset"_a, "count"_a,
          "Decode length-prefixed UTF-8 strings; bytes that are not UTF-8 become surrogate escapes.");
}

}  // namespace woolly
