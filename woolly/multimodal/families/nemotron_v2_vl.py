"""Nemotron Nano VL: RADIO with several class rows, pixel shuffle and an MLP with squared ReLU; tiles as in InternVL."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import ModelError
from woolly.multimodal.encoder.vit import layer, max_patches, mlp, square, with_class
from woolly.multimodal.families.internvl import FAMILIES as _INTERNVL

if TYPE_CHECKING:
    from woolly.multimodal.encoder.params import TowerParams
    from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout
    from woolly.plan import Tracer

_PROJECTOR_EPS = 1e-6
_CLASS = "v.class_embd"
_MAX_CLASS_ROWS = 256


def build(p: Tracer, hp: TowerParams) -> None:
    """Build the encoder. Class rows have no positions. GELU is the exact form."""
    x = with_class(p, p.linear(p.input(width=hp.patch), "v.patch_embd", width=hp.width))
    x = p.embedding_bag(x, "v.position_embd")
    for i in range(hp.n_layers):
        x = layer(p, x, hp, i, act="gelu_erf")
    if p.has("v.post_ln"):
        x = p.layer_norm(x, "v.post_ln", eps=hp.eps)
    y = p.rms_norm(p.merge_patches(x, rows=hp.merge**2, kind="concat"), "mm.model.mlp.0", eps=_PROJECTOR_EPS)
    p.output(mlp(p, y, "mm.model.mlp.1", "mm.model.mlp.3", act="relu2"), "embeddings", "none")


def _class_rows(hp: TowerParams) -> int:
    """Return the number of class rows: the class embeddings of RADIO's teachers, and registers."""
    shape = hp.tensors[_CLASS].shape if _CLASS in hp.tensors else ()
    n = shape[0] if len(shape) == 2 else len(shape)
    if not 0 < n <= _MAX_CLASS_ROWS:
        raise ModelError(f"tensor {_CLASS} is missing, or has {n} rows; expected 1 to {_MAX_CLASS_ROWS}")
    return n


def patch_layout(hp: TowerParams, grid: Grid) -> PatchLayout:
    """Return the patches in merge order, after the class rows."""
    n, patches = _class_rows(hp), square(hp, grid)
    order = np.concatenate([np.full(n, -1, np.int32), patches.order])
    number = np.arange(len(order))
    # Columns as in `square`: position, class row, and an index that cancels the patch bias.
    columns = (order, np.where(number < n, number, -1), np.where(number < n, 0, -1))
    gather_rows = np.stack(columns, axis=1).astype(np.int32)
    gather_weights = np.tile(np.array([1, 1, -1], np.float32), (len(order), 1))
    return replace(
        patches, order=order, outputs=patches.outputs + n, gather_rows=gather_rows, gather_weights=gather_weights
    )


FAMILIES = (
    replace(
        _INTERNVL[0],
        name="nemotron_v2_vl",
        placeholder_texts=("<image>",),
        build=build,
        patch_layout=patch_layout,
        max_patches=lambda hp: max_patches(hp) + _class_rows(hp),
    ),
)
