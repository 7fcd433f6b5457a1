// Arguments of an op: values, weights and attributes of a plan's step, by name.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cpu/program/step.h"

namespace woolly {

class Arguments {
  public:
    using Attribute = std::variant<int64_t, double, std::string>;
    using Weights = std::vector<std::pair<std::string, std::vector<int>>>;  // role, then ids of matrices or a vector

    std::string op;
    std::vector<int> inputs, outputs;  // ids of values
    Weights weights;                   // in the order of the plan's step
    std::map<std::string, Attribute> attributes;
    Program* program = nullptr;

    // Each throws std::invalid_argument with the names of op and argument if it is missing or has another type. Marked
    // cold, like the callers: constructing a step is not a loop, and the attribute cuts compile time.
    [[gnu::cold]] Value input(size_t i) const;
    [[gnu::cold]] Value output(size_t i) const;
    [[gnu::cold]] int integer(const char* name) const;
    [[gnu::cold]] float number(const char* name) const;
    [[gnu::cold]] const std::string& text(const char* name) const;
    [[gnu::cold]] std::vector<Matrix*> matrices(const char* role) const;  // all of the role
    [[gnu::cold]] Matrix& matrix(const char* role) const;                 // the only one of the role
    [[gnu::cold]] const Vector* vector(const char* role) const;           // null if the step has none
    [[gnu::cold]] bool has(const char* role) const;                       // whether the step has weights of the role
    // Throws for attributes or roles that the op has not read and would ignore.
    [[gnu::cold]] void check_all_read() const;

    [[noreturn, gnu::cold]] void fail(const std::string& what) const;

  private:
    const Attribute& attribute(const char* name) const;

    mutable std::set<std::string> read_;
};

}  // namespace woolly
