"""Phi 3, 3.5 and 4: Llama with fused QKV, fused gate and up, and longrope."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models.llama import build as build_llama
from woolly.models.params import MAX_POSITION, TransformerParams, read_transformer
from woolly.plan import Tracer


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_divided(keys)


def read_divided(keys: Keys, knows: Collection[str] = ()) -> TransformerParams:
    """Read the parameters, with the longrope divisors for the context in use. `knows` lists further keys of the model.

    The sliding window in the files is ignored, as in other engines.
    """
    hp = read_transformer(keys, "neox", knows=("longrope", *knows))
    # If the context needs the long divisors, all positions use them, since cached keys are not rotated again.
    kind = "long" if keys.context > keys.positive("rope.scaling.original_context_length", MAX_POSITION) else "short"
    return _with(replace(hp, layers=tuple(replace(x, window=0) for x in hp.layers)), f"/rope_factors_{kind}")


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    build_llama(p, divided(p, hp))


def divided(p: Tracer, hp: TransformerParams) -> TransformerParams:
    """Return a copy that uses the file's longrope divisors, if any. Converters write no scaling type."""
    chosen, other = ("long", "short") if hp.layers[0].divisors == "/rope_factors_long" else ("short", "long")
    if p.has(f"rope_factors_{chosen}"):
        p.skip(f"rope_factors_{other}")
        return hp
    return _with(hp, "")


def _with(hp: TransformerParams, divisors: str) -> TransformerParams:
    return replace(hp, layers=tuple(replace(layer, divisors=divisors) for layer in hp.layers))
