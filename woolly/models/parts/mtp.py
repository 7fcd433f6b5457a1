"""Multi-token prediction (MTP): a draft block after the last layer."""

from __future__ import annotations

from collections.abc import Callable

from woolly.models.params import TransformerParams
from woolly.plan import Handle, Tracer


def next_token(
    p: Tracer,
    hp: TransformerParams,
    layer: Callable[[Handle], Handle],
    *,
    is_normed: bool = True,
    head_eps: float | None = None,
) -> None:
    """Build an MTP block: a layer over the next token's embedding and the hidden state, and an output head.

    The output head belongs to the block or to the model. A row combines the normed hidden state at its position with
    the next token. The head's input becomes the hidden state for the next draft token. Without `is_normed`, the block
    reads hidden states before the last norm. With `head_eps`, the norm before the head is a layer norm with this
    epsilon.
    """
    with p.scope(hp.drafts[0]):
        table = "nextn.embed_tokens" if p.has("nextn.embed_tokens") else "/token_embd"
        e = p.rms_norm(p.embed(table, width=hp.width), "nextn.enorm", eps=hp.eps)
        h = p.hidden("/output_norm", eps=hp.eps) if is_normed else p.hidden(width=hp.width)
        h = p.rms_norm(h, "nextn.hnorm", eps=hp.eps)
        x = layer(p.linear(p.concat(e, h), "nextn.eh_proj", width=hp.width))
        norm = next(x for x in ("nextn.shared_head_norm", "layer_output_norm", "/output_norm") if p.has(x))
        head = next(name for name in ("nextn.shared_head_head", "/output", "/token_embd") if p.has(name))
        if head_eps is not None:
            h = p.output_rows(p.layer_norm(x, norm, eps=head_eps))
        elif is_normed:
            h = p.output_rows(p.rms_norm(x, norm, eps=hp.eps))
        else:
            h = p.rms_norm(p.output_rows(x), norm, eps=hp.eps)
        p.output(p.linear(h, head, width=p.rows(head)))
