"""Makes the golden logits of decoders that read an encoder, as make.py does those of others.

python -m tests.goldens.make_encoder_decoders           (from the project's root, in the environment of make.py)
"""

import re
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.cases.encoder_decoders import ANSWER, EVERY, READERS, SOURCE, STRIDE
from tests.cases.tiny import write_tiny
from tests.goldens.encoder_classes import fill, t5_config
from tests.goldens.make import HERE, File

STEMS = {
    "SelfAttention.relative_attention_bias": "attn_rel_b",
    **{f"SelfAttention.{x}": f"attn_{x}" for x in "qkvo"},
    **{f"EncDecAttention.{x}": f"cross_attn_{x}" for x in "qkvo"},
    "DenseReluDense.wi": "ffn_up",
    "DenseReluDense.wi_0": "ffn_gate",
    "DenseReluDense.wi_1": "ffn_up",
    "DenseReluDense.wo": "ffn_down",
}
NORMS = {"encoder": ("attn_norm", "ffn_norm"), "decoder": ("attn_norm", "cross_attn_norm", "ffn_norm")}


def model_of(file):
    """T5 with the weights of the file."""
    is_tied = "output.weight" not in file.tensors
    config = t5_config(
        file,
        num_decoder_layers=int(file.get("decoder_block_count")),
        decoder_start_token_id=int(file.get("decoder_start_token_id")),
        tie_word_embeddings=is_tied,
    )

    def source(name, parameter):
        if block := re.fullmatch(r"(encoder|decoder)\.block\.(\d+)\.layer\.(\d)\.(.*)\.weight", name):
            stem = NORMS[block[1]][int(block[3])] if block[4] == "layer_norm" else STEMS[block[4]]
            found = f"{block[1][:3]}.blk.{block[2]}.{stem}.weight"
        else:
            half = name.partition(".")[0][:3]
            found = "output.weight" if name.startswith("lm_head") and not is_tied else "token_embd.weight"
            found = f"{half}.output_norm.weight" if "norm" in name else found
        return file.tensors[found], [found]

    unread = "dec.blk.0.cross_attn_rel_b.weight"
    file.tensors.pop(unread, None)
    model = transformers.T5ForConditionalGeneration(config)
    if not is_tied:  # transformers ties them until a checkpoint that has both is loaded
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return fill(model, file, source)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for tiny in READERS.values():
            path = HERE / f"tiny-{tiny.name}.npz"
            if path.exists():  # delete a golden to make it anew
                continue
            model = model_of(File(write_tiny(tiny, Path(folder, f"{tiny.name}.gguf"))))
            with torch.no_grad():
                given = {"input_ids": torch.tensor([SOURCE]), "decoder_input_ids": torch.tensor([ANSWER])}
                logits = model(**given, use_cache=False).logits[0].numpy()
            np.savez_compressed(path, logits=logits[::EVERY, ::STRIDE].astype(np.float32))
            print(f"{tiny.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
