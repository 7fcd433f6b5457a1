#include "cpu/program/arguments.h"

#include <limits>
#include <stdexcept>

#include "cpu/program/program.h"

namespace woolly {

void Arguments::fail(const std::string& what) const { throw std::invalid_argument("op '" + op + "' " + what); }

Value Arguments::input(size_t i) const {
    if (i >= inputs.size()) fail("needs input " + std::to_string(i));
    return program->value(inputs[i]);
}

Value Arguments::output(size_t i) const {
    if (i >= outputs.size()) fail("needs output " + std::to_string(i));
    return program->value(outputs[i]);
}

const Arguments::Attribute& Arguments::attribute(const char* name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) fail("needs attribute '" + std::string(name) + "'");
    read_.insert(name);
    return found->second;
}

int Arguments::integer(const char* name) const {
    const auto* value = std::get_if<int64_t>(&attribute(name));
    if (value == nullptr) fail("needs a whole number as attribute '" + std::string(name) + "'");
    if (*value < std::numeric_limits<int>::min() || *value > std::numeric_limits<int>::max())
        fail("got " + std::to_string(*value) + " as attribute '" + std::string(name) + "', which 32 bits do not hold");
    return int(*value);
}

float Arguments::number(const char* name) const {
    const Attribute& found = attribute(name);
    if (const auto* value = std::get_if<int64_t>(&found)) return float(*value);
    const auto* value = std::get_if<double>(&found);
    if (value == nullptr) fail("needs a number as attribute '" + std::string(name) + "'");
    return float(*value);
}

const std::string& Arguments::text(const char* name) const {
    const auto* value = std::get_if<std::string>(&attribute(name));
    if (value == nullptr) fail("needs text as attribute '" + std::string(name) + "'");
    return *value;
}

std::vector<Matrix*> Arguments::matrices(const char* role) const {
    std::vector<Matrix*> out;
    read_.insert(role);
    for (const auto& [name, ids] : weights)
        if (name == role)
            for (const int id : ids) out.push_back(&program->matrix(id));
    if (out.empty()) fail("needs a weight '" + std::string(role) + "'");
    return out;
}

Matrix& Arguments::matrix(const char* role) const {
    const std::vector<Matrix*> found = matrices(role);
    if (found.size() != 1) fail("takes one weight '" + std::string(role) + "'");
    return *found[0];
}

const Vector* Arguments::vector(const char* role) const {
    read_.insert(role);
    for (const auto& [name, ids] : weights)
        if (name == role) return &program->vector(ids.at(0));
    return nullptr;
}

bool Arguments::has(const char* role) const {
    for (const auto& [name, ids] : weights)
        if (name == role) return true;
    return false;
}

void Arguments::check_all_read() const {
    for (const auto& [name, value] : attributes)
        if (!read_.contains(name)) fail("has no attribute '" + name + "'");
    for (const auto& [role, ids] : weights)
        if (!read_.contains(role)) fail("has no weight '" + role + "'");
}

}  // namespace woolly
