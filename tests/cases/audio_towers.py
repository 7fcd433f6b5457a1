"""Tiny random audio towers: one of each family, and input audio for them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.cases.towers import TEXT, matrix, norm
from woolly.gguf import GGUFWriter
from woolly.multimodal import Audio, ProcessedItem
from woolly.multimodal.audio.settings import AudioSettings
from woolly.multimodal.processing.audio import process_audio
from woolly.quant import GGMLType

WIDTH, FFN, CHANNELS, LETTERS = 32, 48, 6, 13


@dataclass(frozen=True)
class TinyAudioTower:
    name: str
    lengths: tuple[int, ...]  # of the audio of its golden, in samples
    root: dict[str, tuple[int, ...]]  # shapes of tensors outside blocks
    n_mels: int = 80
    n_layers: int = 2
    heads: int = 2
    extra: dict[str, Any] = field(default_factory=dict)  # keys after "clip.audio."
    keep: int = 1  # of the golden's rows, each n-th

    @property
    def settings(self) -> AudioSettings:
        stack, window = (self.extra.get(f"projector.{key}", 1) for key in ("stack_factor", "window_size"))
        n_queries = window // self.extra.get("projector.downsample_rate", 1)
        return AudioSettings("audio", self.name, self.n_mels, stack, window, n_queries)


def conv1d(n_mels: int) -> dict[str, tuple[int, ...]]:
    """Return a convolution as converters write it: a bias is a column."""
    return {
        "a.conv1d.1.weight": (WIDTH, n_mels, 3),
        "a.conv1d.1.bias": (WIDTH, 1),
        "a.conv1d.2.weight": (WIDTH, WIDTH, 3),
        "a.conv1d.2.bias": (WIDTH, 1),
        "a.position_embd.weight": (1500, WIDTH),
    } | norm("a.post_ln", WIDTH)


def conv2d() -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {}
    for number, channels in ((1, 1), (2, CHANNELS), (3, CHANNELS)):
        out[f"a.conv2d.{number}.weight"] = (CHANNELS, channels, 3, 3)
        out[f"a.conv2d.{number}.bias"] = (CHANNELS, 1, 1)
    return out


def query_former(layers: int) -> dict[str, tuple[int, ...]]:
    """Granite Speech' projector, and what is around its layers."""
    out = {"a.proj_query": (1, 3, WIDTH)} | norm("a.proj_norm", WIDTH) | matrix("a.proj_linear", TEXT, WIDTH)
    out |= matrix("a.input_projection", WIDTH, 160)
    out |= matrix("a.enc_ctc_out", LETTERS, WIDTH) | matrix("a.enc_ctc_out_mid", WIDTH, LETTERS)
    for i in range(layers):
        begin = f"a.proj_blk.{i}"
        for which in ("self_attn", "cross_attn"):
            for one in ("q", "k", "v", "out"):
                out |= matrix(f"{begin}.{which}_{one}", WIDTH, WIDTH)
            out |= norm(f"{begin}.{which}_norm", WIDTH)
        out |= matrix(f"{begin}.ffn_up", FFN, WIDTH) | matrix(f"{begin}.ffn_down", WIDTH, FFN)
        out |= norm(f"{begin}.ffn_norm", WIDTH)
    return out


def granite_block() -> dict[str, tuple[int, ...]]:
    out = {"attn_rel_pos_emb": (2 * 32 + 1, WIDTH // 2), "conv_dw.weight": (2 * WIDTH, 7)}
    for one in ("ln1", "ln2", "norm_conv", "ffn_norm", "ffn_norm_1"):
        out |= norm(one, WIDTH)
    for one in ("", "_1"):
        out |= matrix(f"ffn_up{one}", 4 * WIDTH, WIDTH) | matrix(f"ffn_down{one}", WIDTH, 4 * WIDTH)
    for one in ("attn_q", "attn_k", "attn_v", "attn_out"):
        out |= matrix(one, WIDTH, WIDTH, one == "attn_out")
    return (
        out | matrix("conv_pw1", 4 * WIDTH, WIDTH) | matrix("conv_pw2", WIDTH, 2 * WIDTH) | norm("conv_norm", 2 * WIDTH)
    )


def gemma_block() -> dict[str, tuple[int, ...]]:
    out = {"conv_dw.weight": (WIDTH, 5), "per_dim_scale.weight": (WIDTH // 2,), "attn_k_rel.weight": (WIDTH, WIDTH)}
    norms = ("attn_pre_norm", "attn_post_norm", "ln2", "conv_norm", "norm_conv")
    for one in (*norms, "ffn_norm", "ffn_post_norm", "ffn_norm_1", "ffn_post_norm_1"):
        out[f"{one}.weight"] = (WIDTH,)
    for one in ("", "_1"):
        out |= matrix(f"ffn_up{one}", 4 * WIDTH, WIDTH, False) | matrix(f"ffn_down{one}", WIDTH, 4 * WIDTH, False)
    for one in ("attn_q", "attn_k", "attn_v", "attn_out"):
        out |= matrix(one, WIDTH, WIDTH, False)
    for bound in ("input_min", "input_max", "output_min", "output_max"):
        out[f"ffn_up.{bound}"] = (1,)
    return out | matrix("conv_pw1", 2 * WIDTH, WIDTH, False) | matrix("conv_pw2", WIDTH, WIDTH, False)


def usm_block() -> dict[str, tuple[int, ...]]:
    """Return a block as converters write it: the filter has an axis of one, the scale no suffix."""
    out = {"conv_dw.weight": (WIDTH, 1, 5), "per_dim_scale": (WIDTH // 2,), "linear_pos.weight": (WIDTH, WIDTH)}
    norms = ("ln1", "ln2", "layer_pre_norm", "conv_norm", "norm_conv")
    for one in (*norms, "ffn_norm", "ffn_post_norm", "ffn_norm_1", "ffn_post_norm_1"):
        out[f"{one}.weight"] = (WIDTH,)
    for one in ("", "_1"):
        out |= matrix(f"ffn_up{one}", 4 * WIDTH, WIDTH, False) | matrix(f"ffn_down{one}", WIDTH, 4 * WIDTH, False)
    for one in ("attn_q", "attn_k", "attn_v", "attn_out"):
        out |= matrix(one, WIDTH, WIDTH, False)
    return out | matrix("conv_pw1", 2 * WIDTH, WIDTH, False) | matrix("conv_pw2", WIDTH, WIDTH, False)


def fast_block() -> dict[str, tuple[int, ...]]:
    out = {"pos_bias_u": (2, WIDTH // 2), "pos_bias_v": (2, WIDTH // 2)} | matrix("linear_pos", WIDTH, WIDTH, False)
    for one in ("ln1", "ln2", "norm_conv", "ffn_norm", "ffn_norm_1", "conv_norm"):
        out |= norm(one, WIDTH)
    for one in ("", "_1"):
        out |= matrix(f"ffn_up{one}", FFN, WIDTH) | matrix(f"ffn_down{one}", WIDTH, FFN)
    for one in ("attn_q", "attn_k", "attn_v", "attn_out", "conv_pw2"):
        out |= matrix(one, WIDTH, WIDTH)
    return out | matrix("conv_pw1", 2 * WIDTH, WIDTH) | matrix("conv_dw", WIDTH, 9)


BLOCKS = {"granite_speech": granite_block, "gemma3na": usm_block, "gemma4a": gemma_block, "lfm2a": fast_block}

AUDIO_TOWERS = {
    tiny.name: tiny
    for tiny in (
        TinyAudioTower(
            "ultravox",
            (8_500, 3_000, 500_001),
            conv1d(80) | {"mm.a.norm_pre.weight": (8 * WIDTH,), "mm.a.norm_mid.weight": (20,)}
            | matrix("mm.a.mlp.1", 40, 8 * WIDTH, False) | matrix("mm.a.mlp.2", TEXT, 20, False),
            extra={"projector.stack_factor": 8},
            keep=8,
        ),
        TinyAudioTower("qwen2a", (8_500, 3_000, 479_999), conv1d(128) | matrix("mm.a.fc", TEXT, WIDTH), 128, keep=25),
        TinyAudioTower(
            "voxtral",
            (8_500, 500_001),
            conv1d(128) | matrix("mm.a.mlp.1", TEXT, 4 * WIDTH, False) | matrix("mm.a.mlp.2", TEXT, TEXT, False),
            128,
            extra={"projector.stack_factor": 4},
            keep=25,
        ),
        TinyAudioTower("qwen2.5o", (8_500, 3_000, 70_111), conv1d(128) | matrix("mm.a.fc", TEXT, WIDTH), 128, keep=3),
        TinyAudioTower(
            "qwen3a",
            (24_000, 150_001),
            conv2d() | {"a.conv_out.weight": (WIDTH, CHANNELS * 16), "a.position_embd.weight": (1500, WIDTH)}
            | norm("a.post_ln", WIDTH) | matrix("mm.a.mlp.1", WIDTH, WIDTH) | matrix("mm.a.mlp.2", TEXT, WIDTH),
            128,
            keep=3,
        ),
        TinyAudioTower(
            "granite_speech",
            (24_000, 8_500, 70_111),
            query_former(2),
            160,
            n_layers=3,
            extra={
                "chunk_size": 24, "conv_kernel_size": 7, "max_pos_emb": 32, "projector.window_size": 15,
                "projector.downsample_rate": 5, "projector.head_count": 4,
            },
        ),
        TinyAudioTower(
            "gemma4a",
            (24_000, 8_500, 3_000),
            {
                "a.conv1d.0.weight": (16, 1, 3, 3), "a.conv1d.0.norm.weight": (16,),
                "a.conv1d.1.weight": (CHANNELS, 16, 3, 3), "a.conv1d.1.norm.weight": (CHANNELS,),
            }
            | matrix("a.input_projection", WIDTH, 4 * CHANNELS, False) | matrix("a.pre_encode.out", FFN, WIDTH)
            | matrix("mm.a.input_projection", TEXT, FFN, False),
            16,
        ),
        TinyAudioTower(
            "gemma3na",
            (24_000, 8_500, 3_000, 500_001),
            {
                "a.conv1d.0.weight": (16, 1, 3, 3), "a.conv1d.0.norm.weight": (16,),
                "a.conv1d.1.weight": (CHANNELS, 16, 3, 3), "a.conv1d.1.norm.weight": (CHANNELS,),
                "mm.a.embedding.weight": (128, WIDTH), "mm.a.hard_emb_norm.weight": (WIDTH,),
                "mm.a.soft_emb_norm.weight": (WIDTH,),
            }
            | matrix("a.pre_encode.out", WIDTH, 4 * CHANNELS, False)
            | matrix("mm.a.input_projection", TEXT, WIDTH, False),
            16,
        ),
        TinyAudioTower(
            "lfm2a",
            (24_000, 8_500, 3_000),
            {
                f"a.conv1d.{i}.{part}": shape
                for i, n, side in ((0, 1, 3), (2, 1, 3), (3, CHANNELS, 1), (5, 1, 3), (6, CHANNELS, 1))
                for part, shape in (("weight", (CHANNELS, n, side, side)), ("bias", (CHANNELS, 1, 1)))
            }
            | matrix("a.pre_encode.out", WIDTH, 2 * CHANNELS) | norm("mm.a.mlp.0", WIDTH)
            | matrix("mm.a.mlp.1", FFN, WIDTH) | matrix("mm.a.mlp.3", TEXT, FFN)
            | {"a.position_embd.weight": (8, WIDTH), "a.position_embd_norm.weight": (WIDTH,),
               "a.embd_to_logits.weight": (8, WIDTH)},
            16,
        ),
        # The sizes of an encoder, which this family does not have, are ignored.
        TinyAudioTower(
            "gemma4ua", (24_000, 8_500, 800, 480_001), matrix("mm.a.input_projection", TEXT, 640, False), 640,
            n_layers=0,
        ),
    )
}  # fmt: skip


def shapes(tiny: TinyAudioTower) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors. Whisper's keys have no bias, Qwen 3's do."""
    out = dict(tiny.root)
    for i in range(tiny.n_layers):
        if tiny.name in BLOCKS:
            block = BLOCKS[tiny.name]()
        else:
            block = norm("ln1", WIDTH) | norm("ln2", WIDTH)
            for one in ("attn_q", "attn_k", "attn_v", "attn_out"):
                block |= matrix(one, WIDTH, WIDTH, one != "attn_k" or tiny.name == "qwen3a")
            block |= matrix("ffn_up", FFN, WIDTH) | matrix("ffn_down", WIDTH, FFN)
        out |= {f"a.blk.{i}.{name}": shape for name, shape in block.items()}
    return out


def tensors(tiny: TinyAudioTower) -> dict[str, np.ndarray]:
    """Return random weights, as `towers.tensors` does."""
    random = np.random.RandomState(zlib.crc32(f"ear {tiny.name}".encode()))
    out = {}
    for name, shape in shapes(tiny).items():
        values = random.standard_normal(shape)
        if name.endswith(("_min", "_max")):
            values = np.full(shape, 1.5 if name.endswith("_max") else -1.0)
        elif name.endswith("per_dim_scale.weight"):  # softplus of what is trained
            values = np.log1p(np.exp(values))
        elif name.endswith(".bias") or len(shape) == 1:
            is_scale = "norm" in name or "ln" in name
            values = 0.1 * values + (is_scale and name.endswith(".weight"))
        elif "position" not in name:
            values = values * np.prod(shape[1:]) ** -0.5
        out[name] = values.astype(np.float32)
    if tiny.name in ("qwen2.5o", "qwen3a"):  # their positions are sines, which converters write as a table
        steps = np.exp(-np.log(10000) / (WIDTH // 2 - 1) * np.arange(WIDTH // 2))
        turned = np.arange(1500)[:, None] * steps
        out["a.position_embd.weight"] = np.concatenate([np.sin(turned), np.cos(turned)], axis=1).astype(np.float32)
    return out


def write_audio_tower(tiny: TinyAudioTower, path: Path, **more: Any) -> Path:
    """Write the file of a tower; return its path."""
    writer = GGUFWriter(path)
    keys = {
        "num_mel_bins": tiny.n_mels,
        "embedding_length": WIDTH,
        "feed_forward_length": FFN,
        "block_count": tiny.n_layers,
        "projection_dim": TEXT,
        "attention.head_count": tiny.heads,
        "attention.layer_norm_epsilon": 1e-5,
    }
    writer.add("general.architecture", "clip")
    writer.add("general.type", "mmproj")
    for key, value in ({"has_audio_encoder": True, "projector_type": tiny.name} | more).items():
        writer.add(f"clip.{key}", value)
    for key, value in (keys | tiny.extra).items():
        writer.add(f"clip.audio.{key}", value)
    for name, array in tensors(tiny).items():
        writer.add_tensor(name, array, GGMLType.F32)
    writer.write()
    return path


def samples(n: int, seed: int = 0) -> np.ndarray:
    """Tones that rise and fall, and noise."""
    t = np.arange(n) / 16000
    noise = np.random.RandomState(n % 1000 + seed).standard_normal(n)
    tones = sum(np.sin(2 * np.pi * (110 * k + 40 * seed) * t + k * np.sin(3 * t)) / k for k in range(1, 9))
    return (0.2 * tones * np.abs(np.sin(2.1 * t + seed)) + 0.01 * noise).astype(np.float32)


def prepared_audio(tiny: TinyAudioTower, n: int, seed: int = 0) -> ProcessedItem:
    """Return the input features of a synthetic clip."""
    return process_audio(Audio(samples(n, seed)), tiny.settings)
