"""StarCoder 2, CodeShell: layer norms and biases, an MLP with GELU and no gate."""

from __future__ import annotations

from woolly.gguf.keys import Keys
from woolly.models import parts
from woolly.models.params import TransformerParams, read_transformer
from woolly.plan import Handle, Tracer
from woolly.plan.ops.basic import Act

ARCHITECTURES = ("starcoder2", "codeshell")


def read(keys: Keys) -> TransformerParams:
    """Read the parameters."""
    return read_transformer(keys, "neox", norm="layer")


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    build_plain(p, p.embed("token_embd", width=hp.width), hp)


def build_plain(p: Tracer, x: Handle, hp: TransformerParams, *, act: Act = "gelu", parallel: bool = False) -> None:
    """Build everything after the embedding x. With `parallel`, attention and MLP read the same input with separate
    norms.
    """
    for i in range(hp.n_layers):
        with p.scope(f"blk.{i}"):
            a = parts.self_attention(p, p.layer_norm(x, "attn_norm", eps=hp.eps), hp, i)
            h = p.layer_norm(x if parallel else x + a, "ffn_norm", eps=hp.eps)
            x = x + a + parts.plain_feed_forward(p, h, hp, i, act=act)
    p.output(parts.unembedded(p, p.layer_norm(p.output_rows(x), "output_norm", eps=hp.eps), hp))
