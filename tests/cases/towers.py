"""Tiny random towers: one of each family, and the images that they see."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from tests.cases.mobilenets import mobilenet
from tests.cases.newer_towers import NEWER_TOWERS
from tests.cases.shapes import PATCH, matrix, norm, sam
from tests.cases.tiny_tower import (
    BIAS,
    CLASS,
    DEEP,
    FILTERS,
    MERGER,
    PROJECTED,
    SIDE,
    SQUARE,
    TABLE,
    TEXT,
    TWO_FRAMES,
    TinyTower,
)  # fmt: skip
from woolly.gguf import GGUFWriter
from woolly.multimodal import EncoderInput, ProcessedItem
from woolly.quant import GGMLType

TOWERS = {
    tower.name: tower
    for tower in (
        TinyTower(
            "gemma3",
            "gemma3",
            SQUARE,
            FILTERS | BIAS | TABLE | norm("v.post_ln", 32)
            | {"mm.soft_emb_norm.weight": (32,), "mm.input_projection.weight": (32, TEXT)},
            extra={"use_gelu": True, "vision.projector.scale_factor": 4},
        ),
        TinyTower(
            "llava",
            "mlp",
            SQUARE,
            FILTERS | CLASS | norm("v.pre_ln", 32) | matrix("mm.0", TEXT, 32) | matrix("mm.2", TEXT, TEXT),
            n_layers=3,
            extra={"vision.feature_layer": [3]},
        ),
        TinyTower(
            "cogvlm",
            "cogvlm",
            SQUARE,
            FILTERS | BIAS | CLASS | matrix("mm.model.fc", TEXT, 32, False) | norm("mm.post_fc_norm", TEXT)
            | matrix("mm.gate", 96, TEXT, False) | matrix("mm.up", 96, TEXT, False)
            | matrix("mm.down", TEXT, 96, False) | {"v.boi": (1, 1, TEXT), "v.eoi": (1, 1, TEXT)},
            fused=True,
            extra={"use_gelu": True},
        ),
        TinyTower(
            "qwen2vl",
            "qwen2vl_merger",
            ((1, 4, 6), (1, 2, 2), (2, 4, 6)),
            TWO_FRAMES | norm("v.post_ln", 32) | MERGER,
            ffn=64,
        ),
        TinyTower(
            "qwen2.5vl",
            "qwen2.5vl_merger",
            ((1, 6, 10), (1, 4, 4), (2, 6, 10)),
            TWO_FRAMES | norm("v.post_ln", 32, False) | MERGER,
            n_layers=3,
            gated=True,
            rms=True,
            extra={"use_silu": True, "vision.n_wa_pattern": 2, "vision.window_size": 16},
        ),
        TinyTower(
            "qwen2.5o",
            "qwen2.5o",
            ((1, 4, 10),),
            TWO_FRAMES | norm("v.post_ln", 32, False) | MERGER,
            gated=True,
            rms=True,
            extra={"use_silu": True, "vision.n_wa_pattern": 2, "vision.window_size": 16},
        ),
        TinyTower(
            "qwen3vl",
            "qwen3vl_merger",
            ((1, 4, 6), (1, 8, 8), (1, 10, 12), (2, 4, 6)),
            TWO_FRAMES | BIAS | TABLE | norm("v.post_ln", 32) | MERGER | DEEP,
            n_layers=3,
            extra={"use_gelu": True, "vision.spatial_merge_size": 2},
        ),
        TinyTower(
            "idefics3",
            "idefics3",
            SQUARE,
            FILTERS | BIAS | TABLE | norm("v.post_ln", 32) | matrix("mm.model.fc", TEXT, 128, False),
            extra={"use_gelu": True, "vision.projector.scale_factor": 2},
        ),
        TinyTower(
            "pixtral",
            "pixtral",
            ((1, 3, 5), (1, 8, 8)),
            FILTERS | norm("v.pre_ln", 32, False) | matrix("mm.1", TEXT, 32) | matrix("mm.2", TEXT, TEXT)
            | {"v.token_embd.img_break": (TEXT,)},
            gated=True,
            rms=True,
            biases=False,
            extra={"use_silu": True},
        ),
        TinyTower(
            "mistral3",
            "pixtral",
            ((1, 4, 6), (1, 8, 8)),
            FILTERS | norm("v.pre_ln", 32, False) | norm("mm.input_norm", 32, False)
            | matrix("mm.patch_merger", 32, 128, False) | matrix("mm.1", TEXT, 32, False)
            | matrix("mm.2", TEXT, TEXT, False),
            gated=True,
            rms=True,
            biases=False,
            extra={"use_silu": True, "vision.spatial_merge_size": 2},
        ),
        TinyTower(
            "lightonocr",
            "lightonocr",
            ((1, 4, 6), (1, 2, 8)),
            FILTERS | norm("v.pre_ln", 32, False) | norm("mm.input_norm", 32, False)
            | matrix("mm.patch_merger", 32, 128, False) | matrix("mm.1", TEXT, 32, False)
            | matrix("mm.2", TEXT, TEXT, False),
            gated=True,
            rms=True,
            biases=False,
            extra={"use_silu": True, "vision.spatial_merge_size": 2},
        ),
        TinyTower(
            "internvl",
            "internvl",
            SQUARE,
            FILTERS | BIAS | CLASS | norm("mm.model.mlp.0", 128) | matrix("mm.model.mlp.1", TEXT, 128)
            | matrix("mm.model.mlp.3", TEXT, TEXT),
            more={"ls1.weight": 32, "ls2.weight": 32},
            extra={"use_gelu": True, "vision.projector.scale_factor": 2},
        ),
        TinyTower(
            "llava1.6",
            "mlp",
            SQUARE,
            FILTERS | CLASS | norm("v.pre_ln", 32) | matrix("mm.0", TEXT, 32) | matrix("mm.2", TEXT, TEXT)
            | {"v.image_newline": (TEXT,)},
            extra={"vision.feature_layer": [2], "vision.image_grid_pinpoints": [32, 64, 64, 32, 64, 64],
                   "vision.mm_patch_merge_type": "spatial_unpad"},
        ),
        TinyTower(
            "granite",
            "mlp",
            SQUARE,
            FILTERS | BIAS | TABLE | norm("v.post_ln", 32) | matrix("mm.0", TEXT, 96) | matrix("mm.2", TEXT, TEXT)
            | {"v.image_newline": (TEXT,)},
            n_layers=4,
            extra={"use_gelu": True, "vision.feature_layer": [1, 2, 4], "vision.image_grid_pinpoints": [32, 64]},
        ),
        TinyTower(
            "gemma3n",
            "gemma3nv",
            ((1, 16, 16),),
            mobilenet(48, TEXT),
            width=48,
            n_layers=0,
            # The patch_size and the number of blocks are what converters write.
            extra={"vision.image_size": 512, "vision.patch_size": 2, "vision.block_count": 128,
                   "vision.image_mean": [0.0] * 3, "vision.image_std": [1.0] * 3},
            patch=32,
        ),
        TinyTower(
            "gemma4",
            "gemma4v",
            ((1, 6, 9), (1, 3, 6)),
            FILTERS | {"v.position_embd.weight": (2, 12, 32), "v.std_bias": (32,), "v.std_scale": (32,)}
            | matrix("mm.input_projection", TEXT, 32, False),
            gated=True,
            rms=True,
            biases=False,
            more={"attn_q_norm.weight": 16, "attn_k_norm.weight": 16, "attn_post_norm.weight": 32,
                  "ffn_post_norm.weight": 32, "attn_q.input_min": 1, "attn_q.input_max": 1, "ffn_up.output_min": 1,
                  "ffn_up.output_max": 1},
            extra={"vision.projector.scale_factor": 3, "vision.image_mean": [0.0] * 3, "vision.image_std": [1.0] * 3},
        ),
        TinyTower(
            "lfm2",
            "lfm2",
            ((1, 4, 6), (1, 8, 8), (1, 2, 12), (1, 12, 10)),
            FILTERS | BIAS | TABLE | norm("v.post_ln", 32) | norm("mm.input_norm", 128) | matrix("mm.1", 48, 128)
            | matrix("mm.2", TEXT, 48),
            extra={"use_gelu": True, "vision.projector.scale_factor": 2},
        ),
        TinyTower(
            "llama4",
            "llama4",
            SQUARE,
            FILTERS | CLASS | norm("v.pre_ln", 32) | norm("v.post_ln", 32) | matrix("mm.model.mlp.1", 48, 128, False)
            | matrix("mm.model.mlp.2", 48, 48, False) | matrix("mm.model.fc", TEXT, 48, False),
            ffn=128,
            extra={"use_gelu": True, "vision.projector.scale_factor": 2},
        ),
        TinyTower(
            "glm4v",
            "glm4v",
            ((1, 4, 6), (1, 8, 8), (1, 10, 12)),
            TWO_FRAMES | BIAS | TABLE | norm("v.norm_embd", 32, False) | norm("v.post_ln", 32, False)
            | {"mm.patch_merger.weight": (TEXT, 32, 2, 2), "mm.patch_merger.bias": (TEXT,)}
            | matrix("mm.model.fc", TEXT, TEXT, False) | norm("mm.post_norm", TEXT) | matrix("mm.gate", 48, TEXT, False)
            | matrix("mm.up", 48, TEXT, False) | matrix("mm.down", TEXT, 48, False),
            ffn=64,
            gated=True,
            rms=True,
            biases=False,
            extra={"use_silu": True, "vision.spatial_merge_size": 2},
        ),
        TinyTower(
            "paddleocr",
            "paddleocr",
            ((1, 4, 6), (1, 10, 12)),
            FILTERS | BIAS | TABLE | norm("v.post_ln", 32) | norm("mm.input_norm", 32) | matrix("mm.1", 128, 128)
            | matrix("mm.2", TEXT, 128),
            extra={"use_gelu": True, "vision.image_max_pixels": 16 * 200, "vision.image_min_pixels": 16 * 4},
        ),
        TinyTower(
            "minicpmv",
            "resampler",
            ((1, 4, 6), (1, 8, 8), (1, 5, 3)),
            FILTERS | BIAS | TABLE | norm("v.post_ln", 32) | {"resampler.query": (4, 128)}
            | matrix("resampler.kv", 128, 32, False) | norm("resampler.ln_q", 128) | norm("resampler.ln_kv", 128)
            | norm("resampler.ln_post", 128) | matrix("resampler.attn.q", 128, 128)
            | matrix("resampler.attn.k", 128, 128) | matrix("resampler.attn.v", 128, 128)
            | matrix("resampler.attn.out", 128, 128)
            | matrix("resampler.proj", TEXT, 128, False),
            extra={"use_gelu": True, "minicpmv_version": 3, "minicpmv_query_num": 4},
        ),
        TinyTower(
            "minicpmv4.6",
            "minicpmv4_6",
            ((1, 4, 8), (1, 8, 8), (1, 12, 4)),
            FILTERS | BIAS | TABLE | norm("v.post_ln", 32) | PROJECTED | norm("v.vit_merger.ln1", 32)
            | norm("v.vit_merger.ds_ln", 128) | matrix("v.vit_merger.ds_ffn_up", 192, 128)
            | matrix("v.vit_merger.ds_ffn_down", 32, 192)
            | {name: n for one in ("q", "k", "v", "out")
               for name, n in matrix(f"v.vit_merger.attn_{one}", 32, 32).items()},
            n_layers=3,
            extra={"use_gelu": True, "vision.projector.scale_factor": 4, "vision.wa_layer_indexes": [0]},
        ),
        TinyTower(
            "minicpmv4.6-4x",
            "minicpmv4_6",
            ((1, 4, 6),),
            FILTERS | BIAS | TABLE | norm("v.post_ln", 32) | PROJECTED,
            extra={"use_gelu": True, "vision.projector.scale_factor": 2, "vision.wa_layer_indexes": [0]},
        ),
        TinyTower(
            "dots_ocr",
            "dots_ocr",
            ((1, 4, 6), (1, 2, 2)),
            FILTERS | BIAS | norm("v.pre_ln", 32, False) | norm("mm.post_norm", 32, False) | norm("mm.input_norm", 32)
            | MERGER,
            gated=True,
            rms=True,
            biases=False,
            extra={"use_silu": True, "vision.projector.scale_factor": 2, "vision.image_size": 0,
                   "vision.image_min_pixels": 16 * 4, "vision.image_max_pixels": 16 * 200},
        ),
        TinyTower(
            "hunyuanvl",
            "hunyuanvl",
            ((1, 4, 6), (1, 10, 2)),
            FILTERS | BIAS | TABLE | norm("mm.pre_norm", 32, False) | norm("mm.post_norm", TEXT, False)
            | {"mm.0.weight": (64, 32, 2, 2), "mm.0.bias": (64,), "mm.2.weight": (128, 64, 1, 1), "mm.2.bias": (128,)}
            | matrix("mm.model.fc", TEXT, 128)
            | {"v.image_newline": (128,), "mm.image_begin": (TEXT,), "mm.image_end": (TEXT,)}
            | {"v.view_seperator": (TEXT,)},
            extra={"use_gelu": True, "vision.spatial_merge_size": 2, "vision.attention.layer_norm_epsilon": 1e-5,
                   "vision.image_min_pixels": 16 * 4, "vision.image_max_pixels": 16 * 200},
        ),
        TinyTower(
            "deepseekocr",
            "deepseekocr",
            ((1, 16, 16), (1, 8, 8)),
            sam(32, 3, 6, 16) | {"v.patch_embd.weight": (32, 3, 14, 14), "v.position_embd.weight": (17, 32)}
            | {"v.class_embd": (32,)} | norm("v.pre_ln", 32) | matrix("mm.model.fc", TEXT, 64)
            | {"v.image_newline": (TEXT,), "v.view_seperator": (1, TEXT)},
            n_layers=1,
            extra={"use_gelu": True, "vision.image_size": 64, "vision.sam.embedding_length": 32,
                   "vision.sam.head_count": 2, "vision.sam.block_count": 3, "vision.window_size": 6,
                   "vision.projector.scale_factor": 1},
        ),
        TinyTower(
            "kimivl",
            "kimivl",
            ((1, 4, 6), (1, 8, 8), (1, 10, 2)),
            FILTERS | BIAS | TABLE | norm("v.post_ln", 32) | norm("mm.input_norm", 32) | matrix("mm.1", 128, 128)
            | matrix("mm.2", TEXT, 128),
            extra={"use_gelu": True, "vision.projector.scale_factor": 2, "vision.attention.layer_norm_epsilon": 1e-5},
        ),
        *NEWER_TOWERS,
    )
}  # fmt: skip


def shapes(tower: TinyTower) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors."""
    out, width, has_norm_bias = dict(tower.root), tower.width, not tower.rms
    for i in range(tower.n_layers):
        block = norm("ln1", width, has_norm_bias) | norm("ln2", width, has_norm_bias)
        for one in ("attn_out",) if tower.fused else ("attn_q", "attn_k", "attn_v", "attn_out"):
            block |= matrix(one, width, width, tower.biases)
        qkv = width + 2 * (tower.kv_heads or tower.heads) * width // tower.heads
        block |= matrix("attn_qkv", qkv, width, tower.biases) if tower.fused else {}
        for one in ("ffn_gate", "ffn_up") if tower.gated else ("ffn_up",):
            block |= matrix(one, tower.ffn, width, tower.biases)
        block |= matrix("ffn_down", width, tower.ffn, tower.biases) | {k: (n,) for k, n in tower.more.items()}
        out |= {f"v.blk.{i}.{name}": shape for name, shape in block.items()}
    return out


def tensors(tower: TinyTower) -> dict[str, np.ndarray]:
    """Every weight: norms and scales near 1, biases near 0, matrices that keep the size of what they meet."""
    random = np.random.RandomState(zlib.crc32(f"tower {tower.name}".encode()))
    out = {}
    for name, shape in shapes(tower).items():
        values = random.standard_normal(shape)
        if len(shape) == 1:
            is_scale = "norm" in name or "ln" in name or ".ls" in name or ".bn" in name
            values = 0.1 * values + (is_scale and name.endswith(".weight"))
            if name.endswith(("_min", "_max")):  # bounds that many numbers exceed
                values = np.abs(values) + 0.3 if name.endswith("_max") else -np.abs(values) - 0.5
        elif "position" not in name and "pos_embd" not in name:
            values = values * np.prod(shape[1:]) ** -0.5
        out[name] = values.astype(np.float32)
    return out


def write_tower(tower: TinyTower, path: Path) -> Path:
    """Writes the file of a tower and gives the path back."""
    writer = GGUFWriter(path)
    keys = {
        "has_vision_encoder": True,
        "projector_type": tower.projector,
        "vision.image_size": PATCH * SIDE,
        "vision.patch_size": PATCH,
        "vision.embedding_length": tower.width,
        "vision.feed_forward_length": tower.ffn,
        "vision.block_count": tower.n_layers,
        "vision.projection_dim": TEXT,
        "vision.attention.head_count": tower.heads,
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.image_mean": [0.5, 0.5, 0.5],
        "vision.image_std": [0.5, 0.5, 0.5],
    }
    writer.add("general.architecture", "clip")
    writer.add("general.type", "mmproj")
    for key, value in (keys | tower.extra).items():
        writer.add(f"clip.{key}", value)
    for name, array in tensors(tower).items():
        is_matrix = array.ndim == 2 and "position" not in name
        writer.add_tensor(name, array, tower.type if is_matrix else GGMLType.F32)
    writer.write()
    return path


def encoder_input(grid: tuple[int, int, int], seed: int = 0, patch: int = PATCH) -> EncoderInput:
    """An image of noise."""
    random = np.random.RandomState(1000 * seed + 100 * grid[1] + grid[2])
    return EncoderInput(random.uniform(-1, 1, (int(np.prod(grid)), 3 * patch**2)).astype(np.float32), grid)


def image(
    *grids: tuple[int, int, int], seed: int = 0, tiles: tuple[int, int] = (0, 0), size: tuple[int, int] = (0, 0)
) -> ProcessedItem:
    return ProcessedItem.of(
        "image", [encoder_input(grid, seed + i) for i, grid in enumerate(grids)], tiles=tiles, size=size
    )
