"""Tiny models whose last block guesses the token after the next one, some of them well."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.hybrids import HYBRIDS
from tests.cases.latents import LATENTS
from tests.cases.tiny import Tiny, block, tensors, write_tiny
from woolly.engine.loading.load import load_model
from woolly.gguf import GGUFWriter, open_gguf
from woolly.runtime import Batch, Options

NORMS = ("nextn.enorm.weight", "nextn.hnorm.weight", "nextn.shared_head_norm.weight")


def with_block(tiny: Tiny) -> Tiny:
    """The model with all tensors of its block."""

    def blocks(row: Tiny, i: int) -> dict[str, tuple[int, ...]]:
        shapes = block(replace(row, blocks=tiny.blocks), i)
        if i < row.n_layers - 1:
            return shapes
        return shapes | dict.fromkeys(NORMS, (row.width,)) | {"nextn.eh_proj.weight": (row.width, 2 * row.width)}

    return replace(tiny, name=f"{tiny.name}-mtp", blocks=blocks)


MTP = {
    "qwen35": HYBRIDS["qwen35"],  # without a norm of its own
    "glm4moe": with_block(FAMILIES["glm4moe"]),
    "deepseek2": with_block(LATENTS["glm-flash"]),
}

_STEP = FAMILIES["step35"].extra
# Blocks that read hidden states before the norm, and have windows.
RAW = {
    "mimo2": with_block(FAMILIES["mimo2"]),
    "step35": with_block(
        replace(
            FAMILIES["step35"],
            n_layers=5,
            extra={key: [*value, value[1]] if isinstance(value, list) else value for key, value in _STEP.items()}
            | {"nextn_predict_layers": 1},
        )
    ),
}


def _nemotron(row: Tiny, i: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a block: the last one attends and has experts."""
    layers = replace(HYBRIDS["nemotron_h_moe"], n_layers=5)
    if i < row.n_layers - 1:
        return block(layers, i)
    shapes = block(layers, 1) | block(layers, 2) | {"post_attention_norm.weight": (row.width,)}
    return shapes | dict.fromkeys(NORMS, (row.width,)) | {"nextn.eh_proj.weight": (row.width, 2 * row.width)}


_KEYS = HYBRIDS["nemotron_h_moe"].extra
# Its norm before the head is a layer norm.
NEMOTRON = {
    "nemotron_h_moe": replace(
        HYBRIDS["nemotron_h_moe"],
        name="nemotron-mtp",
        n_layers=6,
        blocks=_nemotron,
        extra=_KEYS
        | {
            "nextn_predict_layers": 1,
            "feed_forward_length": [*_KEYS["feed_forward_length"], 24],
            "attention.head_count_kv": [*_KEYS["attention.head_count_kv"], 2],
        },
    )
}


def write_guessing(tiny: Tiny, path: Path, size: float) -> Path:
    """A model whose layers add little to the token's embedding, which the block hands on: its guesses are often right.

    `size` is that of what the layers add; with 0, all guesses are right.
    """
    whole = tensors(tiny)
    if tiny.name == "nemotron-mtp":  # so that a layer norm leaves what an RMS norm does
        whole["token_embd.weight"] -= whole["token_embd.weight"].mean(axis=1, keepdims=True)
    whole["token_embd.weight"] *= 8  # as large as what norms leave
    if not tiny.tied:
        whole["output.weight"] *= 8  # samplers, too, mostly take the likeliest
    for name, array in whole.items():
        if name.endswith(("attn_output.weight", "ssm_out.weight")) or "ffn_down" in name:
            whole[name] = array * np.float32(size)
        elif "norm.weight" in name:
            whole[name] = np.ones_like(array)
        elif name.endswith("eh_proj.weight"):
            whole[name] = np.concatenate([np.eye(tiny.width), size * array[:, : tiny.width]], 1).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.cases.tiny.tensors", lambda tiny: whole)
        return write_tiny(tiny, path)


def opened_guesses(path: Path, backend: str, kv_type: str) -> np.ndarray:
    """Logits of the block of a file that is opened as by default, for five rows and one after them."""
    hidden = np.random.RandomState(3).randn(6, 64).astype(np.float32) * 3
    parts = []
    with closing(load_model(path, backend, Options(kv_type=kv_type, threads=1, max_rows=8), draft=None)) as model:
        draft = model.program.draft
        assert draft is not None
        state = draft.new_state(1)
        for first, end in ((0, 5), (5, 6)):
            batch = Batch.of([(range(first, end), first, [0])], range(end - first))
            parts.append(draft.run(replace(batch, hidden=hidden[first:end]), state).copy())
    return np.concatenate(parts)


def split_block(path: Path, model: Path, block: Path) -> None:
    """Writes a file with a block again as two: the model without it, and the block with what it shares.

    The block's file has the keys of the whole model, its blocks, and copies of table, norm and head.
    """
    with closing(open_gguf(path)) as file:
        name = file.metadata["general.architecture"]
        n_blocks, n_drafts = (file.metadata[f"{name}.{key}"] for key in ("block_count", "nextn_predict_layers"))
        own = tuple(f"blk.{n_blocks - n_drafts + i}." for i in range(n_drafts))
        for target, is_block in ((model, False), (block, True)):
            writer = GGUFWriter(target)
            for key in file.metadata:
                if is_block or key not in (f"{name}.block_count", f"{name}.nextn_predict_layers"):
                    writer.add_raw(key, file.metadata.raw(key))
            if not is_block:
                writer.add(f"{name}.block_count", n_blocks - n_drafts)
            for tensor in file.tensors.values():
                if tensor.name.startswith(own) == is_block or not tensor.name.startswith("blk."):
                    writer.add_raw_tensor(tensor.name, tensor.type, tensor.shape, tensor.data)
            writer.write()
