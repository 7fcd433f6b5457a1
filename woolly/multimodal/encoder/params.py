"""Encoder parameters of a projector file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from woolly.errors import ModelError

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.gguf.keys import Keys
    from woolly.multimodal import AudioSettings, VisionSettings
    from woolly.plan.ops.basic import Act

_MAX_BLOCKS = 1024


class Encoder(Protocol):
    """Parameters of an encoder layer."""

    @property
    def width(self) -> int:
        """Columns of a row."""

    @property
    def head_dim(self) -> int:
        """Columns of a head."""

    @property
    def eps(self) -> float:
        """Epsilon of norms."""


@dataclass(frozen=True)
class AudioParams:
    """Parameters of an audio encoder."""

    settings: AudioSettings
    width: int
    n_layers: int
    heads: int
    eps: float
    keys: Keys  # family-specific keys, under "audio."
    tensors: Mapping[str, Tensor]  # of the file

    @property
    def head_dim(self) -> int:
        """Columns of a head."""
        return self.width // self.heads

    @property
    def patch(self) -> int:
        """Mel bins per frame."""
        return self.settings.n_mels


@dataclass(frozen=True)
class TowerParams:
    """Parameters of a vision transformer and its images."""

    settings: VisionSettings
    width: int
    n_layers: int
    heads: int
    eps: float
    act: Act | None  # activation in the file: "gelu" or "silu"; None: neither
    keys: Keys  # family-specific keys, under "vision."
    tensors: Mapping[str, Tensor]  # of the file

    @property
    def head_dim(self) -> int:
        """Columns of a head."""
        return self.width // self.heads

    @property
    def patch(self) -> int:
        """Numbers in a patch."""
        return 3 * self.settings.patch_size**2

    @property
    def side(self) -> int:
        """Patches per side of an image or tile at the trained size."""
        return self.settings.image_size // self.settings.patch_size

    @property
    def table_side(self) -> int:
        """Lines (and columns) of the position table, which may differ from the trained image size; 0: no table."""
        table = self.tensors.get("v.position_embd.weight")
        return 0 if table is None else math.isqrt(table.n_elements // self.width)

    @property
    def merge(self) -> int:
        """Patches per side that one row merges."""
        return self.settings.merge_size


def read_tower(keys: Keys, settings: VisionSettings, tensors: Mapping[str, Tensor]) -> TowerParams:
    """Read the parameters common to all vision encoders."""
    act: Act | None = None
    if keys.flag("use_gelu", False) or keys.flag("use_silu", False):
        act = "silu" if keys.flag("use_silu", False) else "gelu"
    params = TowerParams(
        settings, *_sizes(keys, "vision", tensors, has_layers=settings.family.has_layers), act, keys, tensors
    )
    if params.patch > max((tensor.n_elements for tensor in tensors.values()), default=0):
        raise ModelError(
            f"metadata key clip.vision.patch_size is {settings.patch_size}, but no tensor of the file holds a whole"
            " patch; fetch the file again"
        )
    return params


def read_audio_params(keys: Keys, settings: AudioSettings, tensors: Mapping[str, Tensor]) -> AudioParams:
    """Read the parameters common to all audio encoders."""
    if settings.family.frame_size:  # other keys describe no encoder
        return AudioParams(settings, settings.family.frame_size, 0, 1, 0.0, keys, tensors)
    return AudioParams(settings, *_sizes(keys, "audio", tensors), keys, tensors)


def _sizes(
    keys: Keys, kind: str, tensors: Mapping[str, Tensor], *, has_layers: bool = True
) -> tuple[int, int, int, float]:
    """Return width, number of layers, number of heads and norm epsilon.

    The width is compared with the tensors: a family may compute tables of that size before it reads one.
    """
    width = keys.positive(f"{kind}.embedding_length")
    heads, n_layers = 1, 0
    if has_layers:
        heads, n_layers = keys.positive(f"{kind}.attention.head_count"), keys.positive(f"{kind}.block_count")
    if n_layers > _MAX_BLOCKS or width % heads != 0:
        raise ModelError(
            f"the encoder has {n_layers} layers of width {width} with {heads} heads; expected at most {_MAX_BLOCKS}"
            " layers and a width divisible by the heads"
        )
    if all(width not in tensor.shape for tensor in tensors.values()):
        raise ModelError(
            f"metadata key clip.{kind}.embedding_length is {width}, but no tensor of the file has a dimension of that"
            " size; fetch the file again"
        )
    eps = keys.number(f"{kind}.attention.layer_norm_epsilon")
    if not eps >= 0:
        raise ModelError(f"metadata key clip.{kind}.attention.layer_norm_epsilon is {eps:g}; expected 0 or more")
    return width, n_layers, heads, eps
