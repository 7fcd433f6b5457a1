"""Audio encoder of LFM2 Audio: FastConformer, layer norm, MLP."""

from __future__ import annotations

from woolly.multimodal.encoder.fastconformer import arrange_subsampled, conformer, remake_conformer, subsampling
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.stage import StageBuilder
from woolly.multimodal.encoder.vit import mlp
from woolly.plan import Tracer

PROJECTORS = ("lfm2a",)

_OF_SPEECH = ("a.position_embd", "a.position_embd_norm", "a.embd_to_logits")  # audio output, not supported

remake = remake_conformer
patch_layout = arrange_subsampled


def _encoder(p: Tracer, hp: AudioParams) -> None:
    """Build the conformer layers and the projector."""
    y = p.layer_norm(p.output_rows(conformer(p, hp)), "mm.a.mlp.0", eps=hp.eps)
    p.skip(*_OF_SPEECH)
    p.output(mlp(p, y, "mm.a.mlp.1", "mm.a.mlp.3"), "embeddings", "none")


def stages(hp: AudioParams) -> tuple[StageBuilder, ...]:
    """Return the stages: subsampling, then the encoder."""
    return *subsampling(), StageBuilder(_encoder, ("a.", "mm.a."))
