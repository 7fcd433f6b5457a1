#include "cpu/ops/table.h"

// One line per op: ops/NAME.cpp defines make_NAME.
#define WOOLLY_OPS(X)      \
    X(add)                 \
    X(add_lora)            \
    X(add_weight)          \
    X(attend)              \
    X(attend_compressed)   \
    X(cache_rows)          \
    X(causal_conv1d)       \
    X(clamp)               \
    X(clip)                \
    X(compress)            \
    X(concat)              \
    X(conv1d)              \
    X(cumulative_norm)     \
    X(delta_net)           \
    X(embed)               \
    X(embed_position)      \
    X(embed_token_type)    \
    X(embedding_bag)       \
    X(gather_conv1d)       \
    X(gaussian_topk)       \
    X(glu)                 \
    X(hidden)              \
    X(hyper_connections)   \
    X(index_topk)          \
    X(input)               \
    X(layer_norm)          \
    X(lerp)                \
    X(lightning_attention) \
    X(linear_id)           \
    X(linears)             \
    X(match_rms)           \
    X(merge_patches)       \
    X(mix_streams)         \
    X(moe)                 \
    X(mul)                 \
    X(mul_weight)          \
    X(ngrams)              \
    X(output_rows)         \
    X(per_head_linear)     \
    X(pool)                \
    X(rms_norm)            \
    X(rope)                \
    X(scale)               \
    X(scan_mamba)          \
    X(scan_mamba2)         \
    X(scatter_rows)        \
    X(slice)               \
    X(softcap)             \
    X(store)               \
    X(token_shift)         \
    X(unary)               \
    X(vecdot)              \
    X(wkv7)                \
    X(xielu)

namespace woolly {

#define WOOLLY_DECLARE(name) std::unique_ptr<Step> make_##name(const Arguments& arguments);
WOOLLY_OPS(WOOLLY_DECLARE)

std::unique_ptr<Step> make_step(const Arguments& arguments) {
#define WOOLLY_MAKE(name) \
    if (arguments.op == #name) return make_##name(arguments);
    WOOLLY_OPS(WOOLLY_MAKE)
    arguments.fail("has no native form");
}

}  // namespace woolly
