// Every native op, by name.
#pragma once

#include <memory>

#include "cpu/program/arguments.h"
#include "cpu/program/step.h"

namespace woolly {

// Throws std::invalid_argument for an op that is not in the table, or arguments that do not fit the op.
std::unique_ptr<Step> make_step(const Arguments& arguments);

}  // namespace woolly
