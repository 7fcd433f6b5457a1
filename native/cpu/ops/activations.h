// Activations of single elements, and gates. Elements are independent, so the split among workers does not affect
// results.
#pragma once

#include <cstdint>

#include "cpu/kernels/table.h"
#include "cpu/program/arguments.h"

namespace woolly {

enum class Act : uint8_t {
    silu,
    gelu,
    gelu_erf,
    relu,
    relu2,
    sigmoid,
    softplus,
    tanh,
    clamped,
    gelu_quick,
    exp,
    clipped,
    root
};

// Activation of a gate. Limit: clamps its output from above or, with `clipped`, its input; the up value is clamped to
// ±limit. 0: no clamp.
struct Gate {
    Act act;
    float limit = 0.0f;
};

// Returns the activation with this name; throws if it does not exist.
Act act_named(const Arguments& arguments, const std::string& name);
// Returns the gate with this name and the attribute "limit"; throws if the activation has no clamped form.
Gate gate_named(const Arguments& arguments, const std::string& name);
// y = act(x). y may be x.
void activate(const KernelTable& kernels, Act act, const float* x, int64_t n, float* y);
// y = act(gate) * up. y may be gate or up.
void gate_with(const KernelTable& kernels, Gate how, const float* gate, const float* up, int64_t n, float* y);
// y = e^x, for x up to 88.
void exponentials(const float* x, int64_t n, float* y);
// y = cap * tanh(x / cap).
void soft_cap(float cap, const float* x, int64_t n, float* y);

}  // namespace woolly
