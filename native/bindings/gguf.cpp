#include "bindings/bindings.h"

namespace woolly {

void bind_gguf(nanobind::module_&) {}

}  // namespace woolly
