"""MiniCPM-V 2.6, 4.0 and 4.5: SigLIP, then cross-attention of learned queries to its patches (resampler)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import Tensor
from woolly.multimodal.encoder.derived_tensors import f32_tensor
from woolly.multimodal.encoder.exact_math import powers, sines
from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, Int32, PatchLayout, position_ids
from woolly.multimodal.encoder.vit import layer
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.slices import process_slices, slice_parts, slice_tiling
from woolly.multimodal.vision_settings import MAX_PATCHES
from woolly.plan import Tracer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from woolly.multimodal.vision_settings import VisionSettings

_HEAD = 128  # columns per head of the resampler
_MAX_SIDE = 70  # maximum lines and columns with sinusoidal positions


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. Query rows run through the layers with the patches, but no row attends to them."""
    x = p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width)
    x = p.embedding_bag(x, "v.position_embd")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu", mask="block")
    x = p.layer_norm(x, "v.post_ln", eps=hp.eps)
    with p.scope("resampler"):
        width = p.rows("attn.out")
        kv = p.linear(x, "kv", width=width) if p.has("kv") else x
        v = p.layer_norm(kv, "ln_kv", eps=1e-6)
        q = p.layer_norm(p.embedding_bag(kv * 0.0, "query", first=3), "ln_q", eps=1e-6)
        k = p.embedding_bag(v, "waves", first=1, taps=2)
        q, k, v = (p.linear(one, f"attn.{name}", width=width) for one, name in ((q, "q"), (k, "k"), (v, "v")))
        a = p.output_rows(p.attention(q, k, v, head_dim=_HEAD, scale=_HEAD**-0.5, mask="block"))
        y = p.layer_norm(p.linear(a, "attn.out", width=width), "ln_post", eps=1e-6)
        p.skip("pos_embed_k", "pos_embed")
        p.output(p.linear(y, "proj", width=p.rows("proj")), "embeddings", "none")


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Compute the sinusoidal position embeddings of lines and columns."""
    width = hp.tensors["resampler.attn.out.weight"].shape[0]
    half, quarter = width // 2, width // 4
    rope_positions = np.arange(_MAX_SIDE)[:, None] / powers(10000, [Fraction(i, quarter) for i in range(quarter)])
    waves = np.zeros((2, _MAX_SIDE, width))
    waves[0, :, :half] = np.concatenate(sines(rope_positions), axis=1)  # columns
    waves[1, :, half:] = waves[0, :, :half]  # lines
    return {"resampler.waves.weight": f32_tensor("resampler.waves.weight", waves.reshape(-1, width))}


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in raster order, then the queries, which are the outputs. All rows attend to the patches."""
    n, n_queries, side = grid[1] * grid[2], hp.settings.n_queries, hp.table_side
    if max(grid[1:]) > _MAX_SIDE:
        raise ValueError(
            f"the image has {grid[1]} x {grid[2]} patches; the encoder supports at most {_MAX_SIDE} x {_MAX_SIDE}"
        )
    order = np.append(np.arange(n, dtype=np.int32), np.full(n_queries, -1, np.int32))
    lines, columns = position_ids(grid, order[:n])
    gather_rows = np.full((len(order), 4), -1, np.int32)
    gather_rows[:n, 0] = _bucket(lines, grid[1], side) * side + _bucket(columns, grid[2], side)
    gather_rows[:n, 1], gather_rows[:n, 2] = columns, _MAX_SIDE + lines
    gather_rows[n:, 3] = np.arange(n_queries)
    attn_ranges = np.tile(np.array([0, n], np.int32), (len(order), 1))
    outputs = np.arange(n, n + n_queries, dtype=np.int32)
    return PatchLayout(
        order,
        outputs,
        attn_ranges=attn_ranges,
        gather_rows=gather_rows,
        gather_weights=np.ones(gather_rows.shape, np.float32),
    )


def _bucket(at: Int32, length: int, side: int) -> npt.NDArray[np.intp]:
    """Map patch rows or columns of an image to indices into the position table."""
    edges = np.arange(1, side, dtype=np.float32) * np.float32(1 / side)
    gather_weights = at.astype(np.float32) * np.float32(1 / length)
    return np.asarray(np.searchsorted(edges, gather_weights, side="right"), np.intp)


def max_patches(hp: TowerParams) -> int:
    """Return the number of patches of a slice, whose sides are rounded to multiples of a patch."""
    return 2 * hp.side**2


def read(settings: VisionSettings, metadata: Mapping[str, Any]) -> VisionSettings:
    """Return the settings with the rows per input; raise UnsupportedError for versions with another layout."""
    version = metadata.get("clip.minicpmv_version", 2)
    if not isinstance(version, int) or version < 3:
        raise UnsupportedError(f"clip.minicpmv_version is {version!r:.60}; expected 3 (MiniCPM-V 2.6) or later")
    number = metadata.get("clip.minicpmv_query_num", 0)
    if not isinstance(number, int) or not 0 <= number <= MAX_PATCHES:
        raise ModelError(f"metadata key clip.minicpmv_query_num is {number!r:.60}; expected a number of rows")
    return replace(settings, n_queries=number or 64)


FAMILIES = (
    VisionFamily(
        name="resampler",
        placeholder_texts=("(<image>./</image>)",),
        parts=slice_parts,
        read=read,
        choose_tiling=slice_tiling,
        process=process_slices,
        build=build,
        patch_layout=patch_layout,
        max_patches=max_patches,
        remake=remake,
    ),
)
