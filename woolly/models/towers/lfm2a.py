"""LFM2 Audio: a FastConformer, a norm and two matrices."""

from __future__ import annotations

from woolly.models.towers.fastconformer import arrange_halved, conformer, halvings, remake_conformer
from woolly.models.towers.params import AudioParams
from woolly.models.towers.stage import StageBuilder
from woolly.models.towers.vit import mlp
from woolly.plan import Tracer

PROJECTORS = ("lfm2a",)

_OF_SPEECH = ("a.position_embd", "a.position_embd_norm", "a.embd_to_logits")  # what the model says, not what it hears

remake = remake_conformer
arrange = arrange_halved


def _encoder(p: Tracer, hp: AudioParams) -> None:
    """All layers, and what makes rows of the prompt."""
    y = p.layer_norm(p.output_rows(conformer(p, hp)), "mm.a.mlp.0", eps=hp.eps)
    p.skip(*_OF_SPEECH)
    p.output(mlp(p, y, "mm.a.mlp.1", "mm.a.mlp.3"), "embeddings", "none")


def stages(hp: AudioParams) -> tuple[StageBuilder, ...]:
    """Each halving is a stage."""
    return *halvings(), StageBuilder(_encoder, ("a.", "mm.a."))
