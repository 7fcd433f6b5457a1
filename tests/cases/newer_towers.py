"""Tiny random towers of newer families, which are compared with NumPy (tests/cases/numpy_towers.py)."""

from __future__ import annotations

from tests.cases.shapes import PATCH, matrix, norm, sam
from tests.cases.tiny_tower import BIAS, FILTERS, MERGER, SIDE, SQUARE, TABLE, TEXT, TWO_FRAMES, TinyTower

#: A Q-Former of Granite Vision 4, with two heads, 4 x 4 patches and 2 x 2 queries.
WINDOWS = {key: n for k in range(3) for key, n in (
    {f"v.proj_blk.{k}.query": (1, 4, 128), f"v.proj_blk.{k}.img_pos": (1, 16, 128)}
    | matrix(f"v.proj_blk.{k}.ffn_up", 96, 128) | matrix(f"v.proj_blk.{k}.ffn_down", 128, 96)
    | matrix(f"v.proj_blk.{k}.linear", TEXT, 128)
    | {name: n for one in ("norm", "post_norm", "self_attn_norm", "cross_attn_norm", "ffn_norm")
       for name, n in norm(f"v.proj_blk.{k}.{one}", 128).items()}
    | {name: n for one in ("self", "cross") for part in ("q", "k", "v", "out")
       for name, n in matrix(f"v.proj_blk.{k}.{one}_attn_{part}", 128, 128).items()}
).items()}  # fmt: skip
#: Layers of Qwen 2, with one head of keys and values.
QUERY_LAYERS = {f"v.blk.{i}.{key}": n for i in range(2) for key, n in (
    norm("ln1", 32, False) | norm("ln2", 32, False) | matrix("attn_q", 32, 32) | matrix("attn_k", 16, 32)
    | matrix("attn_v", 16, 32) | matrix("attn_out", 32, 32, False) | matrix("ffn_gate", 48, 32, False)
    | matrix("ffn_up", 48, 32, False) | matrix("ffn_down", 32, 48, False)
).items()}  # fmt: skip
_ROW = 3 * PATCH  # pixels of a row of Gemma 4 12B

NEWER_TOWERS = (
    # Grouped heads and windows of 4 x 4 patches.
    TinyTower(
        "exaone4.5",
        "exaone4_5",
        ((1, 6, 10), (1, 4, 4), (1, 2, 2)),
        TWO_FRAMES | norm("v.post_ln", 32, False) | MERGER,
        n_layers=3,
        heads=4,
        kv_heads=2,
        gated=True,
        rms=True,
        fused=True,
        extra={"use_silu": True, "vision.n_wa_pattern": 2, "vision.window_size": 16, "vision.spatial_merge_size": 2,
               "vision.attention.head_count_kv": 2, "vision.image_min_pixels": 64, "vision.image_max_pixels": 16 * 200},
    ),
    # Heads of 4 + 4 + 4 rotated elements and 4 others.
    TinyTower(
        "minimax-m3",
        "minimax_m3",
        ((1, 4, 6), (1, 8, 8), (1, 2, 2)),
        TWO_FRAMES | norm("v.pre_ln", 32) | matrix("mm.1", 40, 32) | matrix("mm.2", 24, 40)
        | matrix("mm.merger.fc1", 40, 96) | matrix("mm.merger.fc2", TEXT, 40),
        extra={"use_gelu": True, "vision.spatial_merge_size": 2, "vision.attention.layer_norm_epsilon": 1e-5},
    ),
    TinyTower(
        "phi4",
        "phi4",
        ((1, 4, 6), (1, 8, 8), (1, 1, 12), (1, 12, 10)),
        FILTERS | BIAS | TABLE | matrix("mm.0", TEXT, 32) | matrix("mm.2", TEXT, TEXT),
        extra={"use_gelu": True, "vision.image_min_pixels": 16 * 8, "vision.image_max_pixels": 16 * 200},
    ),
    # Windows of 4 x 4 patches in the first and the last layer; columns of the first matrix by line, column, color.
    TinyTower(
        "youtuvl",
        "youtuvl",
        ((1, 6, 10), (1, 4, 4), (1, 2, 2)),
        {"v.patch_embd.weight": (32, 3 * PATCH**2)} | BIAS | norm("v.post_ln", 32) | norm("mm.input_norm", 32, False)
        | MERGER,
        n_layers=3,
        extra={"use_gelu": True, "vision.spatial_merge_size": 2, "vision.window_size": 16,
               "vision.wa_layer_indexes": [1], "vision.image_max_pixels": 16 * 200},
    ),
    TinyTower(
        "gemma4-12b",
        "gemma4uv",
        ((1, 2, 3), (1, 1, 1), (1, 1, 12), (1, 12, 2)),
        {"v.patch_embd.weight": (32, 3 * _ROW**2), "v.patch_embd.bias": (32,), "v.position_embd.weight": (2, 12, 32)}
        | norm("v.patch_norm.1", 3 * _ROW**2) | norm("v.patch_norm.2", 32) | norm("v.patch_norm.3", 32)
        | matrix("mm.input_projection", TEXT, 32, False),
        n_layers=0,
        heads=0,
        ffn=0,
        extra={"vision.projector.scale_factor": 3, "vision.image_mean": [0.0] * 3, "vision.image_std": [1.0] * 3},
        patch=_ROW,
    ),
    TinyTower(
        "kimik25",
        "kimik25",
        ((1, 4, 6), (1, 8, 8), (1, 10, 2)),
        FILTERS | BIAS | {"v.position_embd.weight": (SIDE, SIDE, 32)} | norm("v.post_ln", 32)
        | norm("mm.input_norm", 32) | matrix("mm.1", 128, 128) | matrix("mm.2", TEXT, 128),
        fused=True,
        extra={"use_gelu": True, "vision.projector.scale_factor": 2, "vision.attention.layer_norm_epsilon": 1e-5,
               "vision.image_max_pixels": 16 * 200},
    ),
    TinyTower(
        "step3vl",
        "step3vl",
        ((1, 8, 8), (1, 4, 4)),
        FILTERS | TABLE | norm("v.pre_ln", 32) | {"mm.0.weight": (48, 32, 3, 3), "mm.0.bias": (48,),
        "mm.1.weight": (64, 48, 3, 3), "mm.1.bias": (64,)} | matrix("mm.model.fc", TEXT, 64, False),
        fused=True,
        more={"ls1.weight": 32, "ls2.weight": 32},
        extra={"vision.projector.scale_factor": 4, "vision.attention.layer_norm_epsilon": 1e-5,
               "vision.preproc_image_size": 128},
    ),
    TinyTower(
        "nemotron_v2_vl",
        "nemotron_v2_vl",
        SQUARE,
        FILTERS | TABLE | {"v.class_embd": (3, 32)} | norm("mm.model.mlp.0", 128, False)
        | matrix("mm.model.mlp.1", 96, 128, False) | matrix("mm.model.mlp.3", TEXT, 96, False),
        extra={"use_gelu": True, "vision.projector.scale_factor": 2},
    ),
    TinyTower(
        "granite4_vision",
        "granite4_vision",
        SQUARE,
        {"v.patch_embd.weight": (128, 3, PATCH, PATCH), "v.patch_embd.bias": (128,), "v.image_newline": (TEXT,),
         "v.position_embd.weight": (SIDE**2, 128)} | norm("v.post_ln", 128) | WINDOWS,
        width=128,
        n_layers=3,
        extra={"use_gelu": True, "vision.feature_layer": [1, 0, 1], "vision.projector.spatial_offsets": [-1, 1, 2],
               "vision.projector.window_side": 4, "vision.projector.query_side": 2,
               "vision.image_grid_pinpoints": [64, 32, 32, 64, 64, 64]},
    ),
    TinyTower(
        "deepseekocr2",
        "deepseekocr2",
        ((1, 16, 16), (1, 12, 12)),
        sam(32, 3, 6, 16) | QUERY_LAYERS | norm("v.post_ln", 32, False) | matrix("mm.model.fc", TEXT, 32)
        | {"v.resample_query_1024.weight": (16, 32), "v.resample_query_768.weight": (9, 32),
           "v.view_seperator": (1, TEXT)},
        n_layers=0,
        extra={"vision.image_size": 64, "vision.block_count": 2, "vision.attention.head_count_kv": 1,
               "vision.sam.embedding_length": 32, "vision.sam.head_count": 2, "vision.sam.block_count": 3,
               "vision.window_size": 6},
    ),
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
