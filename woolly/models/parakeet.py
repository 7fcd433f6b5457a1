"""Parakeet: FastConformer encoder with 80 ms frames, and a CTC, RNN-T or TDT decoder.

The model's plan scores single frames. The networks of the decoder have separate plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast, get_args

import numpy as np

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import Tensor
from woolly.gguf.keys import Keys
from woolly.multimodal import AudioFamily, AudioSettings
from woolly.multimodal.audio.mel import MAX_MELS, mel_filters, nemo_window
from woolly.multimodal.audio.settings import conv_length
from woolly.multimodal.encoder.fastconformer import arrange_subsampled, conformer, remake_conformer, subsampling
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.stage import StageBuilder
from woolly.multimodal.encoder.tracing import TracedTower, trace_audio_tower
from woolly.multimodal.encoder.transducer import DecoderType, trace_transducer
from woolly.plan import Tracer

_FILTERS, _WINDOW = "a.mel_filters", "a.mel_window"
_MAX_FRAMES = 12000  # per window; 12,000 frames are two minutes
_MAX_LAYERS = 1024
_MAX_DURATION = 64


@dataclass(frozen=True)
class ParakeetParams:
    """Parameters of the encoder and the decoder."""

    width: int
    heads: int
    n_layers: int
    n_mels: int
    eps: float
    scale: float  # of the input embeddings
    decoder_type: DecoderType
    n_predictor: int  # layers of the prediction network; 0 for CTC
    durations: tuple[int, ...]  # frames; TDT only
    max_symbols: int  # tokens per frame
    keys: Keys


def read(keys: Keys) -> ParakeetParams:
    """Read the parameters of a file."""
    width, heads, n_layers = (keys.positive(x) for x in ("embedding_length", "attention.head_count", "block_count"))
    eps, scale = keys.number("attention.layer_norm_epsilon"), keys.number("embedding_scale", 1.0)
    kind = keys.string("decoder_type")
    if kind not in get_args(DecoderType):
        raise UnsupportedError(f"metadata key parakeet.decoder_type is {kind!r:.60}; expected ctc, rnnt or tdt")
    if width % (2 * heads) or n_layers > _MAX_LAYERS or not eps >= 0:
        raise ModelError(f"{n_layers} layers of width {width} with {heads} heads are not a Parakeet model")
    durations = keys.whole_numbers("durations") if kind == "tdt" else ()
    if kind == "tdt" and not (durations and all(0 <= one <= _MAX_DURATION for one in durations)):
        raise ModelError(
            f"metadata key parakeet.durations is {durations!r:.60}; expected 0 to {_MAX_DURATION} frames each"
        )
    n_predictor = 0 if kind == "ctc" else keys.positive("decoder_block_count")
    symbols = keys.positive("max_symbols", 10)
    if n_predictor > 16 or symbols > 1000:
        raise ModelError(f"{n_predictor} layers of the prediction network, or {symbols} tokens per frame, are too many")
    n_mels, decoder_type = keys.positive("num_mel_bins", most=MAX_MELS), cast(DecoderType, kind)
    return ParakeetParams(
        width, heads, n_layers, n_mels, eps, scale, decoder_type, n_predictor, durations, symbols, keys
    )


def build(p: Tracer, hp: ParakeetParams) -> None:
    """Build the prediction network and joint network; rows of an audio clip replace all tokens."""
    if p.pooling is not None:
        raise UnsupportedError("a Parakeet model transcribes audio and produces no embeddings")
    if hp.decoder_type == "ctc":
        x = p.output_rows(p.embed("token_embd", width=hp.width))
        p.output(p.linear(x, "token_embd", width=p.rows("token_embd")))
        return
    x = p.output_rows(p.embed("token_embd", width=p.columns_of("token_embd")))
    p.skip("dec.lstm", "dec.joint_pred", "dec.joint_steps")
    p.output(p.linear(p.unary(x, "relu"), "dec.joint_out", width=p.rows("dec.joint_out")))


def trace_tower(tensors: Mapping[str, Tensor], hp: ParakeetParams) -> TracedTower:
    """Trace the encoder, with the encoder part of the joint network, and the decoder."""
    own = {name: one for name, one in tensors.items() if name.startswith("a.") and name not in (_FILTERS, _WINDOW)}
    _check_mel(tensors, hp.n_mels)
    family = AudioFamily(
        name="parakeet",
        max_frames=_MAX_FRAMES,
        rows=lambda n, settings: conv_length(n, 3),
        stages=lambda _: (*subsampling(), StageBuilder(partial(_encoder, model=hp), ("a.",))),
        patch_layout=arrange_subsampled,
        remake=remake_conformer,
    )
    settings = AudioSettings("audio", "parakeet", hp.n_mels, own_family=family)
    traced = trace_audio_tower(AudioParams(settings, hp.width, hp.n_layers, hp.heads, hp.eps, hp.keys, own))
    decoder = trace_transducer(hp.decoder_type, tensors, hp.n_predictor, hp.durations, hp.max_symbols)
    return replace(traced, decoder=decoder)


def _encoder(p: Tracer, hp: AudioParams, model: ParakeetParams) -> None:
    x = p.output_rows(conformer(p, hp, scale=model.scale))
    p.output(
        x if model.decoder_type == "ctc" else p.linear(x, "a.joint_enc", width=p.rows("a.joint_enc")),
        "embeddings",
        "none",
    )


def _check_mel(tensors: Mapping[str, Tensor], n_mels: int) -> None:
    """Raise UnsupportedError for a spectrogram other than NeMo's."""
    known = {_FILTERS: lambda: mel_filters(n_mels, 512, 16000).T, _WINDOW: nemo_window}
    for name, make in known.items():
        if name not in tensors:
            continue
        given, array = tensors[name].dequantize(), make()
        if given.shape != array.shape or not np.abs(given - array).max() <= 1e-4 * array.max():
            raise UnsupportedError(f"the spectrogram {name.partition('_')[2]} in the file differs from Parakeet's")
