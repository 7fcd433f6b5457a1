#include "bindings/bindings.h"

namespace woolly {

void bind_text(nanobind::module_&) {}

}  // namespace woolly
