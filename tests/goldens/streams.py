"""transformers model of Gemma 3n."""

import re

NAMES = {
    "altup.correct_output_scale": "altup_correct_scale",
    "altup.correction_coefs.weight": "altup_correct_coef",
    "altup.prediction_coefs.weight": "altup_predict_coef",
    "altup.modality_router.weight": "altup_router",
    "altup.router_norm.weight": "altup_router_norm",
    "laurel.linear_left.weight": "laurel_l",
    "laurel.linear_right.weight": "laurel_r",
    "laurel.post_laurel_norm.weight": "laurel_post_norm",
}
STREAMS = {"altup_projections": "altup_proj", "altup_unembed_projections": "altup_unembd_proj"}


def options(file):
    """The part of the configuration that it has of its own."""
    n, vocab = int(file.get("block_count")), len(file.tensors["token_embd.weight"])
    local = {"rope_type": "default", "rope_theta": float(file.get("rope.freq_base_swa"))}
    full = {"rope_type": "default", "rope_theta": float(file.get("rope.freq_base"))}
    return {
        "intermediate_size": [int(file.get("feed_forward_length"))] * n,
        "hidden_size_per_layer_input": int(file.get("embedding_length_per_layer_input")),
        "vocab_size_per_layer_input": vocab,
        "num_kv_shared_layers": int(file.get("attention.shared_kv_layers")),
        "laurel_rank": len(file.tensors["blk.0.laurel_l.weight"]),
        "final_logit_softcapping": float(file.get("final_logit_softcapping")),
        "activation_sparsity_pattern": [0.95] * 10 + [0.0] * (n - 10),
        "rope_parameters": {"full_attention": full, "sliding_attention": local},
    }


def source(file, name):
    """The array of a parameter, and the tensors that it came from; None for those that other models have, too."""
    if match := re.fullmatch(r"model\.(altup_\w+)\.(\d)\.weight", name):
        found = f"{STREAMS[match[1]]}.weight"
        return file.tensors[found][int(match[2])], [found]
    if match := re.fullmatch(r"model\.layers\.(\d+)\.((altup|laurel)\..*)", name):
        found = f"blk.{match[1]}.{NAMES[match[2]]}.weight"
        return file.tensors[found], [found]
    return None
