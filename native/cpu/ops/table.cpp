#include "cpu/ops/table.h"

// One line per op: ops/NAME.cpp defines make_NAME.
#define WOOLLY_OPS(X)  \
    X(act)             \
    X(adapt)           \
    X(add)             \
    X(attend)          \
    X(attend_kept)     \
    X(blend)           \
    X(clamp)           \
    X(clip)            \
    X(columns)         \
    X(compress)        \
    X(conv)            \
    X(conv_around)     \
    X(conv_at)         \
    X(delta_net)       \
    X(dots)            \
    X(embed)           \
    X(embed_position)  \
    X(embed_type)      \
    X(fold)            \
    X(gain)            \
    X(given)           \
    X(glu)             \
    X(hidden)          \
    X(hyper)           \
    X(join)            \
    X(keep)            \
    X(layer_norm)      \
    X(lerp)            \
    X(lightning)       \
    X(linear_at)       \
    X(linears)         \
    X(match)           \
    X(mix)             \
    X(moe)             \
    X(mul)             \
    X(output_rows)     \
    X(peaks)           \
    X(per_head_linear) \
    X(pick)            \
    X(place)           \
    X(pool)            \
    X(ngrams)          \
    X(previous)        \
    X(rms_norm)        \
    X(rope)            \
    X(running_norm)    \
    X(scale)           \
    X(scan_mamba)      \
    X(scan_mamba2)     \
    X(shift)           \
    X(softcap)         \
    X(store)           \
    X(wkv7)            \
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
