#include "quant/types.h"

namespace woolly {

TypeInfo type_info(int ggml_type) {
    switch (WeightType(ggml_type)) {
        case WeightType::f32:
            return {1, 4, Activation::f32};
        case WeightType::f16:
        case WeightType::bf16:
            return {1, 2, Activation::f32};
        case WeightType::q4_0:
        case WeightType::iq4_nl:
            return {32, 18, Activation::q8_32};
        case WeightType::q4_1:
            return {32, 20, Activation::q8_32};
        case WeightType::q5_0:
            return {32, 22, Activation::q8_32};
        case WeightType::q5_1:
            return {32, 24, Activation::q8_32};
        case WeightType::q8_0:
            return {32, 34, Activation::q8_32};
        case WeightType::mxfp4:
            return {32, 17, Activation::q8_32};
        case WeightType::q2_k:
            return {256, 84, Activation::q8_256};
        case WeightType::q3_k:
            return {256, 110, Activation::q8_256};
        case WeightType::q4_k:
            return {256, 144, Activation::q8_256};
        case WeightType::q5_k:
            return {256, 176, Activation::q8_256};
        case WeightType::q6_k:
            return {256, 210, Activation::q8_256};
        case WeightType::iq4_xs:
            return {256, 136, Activation::q8_256};
    }
    return {0, 0, Activation::f32};
}

}  // namespace woolly
