"""Tiny random towers of newer families, which are compared with NumPy (tests/cases/numpy_towers.py)."""

from __future__ import annotations

from tests.cases.shapes import matrix, norm
from tests.cases.tiny_tower import BIAS, TEXT, TWO_FRAMES, TinyTower

NEWER_TOWERS = (
    # GLM-OCR: norms of q and k, but neither a norm after the patches nor a position table.
    TinyTower(
        "glm-ocr",
        "glm4v",
        ((1, 4, 6), (1, 2, 2)),
        TWO_FRAMES | BIAS | norm("v.post_ln", 32, False)
        | {"mm.patch_merger.weight": (TEXT, 32, 2, 2), "mm.patch_merger.bias": (TEXT,)}
        | matrix("mm.model.fc", TEXT, TEXT, False) | norm("mm.post_norm", TEXT) | matrix("mm.gate", 48, TEXT, False)
        | matrix("mm.up", 48, TEXT, False) | matrix("mm.down", TEXT, 48, False),
        ffn=64,
        gated=True,
        rms=True,
        more={"attn_q_norm.weight": 16, "attn_k_norm.weight": 16},
        extra={"use_silu": True, "vision.spatial_merge_size": 2},
    ),
)  # fmt: skip
