"""Whisper: encoder-decoder transformer over 30 s of audio, with learned positions.

As in T5, a sequence begins with the encoder's rows. File readers therefore add zero rows for the encoder's rows at the
start of the position table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import Tensor
from woolly.gguf.keys import Keys
from woolly.multimodal import AudioFamily, AudioSettings
from woolly.multimodal.audio.mel import MAX_MELS, mel_filters
from woolly.multimodal.audio.settings import conv_length
from woolly.multimodal.encoder.params import AudioParams
from woolly.multimodal.encoder.tracing import TracedTower, trace_audio_tower
from woolly.multimodal.encoder.whisper import post_norm, whisper_layout, whisper_stages
from woolly.plan import Handle, Tracer
from woolly.plan.ops.attention import Mask

_FILTERS = "a.mel_filters"
_FRAMES = 3000  # mel frames per window of 30 s
_FAMILY = AudioFamily(
    name="whisper",
    max_frames=_FRAMES,
    rows=lambda n, settings: conv_length(n),
    stages=whisper_stages(lambda p, x, hp: p.output_rows(post_norm(p, x, hp))),
    patch_layout=whisper_layout,
)


@dataclass(frozen=True)
class WhisperParams:
    """Parameters of encoder and decoder, which differ only in the number of layers."""

    width: int
    heads: int
    n_encoder: int
    n_decoder: int
    n_source: int  # number of encoder rows
    n_mels: int
    eps: float
    start: int  # start-of-transcript token (sot)
    keys: Keys

    @property
    def head_dim(self) -> int:
        """Columns of a head."""
        return self.width // self.heads


def read(keys: Keys) -> WhisperParams:
    """Read the parameters of a file."""
    width, heads = keys.positive("embedding_length"), keys.positive("attention.head_count")
    n_source, eps = keys.positive("encoder.context_length"), keys.number("attention.layer_norm_epsilon")
    if width % heads or n_source != _FRAMES // 2 or not eps >= 0:
        raise ModelError(
            f"width {width}, {heads} heads, {n_source} rows per 30 s and epsilon {eps:g} do not match a Whisper model"
        )
    layers = keys.positive("block_count"), keys.positive("decoder_block_count")
    n_mels, start = keys.positive("num_mel_bins", most=MAX_MELS), keys.integer("decoder_start_token_id")
    return WhisperParams(width, heads, *layers, n_source, n_mels, eps, start, keys)


def build(p: Tracer, hp: WhisperParams) -> None:
    """Build the decoder."""
    if p.pooling is not None:
        raise UnsupportedError("a Whisper model transcribes audio and produces no embeddings")
    n_places = hp.n_source + hp.keys.positive("context_length")
    if p.rows("dec.position_embd") < n_places:
        raise ModelError(f"dec.position_embd has {p.rows('dec.position_embd')} rows; expected {n_places}")
    source = p.embed("token_embd", width=hp.width)
    x = p.embed_position(source, "dec.position_embd")
    for i in range(hp.n_decoder):
        with p.scope(f"dec.blk.{i}"):
            x = x + _attend(p, p.layer_norm(x, "ln1", eps=hp.eps), hp, "attn")
            x = x + _attend(p, p.layer_norm(x, "cross_attn_norm", eps=hp.eps), hp, "cross_attn", source)
            h = p.linear(p.layer_norm(x, "ln2", eps=hp.eps), "ffn_up", width=p.rows("ffn_up"))
            x = x + p.linear(p.unary(h, "gelu_erf"), "ffn_down", width=hp.width)
    h = p.layer_norm(p.output_rows(x), "dec.output_norm", eps=hp.eps)
    p.output(p.linear(h, "token_embd", width=p.rows("token_embd")))


def trace_tower(tensors: Mapping[str, Tensor], hp: WhisperParams) -> TracedTower:
    """Trace the encoder."""
    own = {name: one for name, one in tensors.items() if name.startswith("a.") and name != _FILTERS}
    if _FILTERS in tensors:
        given, known = tensors[_FILTERS].dequantize(), mel_filters(hp.n_mels, 400, 16000).T
        if given.shape != known.shape or not np.abs(given - known).max() <= 1e-4 * known.max():
            raise UnsupportedError("the mel filters in the file differ from Whisper's")
    settings = AudioSettings("audio", "whisper", hp.n_mels, own_family=_FAMILY)
    return trace_audio_tower(AudioParams(settings, hp.width, hp.n_encoder, hp.heads, hp.eps, hp.keys, own))


def _attend(p: Tracer, h: Handle, hp: WhisperParams, name: str, source: Handle | None = None) -> Handle:
    """Build self-attention, or cross-attention to `source`."""
    read = h if source is None else source
    q = p.linear(h, f"{name}_q", width=hp.width)
    k, v = (p.linear(read, f"{name}_{one}", width=hp.width) for one in "kv")
    mask: Mask = "since" if source is None else "before"
    a = p.attention(q, k, v, head_dim=hp.head_dim, scale=hp.head_dim**-0.5, mask=mask)
    return p.linear(a, f"{name}_out", width=hp.width)
