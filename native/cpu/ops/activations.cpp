#include "cpu/ops/activations.h"

#include <cmath>
#include <iterator>

#include "cpu/ops/functions.h"

namespace woolly {

namespace {

inline float relu_of(float x) { return x < 0.0f ? 0.0f : x; }
inline float silu_of(float x) { return x / (1.0f + exp_of(-x)); }
// Signed square root of the magnitude, which is at least 1e-6; 0 and NaN are unchanged.
inline float root_of(float x) {
    const float size = x < 0.0f ? -x : x, root = std::sqrt(size < 1e-6f ? 1e-6f : size);
    return x > 0.0f ? root : x < 0.0f ? -root : x;
}
inline float soft_capped(float x, float cap) { return cap - 2.0f * cap / (exp_of(x * (2.0f / cap)) + 1.0f); }

template <class F>
void each(const float* x, int64_t n, float* y, const F& f) {
    for (int64_t i = 0; i < n; ++i) y[i] = f(x[i]);
}

template <class F>
void both(const float* gate, const float* up, int64_t n, float* y, const F& f) {
    for (int64_t i = 0; i < n; ++i) y[i] = f(gate[i], up[i]);
}

}  // namespace

Act act_named(const Arguments& arguments, const std::string& name) {
    constexpr const char* names[] = {"silu", "gelu",    "gelu_erf",   "relu", "relu2",   "sigmoid", "softplus",
                                     "tanh", "clamped", "gelu_quick", "exp",  "clipped", "root"};
    for (int i = 0; i < int(std::size(names)); ++i)
        if (name == names[i]) return Act(i);
    arguments.fail("has no activation '" + name + "'");
}

Gate gate_named(const Arguments& arguments, const std::string& name) {
    const Gate gate{act_named(arguments, name), arguments.number("limit")};
    const bool is_bounded = gate.act == Act::silu || gate.act == Act::clipped;
    if ((gate.limit != 0.0f && (!is_bounded || !(gate.limit > 0.0f))) || (gate.act == Act::clipped && gate.limit == 0))
        arguments.fail("got a limit of " + std::to_string(gate.limit) + " that activation '" + name +
                       "' does not support");
    return gate;
}

void activate(const KernelTable& kernels, Act act, const float* x, int64_t n, float* y) {
    switch (act) {
        case Act::silu:
            return each(x, n, y, [](float v) { return silu_of(v); });
        case Act::gelu:
            return kernels.gelu(x, nullptr, n, y);
        case Act::gelu_erf:
            return kernels.gelu_erf(x, nullptr, n, y);
        case Act::relu:
            return each(x, n, y, [](float v) { return relu_of(v); });
        case Act::relu2:
            return each(x, n, y, [](float v) { return relu_of(v) * relu_of(v); });
        case Act::sigmoid:
            return each(x, n, y, [](float v) { return sigmoid_of(v); });
        case Act::softplus:
            return each(x, n, y, [](float v) { return softplus_of(v); });
        case Act::tanh:
            return each(x, n, y, [](float v) { return tanh_of(v); });
        case Act::gelu_quick:
            return kernels.gelu_quick(x, nullptr, n, y);
        case Act::exp:
            return each(x, n, y, [](float v) { return exp_of(v); });
        case Act::root:
            return each(x, n, y, [](float v) { return root_of(v); });
        case Act::clamped:  // gates alone
        case Act::clipped:
            return;
    }
}

void gate_with(const KernelTable& kernels, Gate how, const float* gate, const float* up, int64_t n, float* y) {
    const Act act = how.act;
    if (const float limit = how.limit; act == Act::clipped)
        return both(gate, up, n, y, [limit](float g, float u) {
            u = u > limit ? limit : u;
            u = u < -limit ? -limit : u;
            return silu_of(g > limit ? limit : g) * u;
        });
    if (const float limit = how.limit; limit != 0.0f)
        return both(gate, up, n, y, [limit](float g, float u) {
            const float s = silu_of(g);
            u = u > limit ? limit : u;
            u = u < -limit ? -limit : u;
            return (s > limit ? limit : s) * u;
        });
    if (act == Act::silu) return kernels.swiglu(gate, up, n, y);
    if (act == Act::gelu) return kernels.gelu(gate, up, n, y);
    if (act == Act::gelu_erf) return kernels.gelu_erf(gate, up, n, y);
    if (act == Act::relu) return both(gate, up, n, y, [](float g, float u) { return relu_of(g) * u; });
    if (act == Act::gelu_quick) return kernels.gelu_quick(gate, up, n, y);
    both(gate, up, n, y, [](float g, float u) {
        g = g > 7.0f ? 7.0f : g;
        u = u > 7.0f ? 7.0f : u;
        u = u < -7.0f ? -7.0f : u;
        return g / (1.0f + exp_of(-1.702f * g)) * (u + 1.0f);
    });
}

void exponentials(const float* x, int64_t n, float* y) {
    each(x, n, y, [](float v) { return exp_of(v); });
}

void soft_cap(float cap, const float* x, int64_t n, float* y) {
    each(x, n, y, [cap](float v) { return soft_capped(v, cap); });
}

}  // namespace woolly
