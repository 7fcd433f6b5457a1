"""GLM 4.1V, 4.5V, GLM-OCR: Qwen 2 VL with RMS norms, SwiGLU, interpolated positions, 2 x 2 convolution and an MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from woolly.gguf import Tensor
from woolly.multimodal.encoder.derived_tensors import as_matrix
from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, interpolate_pos_embed, merge_order, position_ids
from woolly.multimodal.encoder.vit import layer, vision_rope
from woolly.multimodal.families.qwen2vl import patches
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.smart_resize import smart_tiling
from woolly.plan import Tracer

if TYPE_CHECKING:
    from woolly.multimodal.processing.tiling import Tiling
    from woolly.multimodal.vision_settings import VisionSettings

_FILTER = "mm.patch_merger.weight"
_MIN_ROWS = 8


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. GLM-OCR has neither a norm after the patches nor a position table."""
    x, rope = patches(p, hp), vision_rope(hp)
    x = p.rms_norm(x, "v.norm_embd", eps=hp.eps) if p.has("v.norm_embd") else x
    x = p.embedding_bag(x, "v.position_embd", taps=16) if p.has("v.position_embd") else x
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="silu", norm="rms", rope=rope)
    y = p.merge_patches(p.rms_norm(x, "v.post_ln", eps=hp.eps), rows=hp.merge**2, kind="interleave")
    y = p.linear(y, "mm.patch_merger", width=p.rows("mm.patch_merger"))
    y = p.linear(y, "mm.model.fc", width=p.rows("mm.model.fc"))
    y = p.unary(p.layer_norm(y, "mm.post_norm", eps=1e-5), "gelu_erf")
    gate, up = (p.linear(y, name, width=p.rows(name)) for name in ("mm.gate", "mm.up"))
    p.output(p.linear(p.glu(gate, up, "silu"), "mm.down", width=p.rows("mm.down")), "embeddings", "none")


def remake(hp: TowerParams) -> dict[str, Tensor]:
    """Reshape the convolution to a matrix."""
    return {_FILTER: as_matrix(hp.tensors[_FILTER])} if _FILTER in hp.tensors else {}


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order."""
    order = merge_order(grid, hp.merge)
    outputs, rope_positions = np.arange(0, len(order), hp.merge**2, dtype=np.int32), position_ids(grid, order)
    if not hp.table_side:
        return PatchLayout(order, outputs, rope_positions=rope_positions)
    gather_rows, gather_weights = interpolate_pos_embed(grid, order, hp.table_side, "bicubic", 16)
    return PatchLayout(
        order, outputs, rope_positions=rope_positions, gather_rows=gather_rows, gather_weights=gather_weights
    )


def choose_tiling(height: int, width: int, settings: VisionSettings) -> Tiling:
    """Return a single input, after enlarging an image with a side shorter than a row."""
    side = settings.patch_size * settings.merge_size
    if min(height, width) < side:
        scale = max(side / height, side / width)
        height, width = int(height * scale), int(width * scale)
    return smart_tiling(height, width, settings, _MIN_ROWS)


FAMILIES = (
    VisionFamily(
        name="glm4v",
        begin="<|begin_of_image|>",
        end="<|end_of_image|>",
        placeholder_texts=("<|begin_of_image|><|image|><|end_of_image|>", "<|image|>"),
        has_mrope=True,
        merge_size=2,
        merge_key="spatial_merge_size",
        choose_tiling=choose_tiling,
        build=build,
        patch_layout=patch_layout,
        remake=remake,
    ),
)
