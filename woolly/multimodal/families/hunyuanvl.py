"""Hunyuan VL and HunyuanOCR: a ViT, 2 x 2 convolutions, and a matrix with norms before and after it.

Positions and rope follow the original implementation, with which the weights were trained. In transformers, the
position table is resized to the exact size, and the halves of a pair rotate by two different positions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError
from woolly.gguf import Tensor
from woolly.multimodal.encoder.derived_tensors import f32_tensor
from woolly.multimodal.encoder.exact_math import product
from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, interpolate_pos_embed, merge_order
from woolly.multimodal.encoder.vit import layer, mlp
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.smart_resize import smart_tiling
from woolly.multimodal.prompt_replacement import Placeholder
from woolly.plan import Tracer

if TYPE_CHECKING:
    from woolly.multimodal.processed_item import ProcessedItem
    from woolly.multimodal.vision_settings import VisionSettings

_MARGIN = 0.1  # the original implementation adds it to the side when it computes the scale
_ROWS = ("v.image_newline", "mm.image_begin", "mm.image_end")
_MIN_ROWS = 256


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder."""
    x = p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width)
    x = p.embedding_bag(x, "v.position_embd", taps=4)
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu_erf")
    x = p.merge_patches(p.rms_norm(x, "mm.pre_norm", eps=hp.eps), rows=hp.merge**2, kind="concat")
    y = p.linear(mlp(p, x, "mm.0", "mm.2"), "mm.model.fc", width=p.rows("mm.model.fc"))
    p.skip(*_ROWS, "v.view_seperator")  # read by `constants`, or only used for videos
    p.output(p.rms_norm(y, "mm.post_norm", eps=hp.eps), "embeddings", "none")


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order."""
    order = merge_order(grid, hp.merge)
    gather_rows, gather_weights = interpolate_pos_embed(grid, order, hp.table_side, "bilinear", 4, _MARGIN)
    return PatchLayout(
        order,
        np.arange(0, len(order), hp.merge**2, dtype=np.int32),
        gather_rows=gather_rows,
        gather_weights=gather_weights,
    )


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Reshape convolutions to matrices, with columns ordered by tap, then channel."""
    out = {}
    for name in ("mm.0.weight", "mm.2.weight"):
        tensor = hp.tensors.get(name)
        if tensor is not None and len(tensor.shape) == 4:
            array = tensor.dequantize().reshape(tensor.shape).transpose(0, 2, 3, 1)
            out[name] = f32_tensor(name, array.reshape(len(array), -1))
    return out


def constants(hp: TowerParams) -> npt.NDArray[np.float32]:
    """Return the rows at the end of a line, the start of an image and the end of an image, [3, width]."""
    names = (*_ROWS, "mm.model.fc.weight", "mm.model.fc.bias", "mm.post_norm.weight")
    if missing := [name for name in names if name not in hp.tensors]:
        raise ModelError(f"tensor {missing[0]} is missing")
    end, begin, last, matrix, bias, scale = (
        hp.tensors[name].dequantize().reshape(hp.tensors[name].shape).astype(np.float64) for name in names
    )
    line = product(end.reshape(1, -1), np.ascontiguousarray(matrix.T))[0] + bias
    rows = np.stack([line, begin.reshape(-1), last.reshape(-1)])
    squares = product(rows**2, np.ones((rows.shape[1], 1)))
    normed: npt.NDArray[np.float64] = rows / np.sqrt(squares / rows.shape[1] + hp.eps) * scale
    return normed.astype(np.float32)


def parts(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Return lines of rows with constant rows before and after the image, and at the end of each line."""
    _, height, width = settings.merged_grid(prepared.inputs[0].grid_thw)
    n = height * width
    parts: list[str | Placeholder] = [Placeholder(prepared, 0, n + 1, 1)]
    for y in range(height):
        parts.append(Placeholder(prepared, 0, y * width, width, cell=(y, 0, index)))
        parts.append(Placeholder(prepared, 0, n, 1, cell=(y, width, index)))
    return [*parts, Placeholder(prepared, 0, n + 2, 1)]


_BEGIN, _END, _ROW = (f"<｜hy_place▁holder▁no▁{number}｜>" for number in (100, 101, 102))

FAMILIES = (
    VisionFamily(
        name="hunyuanvl",
        begin=_BEGIN,
        end=_END,
        placeholder_texts=(f"{_BEGIN}{_ROW}{_END}", _ROW),
        parts=parts,
        merge_size=2,
        merge_key="spatial_merge_size",
        choose_tiling=partial(smart_tiling, min_rows=_MIN_ROWS),
        build=build,
        patch_layout=patch_layout,
        remake=remake,
        constants=constants,
    ),
)
