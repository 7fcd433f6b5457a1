"""CogVLM: EVA-CLIP with post-norm layers over a square image, a gated MLP, and two constant rows around an image."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.vit import max_patches, mlp, square, with_class
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.single_image import square_tiling
from woolly.multimodal.prompt_replacement import Placeholder, input_rows
from woolly.plan import Handle, Tracer

if TYPE_CHECKING:
    from woolly.multimodal.processed_item import ProcessedItem
    from woolly.multimodal.vision_settings import VisionSettings

_CONSTANTS = ("v.boi", "v.eoi")  # rows before and after an image

_EPS = 1e-5  # epsilon of the projector's norm; not in files


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder and the projector."""
    x = p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width)
    x = p.embedding_bag(with_class(p, x), "v.position_embd")
    for i in range(hp.n_layers):
        with p.scope(f"v.blk.{i}"):
            x = _layer(p, x, hp)
    p.skip(*_CONSTANTS)
    y = p.linear(p.output_rows(x), "mm.model.fc", width=p.rows("mm.model.fc"))
    y = p.unary(p.layer_norm(y, "mm.post_fc_norm", eps=_EPS), "gelu_erf")
    gate, up = (p.linear(y, name, width=p.rows("mm.up")) for name in ("mm.gate", "mm.up"))
    p.output(p.linear(p.glu(gate, up), "mm.down", width=p.rows("mm.down")), "embeddings", "none")


def _layer(p: Tracer, x: Handle, hp: TowerParams) -> Handle:
    """Build attention and MLP, each with a norm before its residual."""
    q, k, v = (p.linear(x, "attn_qkv", width=hp.width, first=i * hp.width) for i in range(3))
    a = p.attention(q, k, v, head_dim=hp.head_dim, scale=hp.head_dim**-0.5, mask="all")
    x = x + p.layer_norm(p.linear(a, "attn_out", width=hp.width), "ln1", eps=hp.eps)
    return x + p.layer_norm(mlp(p, x, "ffn_up", "ffn_down"), "ln2", eps=hp.eps)


def parts(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Return all rows between the two constant rows of the file.

    Patch rows share one position; the last row has a separate position.
    """
    rows = input_rows(prepared, 0, settings)
    first, last = (Placeholder(prepared, 0, rows.n + i, 1, uses_visual_expert=i == 0) for i in range(2))
    return [first, replace(rows, shares_position=True, uses_visual_expert=True), last]


FAMILIES = (
    VisionFamily(
        name="cogvlm",
        placeholder_texts=("<image>",),
        parts=parts,
        choose_tiling=square_tiling,
        build=build,
        patch_layout=partial(square, has_class=True),
        max_patches=max_patches,
        constant_names=_CONSTANTS,
    ),
)
