"""dots.ocr: Qwen 2.5 VL without windows, and with norms after the patch embedding and the last layer."""

from __future__ import annotations

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.vit import layer, mlp, vision_rope
from woolly.multimodal.families.qwen2vl import patch_layout
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.smart_resize import smart_tiling
from woolly.plan import Tracer

_NORM = 1e-6  # epsilon of the projector's norm


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. The projector norms each patch."""
    x = p.rms_norm(p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width), "v.pre_ln", eps=hp.eps)
    rope = vision_rope(hp)
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="silu", norm="rms", rope=rope)
    x = p.layer_norm(p.rms_norm(x, "mm.post_norm", eps=hp.eps), "mm.input_norm", eps=_NORM)
    p.output(mlp(p, p.merge_patches(x, rows=hp.merge**2, kind="concat"), "mm.0", "mm.2"), "embeddings", "none")


FAMILIES = (
    VisionFamily(
        name="dots_ocr",
        begin="<|img|>",
        end="<|endofimg|>",
        placeholder_texts=("<|img|><|imgpad|><|endofimg|>", "<|imgpad|>"),
        merge_size=2,
        min_image_size=0,
        choose_tiling=smart_tiling,
        build=build,
        patch_layout=patch_layout,
    ),
)
