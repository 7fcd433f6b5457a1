"""Output heads: logits, or one embedding or score per input text."""

from __future__ import annotations

from woolly.errors import UnsupportedError
from woolly.models.params import TransformerParams
from woolly.plan import Handle, Pooling, Tracer
from woolly.plan.ops.basic import Act
from woolly.plan.ops.text_encoder import Pool

_POOLS: dict[Pooling, Pool] = {"mean": "mean", "cls": "first", "last": "last"}


def read_out(p: Tracer, x: Handle, hp: TransformerParams) -> None:
    """Build a decoder's output: logits, or embeddings if requested or if attention is bidirectional."""
    if p.pooling is None and not hp.mask:
        p.output(logits(p, x, hp))
        return
    p.skip("output")
    embeddings(p, p.rms_norm(x, "output_norm", eps=hp.eps), rank="last")


def pooling_of(p: Tracer) -> Pooling:
    """Return an encoder's pooling: the requested pooling, or else "rank" if the file has a scoring head."""
    return p.pooling or ("rank" if _has_head(p) else "none")


def _has_head(p: Tracer) -> bool:
    return p.has("/cls") or p.has("/cls.output")


def embeddings(p: Tracer, x: Handle, *, rank: Pooling = "cls", act: Act = "tanh", eps: float = 0.0) -> None:
    """Build the output of an encoder: an embedding per text, or a score if the file has a head.

    `rank` is the pooling before the head, `act` the head's activation.
    """
    pooling = pooling_of(p)
    if pooling == "none":
        p.skip("cls")
        p.output(p.output_rows(x), "embeddings", pooling)
        return
    y = p.pool(x, _POOLS[rank if pooling == "rank" else pooling])
    if pooling != "rank":
        p.skip("cls")
        for name in ("dense_2", "dense_3"):
            y = p.linear(y, name, width=p.rows(name)) if p.has(name) else y
        p.output(y, "embeddings", pooling)
        return
    if not _has_head(p):
        raise UnsupportedError("the file has no reranking head (cls or cls.output)")
    if p.has("cls"):
        y = p.unary(p.linear(y, "cls", width=p.rows("cls")), act)
    if p.has("cls.norm"):
        y = p.layer_norm(y, "cls.norm", eps=eps)
    if p.has("cls.output"):
        y = p.linear(y, "cls.output", width=p.rows("cls.output"))
    p.output(y, "scores", pooling)


def logits(p: Tracer, x: Handle, hp: TransformerParams) -> Handle:
    """Build the last norm, the output matrix (tied: the embedding) and the softcap."""
    return unembedded(p, p.rms_norm(p.output_rows(x), "output_norm", eps=hp.eps), hp)


def unembedded(p: Tracer, h: Handle, hp: TransformerParams) -> Handle:
    """Build the output matrix and the softcap, for models with a different last norm."""
    if p.pooling is not None or hp.mask:
        raise UnsupportedError("embeddings are not supported for this architecture yet; use its logits")
    y = p.linear(h, "output" if p.has("output") else "token_embd", width=p.rows("token_embd"))
    return p.softcap(y, hp.logit_softcap) if hp.logit_softcap else y
