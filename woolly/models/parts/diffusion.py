"""Masked diffusion models: logits for all rows of bidirectional attention, and the mask token."""

from __future__ import annotations

from dataclasses import replace

from woolly.errors import UnsupportedError
from woolly.gguf.keys import Keys
from woolly.models.params import TransformerParams
from woolly.models.parts.head import logits, read_out
from woolly.plan import Handle, MaskedDiffusion, Tracer


def read_diffusion(keys: Keys, *, is_shifted: bool) -> MaskedDiffusion:
    """Return how answers are decoded. `is_shifted` applies to files without `diffusion.shift_logits`.

    llama.cpp takes missing keys for shifted logits, but its converter writes the key for all models without a shift.
    """
    if keys.flag("attention.causal", False):
        raise UnsupportedError(f"{keys.architecture} models have bidirectional attention, but the file says causal")
    return MaskedDiffusion(keys.token("mask_token_id"), keys.shared_flag("diffusion.shift_logits", is_shifted))


def read_out_masked(p: Tracer, x: Handle, hp: TransformerParams) -> None:
    """Build the output: logits, or embeddings if requested."""
    if p.pooling is None:
        p.output(logits(p, x, replace(hp, mask="")))
    else:
        read_out(p, x, hp)
