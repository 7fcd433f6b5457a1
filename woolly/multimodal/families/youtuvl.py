"""Youtu-VL: SigLIP 2 with 2D rope in place of positions, attention windows and a merger of 2 x 2 patches."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from woolly.errors import ModelError, RequestError
from woolly.multimodal.encoder.derived_tensors import f32_tensor
from woolly.multimodal.encoder.vit import layer, mlp, vision_rope
from woolly.multimodal.families.qwen2vl import patch_layout, windowed_layout
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.single_image import process_single
from woolly.multimodal.processing.smart_resize import max_pixels
from woolly.multimodal.processing.tiling import Tiling

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.multimodal.encoder.params import TowerParams
    from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
    from woolly.multimodal.vision_settings import VisionSettings
    from woolly.plan import Tracer

_FILTER = "v.patch_embd.weight"
_STEP = 0.02  # of the scale


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. The projector norms each patch."""
    x, rope, whole = p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width), vision_rope(hp), _whole(hp)
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act=hp.act or "gelu", rope=rope, mask="all" if not whole or i in whole else "block")
    x = p.rms_norm(p.layer_norm(x, "v.post_ln", eps=hp.eps), "mm.input_norm", eps=1e-6)
    p.output(mlp(p, p.merge_patches(x, rows=hp.merge**2, kind="concat"), "mm.0", "mm.2"), "embeddings", "none")


def _whole(hp: TowerParams) -> tuple[int, ...]:
    """Return the layers with full attention; none if all have it."""
    if not hp.keys.has("vision.wa_layer_indexes"):
        return ()
    found = hp.keys.whole_numbers("vision.wa_layer_indexes")
    if any(not 0 <= one < hp.n_layers for one in found):
        raise ModelError(
            f"metadata key clip.vision.wa_layer_indexes is {list(found)!r:.60}; expected layers from 0 to"
            f" {hp.n_layers - 1}"
        )
    return tuple(found)


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Reorder the columns of the patch embedding from line, column, channel to channel, line, column."""
    tensor, side = hp.tensors.get(_FILTER), hp.settings.patch_size
    if tensor is None or tensor.n_elements != hp.width * hp.patch:
        raise ModelError(f"tensor {_FILTER} is missing, or not of {hp.width} x {hp.patch}; fetch the file again")
    values = tensor.dequantize().reshape(hp.width, side, side, 3).transpose(0, 3, 1, 2)
    return {_FILTER: f32_tensor(_FILTER, values.reshape(hp.width, hp.patch))}


def layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order, grouped by attention window if there are windows."""
    return (
        windowed_layout(hp, grid)
        if set(range(hp.n_layers)) - set(_whole(hp) or range(hp.n_layers))
        else (patch_layout(hp, grid))
    )


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single input: sides rounded up to full rows at the first scale, in steps of 0.02, within the maximum."""
    row, most, scale = settings.patch_size * settings.merge_size, max_pixels(settings), 1.0
    while scale > _STEP / 2:
        high, wide = (max(1, math.ceil(side * scale / row)) * row for side in (height, width))
        if high * wide <= most:
            return Tiling(((high, wide),))
        scale -= _STEP
    raise RequestError(
        f"the image has {width} x {height} pixels, which is too large for this model; send a smaller one"
    )


FAMILIES = (
    VisionFamily(
        name="youtuvl",
        begin="<|vision_start|>",
        end="<|vision_end|>",
        placeholder_texts=("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>"),
        merge_size=2,
        merge_key="spatial_merge_size",
        choose_tiling=choose_tiling,
        process=partial(process_single, filter="bilinear"),
        build=build,
        patch_layout=layout,
        remake=remake,
    ),
)
