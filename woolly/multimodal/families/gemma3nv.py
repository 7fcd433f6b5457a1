"""Vision encoder of Gemma 3n: MobileNet-V5 and multi-scale fusion of resolutions 16 and 32.

A row is an image position with all channels, so 1 x 1 convolutions are matrix products and norms are row norms. The
last resolution has rows of 32 x 32 pixels. Dense k x k convolutions are also matrix products, over concatenated rows of
the previous stage. Depthwise convolutions gather rows by `Batch.gather_rows`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError
from woolly.gguf import Tensor
from woolly.multimodal.encoder.derived_tensors import f32_tensor
from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, Int32, PatchLayout, merge_order
from woolly.multimodal.encoder.stage import StageBuilder
from woolly.multimodal.families.gemma3na import hard_embeddings
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.single_image import process_single, square_tiling
from woolly.multimodal.prompt_replacement import Placeholder, input_rows
from woolly.plan import Handle, Tracer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from woolly.multimodal.processed_item import ProcessedItem
    from woolly.multimodal.vision_settings import VisionSettings

_EPS = 1e-6
_SIDE = 16  # prompt rows per side; independent of the image size
_END = 0  # index of the end of an image in the embedding table of image tokens
# Columns of `gather_rows`: 3 x 3 and 5 x 5 filters around each position, then the strided filters.
_FILTERS = ((3, 1), (5, 1), (3, 2), (5, 2))
_FIRST = {one: sum(side**2 for side, _ in _FILTERS[:i]) for i, one in enumerate(_FILTERS)}


def _blocks(hp: TowerParams, group: int) -> list[str]:
    """Return the block names of one resolution."""
    out = list[str]()
    while any(name.startswith(f"v.blk.{group}.{len(out)}.") for name in hp.tensors):
        out.append(f"v.blk.{group}.{len(out)}")
    if not out:
        raise ModelError(f"the encoder has no blocks v.blk.{group}")
    return out


def _conv(p: Tracer, x: Handle, name: str, norm: str) -> Handle:
    """Build a convolution as a matrix product, and its norm."""
    return p.rms_norm(p.linear(x, name, width=p.rows(name)), norm, eps=_EPS)


def _around(p: Tracer, x: Handle, name: str, stride: int = 1, *, is_wanted: bool = False) -> Handle:
    """Build a depthwise convolution."""
    side = math.isqrt(p.columns_of(name))
    if (side, stride) not in _FIRST:
        raise ModelError(f"tensor {name}.weight is a filter of {side} x {side}; expected 3 x 3 or 5 x 5")
    return p.gather_conv1d(x, name, first=_FIRST[side, stride], taps=side**2, is_wanted=is_wanted)


def _stem(p: Tracer, hp: TowerParams) -> None:
    x = p.input(width=p.columns_of("v.conv_stem.conv"))
    x = p.unary(_conv(p, x, "v.conv_stem.conv", "v.conv_stem.bn"), "gelu")
    p.output(p.output_rows(x), "embeddings", "none")


def _edge(p: Tracer, hp: TowerParams, name: str) -> None:
    """Build an edge residual (fused inverted bottleneck): a dense 3 x 3 convolution, with the row itself as tap 5."""
    with p.scope(name):
        x = p.input(width=(n := p.columns_of("conv_exp")))
        y = _conv(p, p.unary(_conv(p, x, "conv_exp", "bn1"), "gelu"), "conv_pwl", "bn2")
        if not name.endswith(".0"):
            y = y + p.slice(x, first=n // 9 * 4, width=n // 9)
    p.output(p.output_rows(y), "embeddings", "none")


def _inverted(p: Tracer, x: Handle, name: str) -> Handle:
    """Build an inverted bottleneck; the first block of a resolution downsamples."""
    fewer = name.endswith(".0")
    with p.scope(name):
        y = x
        if p.has("dw_start.conv"):
            y = p.rms_norm(_around(p, y, "dw_start.conv"), "dw_start.bn", eps=_EPS)
        y = p.unary(_conv(p, y, "pw_exp.conv", "pw_exp.bn"), "gelu")
        if p.has("dw_mid.conv"):
            y = _around(p, y, "dw_mid.conv", 1 + fewer, is_wanted=fewer)
            y = p.unary(p.rms_norm(y, "dw_mid.bn", eps=_EPS), "gelu")
        elif fewer:
            raise ModelError(f"tensor {name}.dw_mid.conv.weight is missing; it is the only convolution with a stride")
        y = _scaled(p, _conv(p, y, "pw_proj.conv", "pw_proj.bn"))
        return y if fewer else x + y


def _attention(p: Tracer, x: Handle, name: str) -> Handle:
    """Build multi-query attention: one KV head, over every position or every second position."""
    with p.scope(name):
        h = p.rms_norm(x, "norm", eps=_EPS)
        q = p.linear(h, "attn.query.proj", width=p.rows("attn.query.proj"))
        k, v = (_shared(p, h, f"attn.{one}") for one in ("key", "value"))
        a = p.attention(
            q,
            k,
            v,
            head_dim=k.width,
            scale=k.width**-0.5,
            mask="block" if p.has("attn.key.down_conv") else "all",
        )
        return x + _scaled(p, p.linear(a, "attn.output.proj", width=x.width))


def _shared(p: Tracer, h: Handle, name: str) -> Handle:
    """Build keys or values. Rows skipped by the downsampling are masked."""
    with p.scope(name):
        if p.has("down_conv"):
            h = p.rms_norm(_around(p, h, "down_conv", 2), "norm", eps=_EPS)
        return p.linear(h, "proj", width=p.rows("proj"))


def _scaled(p: Tracer, y: Handle) -> Handle:
    p.skip("layer_scale.gamma")  # used under another name
    return y * p.vector("layer_scale") if p.has("layer_scale") else y


def _block(p: Tracer, x: Handle, name: str) -> Handle:
    return _attention(p, x, name) if p.has(f"{name}.attn.query.proj") else _inverted(p, x, name)


def _middle(p: Tracer, hp: TowerParams, names: list[str], width: int) -> None:
    """Build the blocks of one resolution; after the last, also the downsampling block of the next resolution."""
    x = p.input(width=width)
    for name in names:
        x = _block(p, x, name)
    p.output(x if names[-1].endswith(".0") else p.output_rows(x), "embeddings", "none")


def _fewer(p: Tracer, hp: TowerParams, name: str, width: int) -> None:
    """Build the downsampling block of the last resolution. Its rows have their four source rows as extra columns."""
    x = p.input(width=width)
    p.output(p.concat(_inverted(p, x, name), p.merge_patches(x, rows=4, kind="concat")), "embeddings", "none")


def _last(p: Tracer, hp: TowerParams, names: list[str], width: int, kept: int) -> None:
    given = p.input(width=width + kept)
    x = p.slice(given, first=0, width=width)
    for name in names:
        x = _block(p, x, name)
    p.output(p.output_rows(p.concat(x, p.slice(given, first=width, width=kept))), "embeddings", "none")


def _fusion(p: Tracer, hp: TowerParams) -> None:
    """Build the multi-scale fusion of two resolutions and pool it to prompt rows."""
    with p.scope("v.msfa"):
        x = p.input(width=p.columns_of("ffn.pw_exp.conv"))
        x = p.unary(_conv(p, x, "ffn.pw_exp.conv", "ffn.pw_exp.bn"), "gelu")
        x = _conv(p, x, "ffn.pw_proj.conv", "ffn.pw_proj.bn")
        x = p.rms_norm(p.merge_patches(x, rows=_pooled(hp) ** 2, kind="mean"), "norm", eps=_EPS)
    y = p.rms_norm(p.scale(x, x.width**0.5), "mm.soft_emb_norm", eps=_EPS)
    y = p.linear(y, "mm.input_projection", width=p.rows("mm.input_projection"))
    p.skip("mm.embedding", "mm.hard_emb_norm")  # used by `constants`
    p.output(p.rms_norm(y, eps=_EPS), "embeddings", "none")


def _pooled(hp: TowerParams) -> int:
    """Return the number of 16-pixel positions per side that one prompt row covers."""
    if hp.settings.image_size % (16 * _SIDE):
        raise ModelError(
            f"metadata key clip.vision.image_size is {hp.settings.image_size}; expected a multiple of {16 * _SIDE}"
        )
    return hp.settings.image_size // 16 // _SIDE


def stages(hp: TowerParams) -> tuple[StageBuilder, ...]:
    """Build the stem, then one stage per resolution."""
    _pooled(hp)
    edges, (one, *ones), (two, *twos), (last, *lasts) = (_blocks(hp, group) for group in range(4))
    widths = [_out(hp, f"{edges[-1]}.conv_pwl"), *(_out(hp, f"{name}.pw_proj.conv") for name in (one, two, last))]
    return (
        StageBuilder(_stem, ("v.conv_stem.",)),
        *(StageBuilder(partial(_edge, name=name), (f"{name}.",)) for name in edges),
        StageBuilder(partial(_middle, names=[one], width=widths[0]), (f"{one}.",)),
        StageBuilder(partial(_middle, names=[*ones, two], width=widths[1]), ("v.blk.1.", f"{two}."), patches=4),
        StageBuilder(partial(_middle, names=twos, width=widths[2]), ("v.blk.2.",), patches=16),
        StageBuilder(partial(_fewer, name=last, width=widths[2]), (f"{last}.",), patches=16),
        StageBuilder(partial(_last, names=lasts, width=widths[3], kept=4 * widths[2]), ("v.blk.3.",), patches=64),
        StageBuilder(_fusion, ("",), patches=16),
    )


def _out(hp: TowerParams, name: str) -> int:
    """Return the output channels of a convolution."""
    if f"{name}.weight" not in hp.tensors:
        raise ModelError(f"tensor {name}.weight is missing")
    return hp.tensors[f"{name}.weight"].shape[0]


def max_patches(hp: TowerParams) -> int:
    """Return the number of rows of the largest stage with attention, whose positions have 4 pixels."""
    return (hp.settings.image_size // 4) ** 2


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Reshape convolutions to matrices (columns ordered by tap, then channel) and rename layer scales to weights."""
    out = {}
    for name, tensor in hp.tensors.items():
        if not name.startswith(("v.conv_stem.", "v.blk.", "v.msfa.")):
            continue
        if name.endswith(".gamma"):
            own = f"{name.removesuffix('.gamma')}.weight"
            out[own] = f32_tensor(own, tensor.dequantize().reshape(-1))
        elif name.endswith(".bias"):
            out[name] = replace(tensor, shape=(math.prod(tensor.shape),))
        elif len(tensor.shape) == 4 and tensor.shape[2:] == (1, 1):
            out[name] = replace(tensor, shape=tensor.shape[:2])
        elif len(tensor.shape) == 4:
            array = tensor.dequantize().reshape(tensor.shape).transpose(0, 2, 3, 1)
            out[name] = f32_tensor(name, array.reshape(len(array), -1))
    return out


def constants(hp: TowerParams) -> npt.NDArray[np.float32]:
    """Return the row at the end of an image, [1, width]."""
    return hard_embeddings(hp.tensors, "mm", [_END])


def patch_layout(hp: TowerParams, grid: Grid) -> tuple[PatchLayout, ...]:
    """Return the positions of each resolution in raster order, and the positions with keys and values."""
    size = hp.settings.image_size
    if grid != (1, _SIDE, _SIDE):
        raise ValueError(f"the encoder reads images of {_SIDE} x {_SIDE} patches, not {grid[1]} x {grid[2]}")
    edges = len(_blocks(hp, 0))
    filters = [_taps(size // 2, 3, 2), *[_taps(size // 4, 3, 1)] * (edges - 1)]
    return (
        _all(_pixels(size), unit=1),
        *(_all(one) for one in filters),
        _reading(merge_order((1, size // 4, size // 4), 1), size // 4, fewer=True),
        _reading(merge_order((1, size // 8, size // 8), 1), size // 8, fewer=True),
        _reading(_seconds_first(size // 16), size // 16),
        _reading(merge_order((1, size // 16, size // 16), 2), size // 16, fewer=True),
        _reading(_seconds_first(size // 32), size // 32),
        _fused(hp, size // 16),
    )


def _all(order: Int32, unit: int = 0) -> PatchLayout:
    return PatchLayout(order, np.arange(len(order), dtype=np.int32), unit=unit)


def _pixels(size: int) -> Int32:
    """Return the indices of the first convolution's inputs, [n, 27], one filter row after the other."""
    patch = size // _SIDE
    numbers = np.arange(3 * size**2, dtype=np.int32).reshape(_SIDE, _SIDE, 3, patch, patch)
    lines = numbers.transpose(0, 3, 1, 4, 2).reshape(size**2, 3)
    taps = _taps(size, 3, 2)
    return np.where(taps[:, :, None] < 0, -1, lines[taps]).reshape(len(taps), 27).astype(np.int32)


def _taps(side: int, filter: int, stride: int) -> Int32:
    """Return the inputs of a filter over side x side positions, [n, filter ** 2]; -1 is padding.

    The stride is 1 or 2. As with "same" padding, the extra row of an odd padding is at the end.
    """
    before = (filter - stride) // 2
    along = np.arange(0, side, stride)[:, None] + np.arange(filter) - before
    along = np.where((along < 0) | (along >= side), -1, along)
    lines, columns = along[:, None, :, None], along[None, :, None, :]
    taps = np.where((lines < 0) | (columns < 0), -1, lines * side + columns)
    return taps.reshape(-1, filter**2).astype(np.int32)


def _seconds(side: int) -> Int32:
    """Return every second position of every second line."""
    return (np.arange(0, side, 2)[:, None] * side + np.arange(0, side, 2)).reshape(-1).astype(np.int32)


def _seconds_first(side: int) -> Int32:
    """Return all positions, those with visible keys first."""
    seen = _seconds(side)
    return np.concatenate([seen, np.setdiff1d(np.arange(side**2, dtype=np.int32), seen)]).astype(np.int32)


def _reading(order: Int32, side: int, *, fewer: bool = False) -> PatchLayout:
    """Return a layout with rows in this order and the filter inputs of each row. Results are in raster order."""
    row_of = np.argsort(order).astype(np.int32)
    seen = _seconds(side)
    gather_rows = np.full((side**2, sum(n**2 for n, _ in _FILTERS)), -1, np.int32)
    for filter, stride in _FILTERS:
        taps = _taps(side, filter, stride)
        rows = row_of if stride == 1 else row_of[seen]
        columns = slice(_FIRST[filter, stride], _FIRST[filter, stride] + filter**2)
        gather_rows[rows, columns] = np.where(taps < 0, -1, row_of[taps])
    outputs = np.sort(row_of[seen]) if fewer else np.arange(side**2, dtype=np.int32)
    attn_ranges = np.tile(np.array([0, len(seen)], np.int32), (side**2, 1))
    made_at = row_of[seen] if fewer else row_of
    return PatchLayout(
        order,
        outputs,
        results=np.searchsorted(outputs, made_at).astype(np.int32),
        attn_ranges=attn_ranges,
        gather_rows=gather_rows,
        gather_weights=np.ones(gather_rows.shape, np.float32),
    )


def _fused(hp: TowerParams, side: int) -> PatchLayout:
    """Return each position with its channels and those of its 2 x 2 block, in the order of pooling blocks."""
    wide, own = (_out(hp, f"v.blk.{group}.0.pw_proj.conv") for group in (3, 2))
    unit = math.gcd(wide, own)
    order = merge_order((1, side, side), _pooled(hp))
    lines, columns = order // side, order % side
    block = (lines // 2 * (side // 2) + columns // 2)[:, None] * ((wide + 4 * own) // unit)
    inside = wide // unit + (lines % 2 * 2 + columns % 2)[:, None] * (own // unit)
    units = np.concatenate([block + inside + np.arange(own // unit), block + np.arange(wide // unit)], axis=1)
    outputs = np.arange(0, len(order), _pooled(hp) ** 2, dtype=np.int32)
    return PatchLayout(units.astype(np.int32), outputs, unit=unit)


def read(settings: VisionSettings, metadata: Mapping[str, Any]) -> VisionSettings:
    """Return the settings with a patch per prompt row; `patch_size` in files is wrong."""
    return replace(settings, patch_size=max(1, settings.image_size // _SIDE))


def parts(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Return all rows, then the end row of the file."""
    rows = input_rows(prepared, 0, settings)
    return [rows, Placeholder(prepared, 0, rows.n, 1)]


FAMILIES = (
    VisionFamily(
        name="gemma3nv",
        begin="\n\n<start_of_image>",
        end="\n\n",
        placeholder_texts=("<image_soft_token>",),
        parts=parts,
        read=read,
        choose_tiling=square_tiling,
        process=partial(process_single, filter="bilinear"),
        stages=stages,
        patch_layout=patch_layout,
        max_patches=max_patches,
        remake=remake,
        constants=constants,
    ),
)
