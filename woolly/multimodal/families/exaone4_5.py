"""EXAONE 4.5: Qwen 2.5 VL's encoder with grouped KV heads. Positions in the text are ordinary."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from woolly.errors import ModelError
from woolly.multimodal.families.qwen2vl import QWEN2, build, patch_layout, windowed_layout
from woolly.multimodal.processing.smart_resize import limit_rows

if TYPE_CHECKING:
    from woolly.multimodal.encoder.params import TowerParams
    from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
    from woolly.plan import Tracer

_MAX_ROWS = 1280  # value of the processor, if the file has no pixel limit


def build_grouped(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder, without windows if the file has no pattern of them."""
    kv_heads, name = hp.keys.positive("vision.attention.head_count_kv", hp.heads), "v.blk.0.attn_qkv"
    if p.rows(name) != (hp.heads + 2 * kv_heads) * hp.head_dim:
        raise ModelError(
            f"{name}.weight has {p.rows(name)} rows, but {hp.heads} heads and twice {kv_heads} KV heads (metadata key"
            f" clip.vision.attention.head_count_kv) of {hp.head_dim} need {(hp.heads + 2 * kv_heads) * hp.head_dim}"
        )
    build(p, hp, "rms", _period(hp))


def _period(hp: TowerParams) -> int:
    return hp.keys.positive("vision.n_wa_pattern", 1) if hp.keys.integer("vision.n_wa_pattern", 0) else 1


def layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order, grouped by attention window if there are windows."""
    return windowed_layout(hp, grid) if _period(hp) > 1 else patch_layout(hp, grid)


FAMILIES = (
    replace(
        QWEN2,
        name="exaone4_5",
        begin="<vision>",
        end="</vision>",
        placeholder_texts=("<vision><|image_pad|></vision>", "<|image_pad|>"),
        has_mrope=False,
        video=None,
        read=partial(limit_rows, most=_MAX_ROWS),
        build=build_grouped,
        patch_layout=layout,
    ),
)
