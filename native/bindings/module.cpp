// The Python module woolly._native: converts arguments, maps errors, holds no logic.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "machine/bandwidth.h"
#include "machine/features.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
    // An object that lives until the interpreter ends is not a leak, and a library does not print.
    nb::set_leak_warnings(false);
    m.attr("__version__") = WOOLLY_VERSION;
    m.def("cpu_features", &woolly::cpu_features,
          "Instruction-set extensions that this CPU and its operating system offer.");
    m.def(
        "measure_bandwidth",
        [](int threads, size_t megabytes) { return woolly::read_bandwidth(threads, megabytes * 1000000); },
        nb::arg("threads"), nb::arg("megabytes"), nb::call_guard<nb::gil_scoped_release>(),
        "GB/s at which this many threads together read memory.");
    woolly::bind_cache(m);
    woolly::bind_gguf(m);
    woolly::bind_program(m);
    woolly::bind_quantize(m);
    woolly::bind_sampling(m);
    woolly::bind_text(m);
}
