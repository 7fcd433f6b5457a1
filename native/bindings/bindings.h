#pragma once

#include <nanobind/nanobind.h>

namespace woolly {

// One function per family of bindings; each converts arguments, releases the GIL, maps errors.
void bind_cache(nanobind::module_& m);
void bind_gguf(nanobind::module_& m);
void bind_program(nanobind::module_& m);
void bind_quantize(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_text(nanobind::module_& m);

}  // namespace woolly
