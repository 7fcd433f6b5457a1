"""Writes the small models that llama.cpp's tests ask for, under the names that they use.

The tests name the words and token counts of stories260K, Karpathy's model of 260,000 weights. Given its two files of
the llama2.c project, stories260K.bin and tok512.bin, the models have its weights and vocabulary. Without them they are
random ones of the same shape, and the tests that name words or counts fail.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.cases.towers import TOWERS, write_tower
from woolly.gguf import GGUFWriter

_CONTEXT = 2048  # as the file that the tests download says

# Files by what the tests call them: a repository of the hub.
FILES = {
    "ggml-org/test-model-stories260K": "hf/ggml-org/test-model-stories260K/stories260K-F32.gguf",
    "ggml-org/test-model-stories260K-infill": "hf/ggml-org/test-model-stories260K-infill/stories260K-infill-F32.gguf",
    "ggml-org/tinygemma3-GGUF:Q8_0": "hf/ggml-org/tinygemma3-GGUF/tinygemma3-Q8_0.gguf",
    "ggml-org/stories15M_MOE/stories15M_MOE-F16.gguf": "hf/ggml-org/stories15M_MOE/stories15M_MOE-F16.gguf",
}

# Files that the tests download by themselves, by their names: a draft, which is the model again, and an adapter.
DRAFT, ADAPTER = "stories15M-q4_0.gguf", "moe_shakespeare15M.gguf"

_FILL_IN = {"pre": 4, "suf": 5, "mid": 6}  # bytes that no text of the tests has

_FIRST_TEXT = 259  # unknown, BOS, EOS and 256 bytes come before


@dataclass(frozen=True)
class _Weights:
    """The seven numbers in front of a llama2.c file, and its tensors."""

    width: int
    ffn: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    n_vocab: int
    tensors: dict[str, np.ndarray]


def write_models(folder: Path, stories: Path | None) -> None:
    """Writes every model; `stories` is the folder of stories260K.bin and tok512.bin, if they are there."""
    numbers = np.random.RandomState(260).standard_normal(300_000).astype(np.float32) * 0.125
    shape = (64, 172, 5, 8, 4, 512)
    pieces = [(bytes([97 + i % 26, 97 + i // 26]), -float(i)) for i in range(512 - _FIRST_TEXT)]
    if stories is not None:
        data = (stories / "stories260K.bin").read_bytes()
        shape = struct.unpack("<6i", data[:24])
        numbers = np.frombuffer(data, "<f4", offset=28)
        pieces = _pieces((stories / "tok512.bin").read_bytes())[_FIRST_TEXT:]
    weights = _read(shape, numbers)
    for name in FILES.values():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _write(folder / name, weights, pieces, fills_in="infill" in name)
    # The model of images is this one, with a tower that turns them into rows of its width.
    write_tower(TOWERS["llava"], (folder / FILES["ggml-org/tinygemma3-GGUF:Q8_0"]).parent / "mmproj-F16.gguf")
    (folder / "downloads").mkdir()
    _write(folder / "downloads" / DRAFT, weights, pieces, fills_in=False)
    _write_adapter(folder / "downloads" / ADAPTER, weights)


def _write_adapter(path: Path, weights: _Weights) -> None:
    """Writes a random adapter of rank 1 of the first layer's queries."""
    random = np.random.RandomState(1)
    writer = GGUFWriter(path)
    for key, value in {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 1.0,
    }.items():
        writer.add(key, value)
    for part, shape in (("lora_a", (1, weights.width)), ("lora_b", (weights.width, 1))):
        writer.add_tensor(f"blk.0.attn_q.weight.{part}", random.standard_normal(shape).astype(np.float32))
    writer.write()


def _pieces(data: bytes) -> list[tuple[bytes, float]]:
    """Returns the texts and scores of a llama2.c vocabulary."""
    pieces, at = [], 4
    while at < len(data):
        score, length = struct.unpack_from("<fi", data, at)
        pieces.append((data[at + 8 : at + 8 + length], score))
        at += 8 + length
    return pieces


def _read(shape: tuple[int, ...], numbers: np.ndarray) -> _Weights:
    width, ffn, n_layers, n_heads, n_kv_heads, n_vocab = shape
    kv_width = width // n_heads * n_kv_heads
    at = 0

    def take(*sizes: int) -> np.ndarray:
        nonlocal at
        n = int(np.prod(sizes))
        at += n
        return numbers[at - n : at].reshape(sizes)

    tensors = {"token_embd.weight": take(n_vocab, width)}
    for name, sizes in (
        ("attn_norm", (width,)),
        ("attn_q", (width, width)),
        ("attn_k", (kv_width, width)),
        ("attn_v", (kv_width, width)),
        ("attn_output", (width, width)),
        ("ffn_norm", (width,)),
        ("ffn_gate", (ffn, width)),
        ("ffn_down", (width, ffn)),
        ("ffn_up", (ffn, width)),
    ):
        tensors |= {f"blk.{i}.{name}.weight": layer for i, layer in enumerate(take(n_layers, *sizes))}
    tensors["output_norm.weight"] = take(width)
    return _Weights(width, ffn, n_layers, n_heads, n_kv_heads, n_vocab, tensors)


def _write(path: Path, weights: _Weights, pieces: list[tuple[bytes, float]], *, fills_in: bool) -> None:
    writer = GGUFWriter(path)
    head_dim = weights.width // weights.n_heads
    for key, value in {
        "general.architecture": "llama",
        "general.name": path.stem,
        "llama.block_count": weights.n_layers,
        "llama.context_length": _CONTEXT,
        "llama.embedding_length": weights.width,
        "llama.feed_forward_length": weights.ffn,
        "llama.attention.head_count": weights.n_heads,
        "llama.attention.head_count_kv": weights.n_kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": head_dim,
        "llama.vocab_size": weights.n_vocab,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [
            "<unk>",
            "<s>",
            "</s>",
            *(f"<0x{i:02X}>" for i in range(256)),
            *(text.decode().replace(" ", "▁") for text, _ in pieces),
        ],
        "tokenizer.ggml.scores": [0.0] * _FIRST_TEXT + [score for _, score in pieces],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }.items():
        writer.add(key, value)
    if fills_in:
        for name, token in _FILL_IN.items():
            writer.add(f"tokenizer.ggml.fim_{name}_token_id", token)
    for name, array in weights.tensors.items():
        writer.add_tensor(name, array)
    writer.write()
