"""Gemma 3: SigLIP over a square image, 4 x 4 average pooling, a norm and a matrix.

Pan and scan is not implemented; the processor disables it by default.
"""

from __future__ import annotations

from functools import partial

from woolly.multimodal.encoder.params import TowerParams
from woolly.multimodal.encoder.vit import layer, max_patches, square
from woolly.multimodal.family import VisionFamily
from woolly.multimodal.processing.single_image import process_single, square_tiling
from woolly.plan import Tracer


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder."""
    x = p.embedding_bag(p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width), "v.position_embd")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu")
    y = p.merge_patches(p.layer_norm(x, "v.post_ln", eps=hp.eps), rows=hp.merge**2, kind="mean")
    y = p.rms_norm(y, "mm.soft_emb_norm", eps=hp.eps)
    p.output(p.linear(y, "mm.input_projection", width=p.rows("mm.input_projection")), "embeddings", "none")


FAMILIES = (
    VisionFamily(
        name="gemma3",
        begin="\n\n<start_of_image>",
        end="<end_of_image>\n\n",
        placeholder_texts=("<start_of_image>",),
        is_bidirectional=True,
        merge_size=4,
        choose_tiling=square_tiling,
        process=partial(process_single, filter="bilinear"),
        build=build,
        patch_layout=square,
        max_patches=max_patches,
        transposed=("mm.input_projection.weight",),
    ),
)
