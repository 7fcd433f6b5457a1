"""Granite Vision 4: SigLIP, and a Q-Former over windows for each of several layers of the text model.

Each Q-Former reads the output of one layer of SigLIP. Its queries start from patches, averaged or at an offset. Tiles
are those of LLaVA 1.6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError
from woolly.multimodal.encoder.derived_tensors import f32_tensor
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
from woolly.multimodal.encoder.stage import StageBuilder
from woolly.multimodal.encoder.vit import layer
from woolly.multimodal.families.llava import FAMILIES as _LLAVA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from woolly.gguf import Tensor
    from woolly.multimodal.encoder.params import TowerParams
    from woolly.multimodal.vision_settings import VisionSettings
    from woolly.plan import Handle, Tracer

_HEAD = 64  # columns per head of the Q-Former
_EPS = 1e-12  # of the Q-Former
_MASK = 1e4  # subtracted from the scores of rows that a step ignores
_MAX_STREAMS = 64
_NEWLINE = "v.image_newline"
# Columns of `gather_rows`: position in the window, query, and rows ignored by self-attention and by cross-attention.
_POSITION, _QUERY, _SELF, _CROSS = range(4)


@dataclass(frozen=True)
class _Windows:
    """Sizes of the Q-Formers, in patches and queries per side, and the layer and the offset that each reads."""

    side: int
    window: int
    query: int
    layers: tuple[int, ...]
    offsets: tuple[int, ...]  # of the patch of each query in its block; -1: mean of the block

    @property
    def block(self) -> int:
        """Patches per side of the block of a query."""
        return self.window // self.query

    @property
    def n(self) -> int:
        """Windows per side."""
        return self.side // self.window

    def taps(self, stream: int) -> int:
        """Return the number of patches that a query of a stream starts from."""
        return self.block**2 if self.offsets[stream] < 0 else 1


def _windows(hp: TowerParams) -> _Windows:
    keys = hp.keys
    window, query = keys.positive("vision.projector.window_side"), keys.positive("vision.projector.query_side")
    layers = keys.whole_numbers("vision.feature_layer")
    offsets = keys.whole_numbers("vision.projector.spatial_offsets")
    if hp.side % window or window % query:
        raise ModelError(f"{hp.side} patches per side cannot form windows of {window} with {query} queries per side")
    if len(layers) != len(offsets) or len(layers) > _MAX_STREAMS or not all(0 <= i < hp.n_layers for i in layers):
        raise ModelError(
            f"metadata key clip.vision.feature_layer is {list(layers)!r:.60}; expected up to {_MAX_STREAMS} numbers"
            f" below {hp.n_layers}, as many as in clip.vision.projector.spatial_offsets"
        )
    if not all(-1 <= one < (4 if window == 2 * query else 0) for one in offsets):
        raise ModelError(
            f"metadata key clip.vision.projector.spatial_offsets is {list(offsets)!r:.60}; expected -1, or 0 to 3 for"
            " two patches per query and side"
        )
    return _Windows(hp.side, window, query, layers, offsets)


def stages(hp: TowerParams) -> tuple[StageBuilder, ...]:
    """Build SigLIP with the norm of each stream, then the Q-Formers."""
    norms = (f"v.proj_blk.{k}.norm." for k in range(len(_windows(hp).layers)))
    return (
        StageBuilder(_encoder, ("v.patch_embd.", "v.position_embd.", "v.blk.", "v.post_ln.", _NEWLINE, *norms)),
        StageBuilder(_projector, ("",)),
    )


def _encoder(p: Tracer, hp: TowerParams) -> None:
    windows, x = _windows(hp), p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width)
    x, seen = p.embedding_bag(x, "v.position_embd"), list[Any]()
    last = max(windows.layers)
    p.skip("v.post_ln", _NEWLINE, *(f"v.blk.{i}" for i in range(last + 1, hp.n_layers)))
    for i in range(last + 1):
        x = layer(p, x, hp, i, act="gelu")
        seen.append(x)
    normed = [p.layer_norm(seen[i], f"v.proj_blk.{k}.norm", eps=hp.eps) for k, i in enumerate(windows.layers)]
    y, *others = (p.output_rows(one) for one in normed)
    for one in others:
        y = p.concat(y, one)
    p.output(y, "embeddings", "none")


def _projector(p: Tracer, hp: TowerParams) -> None:
    """Build the Q-Formers. Attention blocks contain the patches and the queries of a window.

    An extra key column masks the queries or the patches.
    """
    windows, first = _windows(hp), 0
    x = p.input(width=hp.width * sum(windows.taps(k) for k in range(len(windows.layers))))
    nothing = p.slice(x, first=0, width=1) * 0.0
    looks = nothing + p.vector("v.proj_mask.looks")
    hides = {one: p.embedding_bag(nothing, "v.proj_mask", first=at) for one, at in (("self", _SELF), ("cross", _CROSS))}
    streams: list[Handle] = []
    for k in range(len(windows.layers)):
        taps = [p.slice(x, first=first + i * hp.width, width=hp.width) for i in range(windows.taps(k))]
        first += len(taps) * hp.width
        with p.scope(f"v.proj_blk.{k}"):
            streams.append(_query_rows(p, hp, taps, looks, hides))
    y, *others = streams
    for one in others:
        y = p.concat(y, one)
    p.output(y, "embeddings", "none")


def _query_rows(p: Tracer, hp: TowerParams, taps: list[Handle], looks: Handle, hides: dict[str, Handle]) -> Handle:
    """Build one layer of self-attention, cross-attention and MLP, each with a norm after it."""
    width, heads = hp.width, hp.width // _HEAD
    positioned, mean = p.embedding_bag(taps[0], "img_pos", first=_POSITION), taps[0]
    for one in taps[1:]:
        mean = mean + one
    mean = mean * (1.0 / len(taps)) if len(taps) > 1 else mean
    y = p.layer_norm(p.embedding_bag(mean, "query", first=_QUERY), "post_norm", eps=_EPS)
    for which in ("self", "cross"):
        name, seen = f"{which}_attn", y if which == "self" else positioned
        q = p.linear(y, f"{name}_q", width=width)
        k, v = (p.linear(seen, f"{name}_{one}", width=width) for one in "kv")
        q, k = (p.concat(a, b, heads=heads, shared=True) for a, b in ((q, looks), (k, hides[which])))
        a = p.attention(q, k, v, head_dim=q.width // heads, scale=_HEAD**-0.5, mask="block")
        y = p.layer_norm(y + p.linear(a, f"{name}_out", width=width), f"{name}_norm", eps=_EPS)
    y = p.output_rows(y)
    h = p.unary(p.linear(y, "ffn_up", width=p.rows("ffn_up")), "gelu_erf")
    y = p.layer_norm(y + p.linear(h, "ffn_down", width=width), "ffn_norm", eps=_EPS)
    return p.linear(y, "linear", width=p.rows("linear"))


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Reshape queries and positions to matrices, and add the masks."""
    windows, width = _windows(hp), hp.width
    if width % _HEAD:
        raise ModelError(f"the encoder has width {width}; the Q-Former needs a multiple of {_HEAD}")
    out = {
        "v.proj_mask.weight": f32_tensor("v.proj_mask.weight", np.array([[-1.0]])),
        "v.proj_mask.looks": f32_tensor("v.proj_mask.looks", np.array([_MASK])),
    }
    for k in range(len(windows.layers)):
        for one, side in (("query", windows.query), ("img_pos", windows.window)):
            name = f"v.proj_blk.{k}.{one}"
            if name not in hp.tensors or hp.tensors[name].n_elements != side**2 * width:
                raise ModelError(f"tensor {name} is missing, or not {side} x {side} rows of {width} numbers")
            out[name] = f32_tensor(name, hp.tensors[name].dequantize().reshape(side**2, width))
    return out


def patch_layout(hp: TowerParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the patches in raster order, then windows: patches, then queries."""
    side, windows = hp.side, _windows(hp)
    if grid != (1, side, side):
        raise ValueError(f"the encoder reads images of {side} x {side} patches, not {grid[1]} x {grid[2]}")
    order = np.arange(side**2, dtype=np.int32)
    ones = np.ones((len(order), 1), np.float32)
    patches = PatchLayout(order, order, gather_rows=order[:, None], gather_weights=ones)
    n, n_patches, n_queries = windows.n, windows.window**2, windows.query**2
    of_window = order.reshape(n, windows.window, n, windows.window).swapaxes(1, 2).reshape(n**2, n_patches)
    # Patches of each query: [windows, queries, patches of its block].
    blocks = of_window.reshape(n**2, windows.query, windows.block, windows.query, windows.block)
    blocks = blocks.swapaxes(2, 3).reshape(n**2, n_queries, windows.block**2)
    n_streams, columns = len(windows.layers), list[npt.NDArray[np.int32]]()
    for k, offset in enumerate(windows.offsets):
        of_queries = blocks if offset < 0 else blocks[:, :, offset : offset + 1]
        of_patches = np.full((n**2, n_patches, windows.taps(k)), -1, np.int32)
        of_patches[:, :, 0] = of_window
        read = np.concatenate([of_patches, of_queries], axis=1)
        columns.append(np.where(read < 0, -1, read * n_streams + k).astype(np.int32))
    each = n_patches + n_queries
    gather_rows = np.full((n**2, each, 4), -1, np.int32)
    gather_rows[:, :n_patches, _POSITION] = np.arange(n_patches)
    gather_rows[:, n_patches:, _QUERY] = np.arange(n_queries)
    gather_rows[:, :n_patches, _SELF] = gather_rows[:, n_patches:, _CROSS] = 0
    first = np.repeat(np.arange(n**2, dtype=np.int32) * each, each)
    raster = np.arange(n**2 * n_queries, dtype=np.int32).reshape(n, n, windows.query, windows.query)
    queries = PatchLayout(
        np.concatenate(columns, axis=2).reshape(n**2 * each, -1),
        np.arange(n**2 * each, dtype=np.int32).reshape(-1, each)[:, n_patches:].reshape(-1),
        results=raster.swapaxes(1, 2).reshape(-1),
        attn_ranges=np.stack([first, first + each], axis=1),
        gather_rows=gather_rows.reshape(-1, 4),
        gather_weights=np.ones((n**2 * each, 4), np.float32),
        unit=hp.width,
    )
    return patches, queries


def max_patches(hp: TowerParams) -> int:
    """Return the number of patches and queries of a tile."""
    windows = _windows(hp)
    return hp.side**2 + (windows.n * windows.query) ** 2


def constants(hp: TowerParams) -> npt.NDArray[np.float32]:
    """Return the end of a line, the same for each stream."""
    if _NEWLINE not in hp.tensors:
        raise ModelError(f"tensor {_NEWLINE} is missing")
    row = hp.tensors[_NEWLINE].dequantize().reshape(1, -1).astype(np.float32)
    return np.tile(row, (1, len(_windows(hp).layers)))


def read(settings: VisionSettings, metadata: Mapping[str, Any]) -> VisionSettings:
    """Return the settings with the patches per query. Files list the width of a grid of tiles before its height."""
    window, query = (metadata.get(f"clip.vision.projector.{one}_side") for one in ("window", "query"))
    if type(window) is not int or type(query) is not int or not 0 < query <= window or not settings.pinpoints:
        raise ModelError(
            "the projector needs the metadata keys clip.vision.projector.window_side and query_side, and"
            " clip.vision.image_grid_pinpoints; fetch the file again"
        )
    swapped = tuple((height, width) for width, height in settings.pinpoints)
    return replace(settings, merge_size=window // query, pinpoints=swapped)


FAMILIES = (
    replace(
        _LLAVA[0],
        name="granite4_vision",
        read=read,
        build=None,
        stages=stages,
        patch_layout=patch_layout,
        max_patches=max_patches,
        remake=remake,
        constant_names=(),
        constants=constants,
    ),
)
