// Scalar activations, numbered as ACTIVATIONS in woolly/runtime/cuda/ops/rows.py.
#pragma once

#include "primitives/common.cuh"

enum Activation { SILU, GELU, GELU_ERF, RELU, RELU2, SIGMOID, SOFTPLUS, TANH, CLAMPED, GELU_QUICK, EXP, CLIPPED, ROOT };

__device__ inline float activation(int kind, float x) {
    switch (kind) {
        case SILU:
            return x / (1.0f + expf(-x));
        case GELU:  // tanh approximation, rewritten as x * sigmoid(2 * argument)
            return x / (1.0f + expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
        case GELU_ERF:
            return x * 0.5f * (1.0f + erff(x * 0.7071067811865476f));
        case RELU:
            return x < 0.0f ? 0.0f : x;  // NaN passes through
        case RELU2:
            return x < 0.0f ? 0.0f : x * x;
        case SIGMOID:
            return 1.0f / (1.0f + expf(-x));
        case SOFTPLUS:
            return (x > 0.0f ? x : x != x ? x : 0.0f) + log1pf(expf(-fabsf(x)));
        case GELU_QUICK:
            return x / (1.0f + expf(-1.702f * x));
        case EXP:
            return expf(x);
        case ROOT: {  // signed square root of the magnitude, which is at least 1e-6; 0 and NaN are unchanged
            const float size = fabsf(x), root = sqrtf(size < 1e-6f ? 1e-6f : size);
            return x > 0.0f ? root : x < 0.0f ? -root : x;
        }
        default:
            return tanhf(x);
    }
}

// Clamps x to [-most, most]; NaN passes through.
__device__ inline float bounded(float x, float most) { return x > most ? most : x < -most ? -most : x; }

// GLU: activation(gate) * up. A limit clamps the activation from above (CLIPPED: the gate) and up to
// [-limit, limit]; 0: no clamp.
__device__ inline float gated(int kind, float gate, float up, float limit) {
    if (kind == CLAMPED) {  // gpt-oss: gate clamped from above, up to [-7, 7]
        gate = gate > 7.0f ? 7.0f : gate;
        return gate / (1.0f + expf(-1.702f * gate)) * (bounded(up, 7.0f) + 1.0f);
    }
    if (kind == CLIPPED) return activation(SILU, gate > limit ? limit : gate) * bounded(up, limit);
    const float y = activation(kind, gate);
    return limit == 0.0f ? y * up : (y > limit ? limit : y) * bounded(up, limit);
}
