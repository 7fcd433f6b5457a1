// Activations of single elements, and gates. Each element's arithmetic is its own, so that no share of the work shows.
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

// The activation of a gate. A limit bounds what it gives from above, or what it gets if it is `clipped`, and what that
// is multiplied with on both sides; 0 for none.
struct Gate {
    Act act;
    float limit = 0.0f;
};

// The activation of this name; fails if there is none.
Act act_named(const Arguments& arguments, const std::string& name);
// The gate of this name with the attribute "limit"; fails if the activation cannot be bounded.
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
