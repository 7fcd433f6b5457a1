"""BERT, RoBERTa and XLM-R: MiniLM, bge, e5, mxbai, arctic. Post-norm, learned positions.

Converters drop the first rows of RoBERTa's position table, so every table begins at position 0. Jina Embeddings 3 is
XLM-R with rope.
"""

from __future__ import annotations

from dataclasses import replace

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Handle, Tracer

ARCHITECTURES = ("bert", "jina-bert-v3")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    hp = read_transformer(keys, "neox", norm="layer", causal=False)
    hp = replace(hp, separator=keys.token("seperator_token_id", 102))
    return hp.without_ropes() if keys.architecture == "bert" else hp


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    x = parts.typed(p, p.embed("token_embd", width=hp.width), hp)
    if hp.layers[0].rope is None:
        x = p.embed_position(x, "position_embd")
    x = p.layer_norm(x, "token_embd_norm", eps=hp.eps)
    parts.embeddings(p, parts.post_norm_layers(p, x, hp, _feed_forward))


def _feed_forward(p: Tracer, h: Handle, hp: TransformerParams, layer: int) -> Handle:
    return parts.plain_feed_forward(p, h, hp, layer, act="gelu_erf")
