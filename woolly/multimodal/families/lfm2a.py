"""Audio encoder of LFM2 Audio: FastConformer, layer norm, MLP."""

from __future__ import annotations

from functools import partial

from woolly.multimodal.audio import log_mel_nemo
from woolly.multimodal.audio.chunks import HOP, split_sample_count, split_samples
from woolly.multimodal.audio.settings import conv_length
from woolly.multimodal.encoder.fastconformer import arrange_subsampled, conformer, remake_conformer, subsampling
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.stage import StageBuilder
from woolly.multimodal.encoder.vit import mlp
from woolly.multimodal.family import AudioFamily
from woolly.plan import Tracer

_OF_SPEECH = ("a.position_embd", "a.position_embd_norm", "a.embd_to_logits")  # audio output, not supported


def _encoder(p: Tracer, hp: AudioParams) -> None:
    """Build the conformer layers and the projector."""
    y = p.layer_norm(p.output_rows(conformer(p, hp)), "mm.a.mlp.0", eps=hp.eps)
    p.skip(*_OF_SPEECH)
    p.output(mlp(p, y, "mm.a.mlp.1", "mm.a.mlp.3"), "embeddings", "none")


def stages(hp: AudioParams) -> tuple[StageBuilder, ...]:
    """Return the stages: subsampling, then the encoder."""
    return *subsampling(), StageBuilder(_encoder, ("a.", "mm.a."))


FAMILIES = (
    AudioFamily(
        name="lfm2a",
        placeholder_texts=("<|audio|>",),
        rows=lambda n, settings: conv_length(n, 3),
        chunks=partial(split_samples, log_mel=log_mel_nemo),
        chunk_frames=lambda n_samples, settings: [n // HOP for n in split_sample_count(n_samples)],
        stages=stages,
        patch_layout=arrange_subsampled,
        remake=remake_conformer,
    ),
)
