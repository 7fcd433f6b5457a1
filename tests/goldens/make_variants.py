"""Writes tests/goldens/variants.npz: transformers' logits of classes that another architecture computes.

    python -m tests.goldens.make_variants       (from the project's root, in the environment of make.py)

The weights come from NumPy by name and shape, so that a test makes the same checkpoint without torch.
"""

import json
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
IDS = np.random.RandomState(0).randint(3, 300, 24)
STRIDE = 8
USUAL = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SCALES = {
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 3.0,
    "attention_multiplier": 0.3,
}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
CLASSES = {
    "Cwm": {"head_dim": 16, "sliding_window": 8, "rope_parameters": LLAMA3},
    "GraniteMoeSWA": {
        **SCALES,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 48,
        "sliding_window": 8,
    },
    "Helium": {"head_dim": 16},
    "HyperCLOVAX": SCALES,
    "SolarOpen": {
        **EXPERTS,
        "head_dim": 16,
        "moe_intermediate_size": 32,
        "routed_scaling_factor": 1.5,
        "intermediate_size": None,
    },
    "VaultGemma": {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8},
    "Youtu": {**LATENT, "num_key_value_heads": 4, "head_dim": 8},
}


def array_of(name, shape):
    """Return the weights of a tensor: norms around 1, other tensors around 0."""
    seed = sum(name.encode()) + 1000 * len(name)
    values = np.random.RandomState(seed).standard_normal(shape).astype(np.float32) * np.float32(0.15)
    return values + np.float32(len(shape) == 1 and "norm" in name)


def main():
    import tempfile

    import torch
    import transformers
    from safetensors import safe_open
    from safetensors.numpy import save_file

    out = {}
    for name, options in CLASSES.items():
        given = {key: value for key, value in (USUAL | options).items() if value is not None or key == "pad_token_id"}
        kind = getattr(transformers, f"{name}ForCausalLM")
        with tempfile.TemporaryDirectory() as folder:
            kind(getattr(transformers, f"{name}Config")(**given)).save_pretrained(folder)
            path = Path(folder, "model.safetensors")
            with safe_open(path, "np") as file:
                shapes = {one: list(file.get_slice(one).get_shape()) for one in file.keys()}  # noqa: SIM118
            save_file({one: array_of(one, shape) for one, shape in shapes.items()}, path, {"format": "pt"})
            model = kind.from_pretrained(folder, dtype=torch.float32).eval()
            config = json.loads(Path(folder, "config.json").read_text())
        with torch.no_grad():
            logits = model(torch.tensor(IDS[None]), use_cache=False).logits[0].numpy()
        out[name] = logits[:, ::STRIDE]
        out[f"{name}.json"] = json.dumps({"config": config, "shapes": shapes})
    np.savez_compressed(HERE / "variants.npz", **out)


if __name__ == "__main__":
    main()
