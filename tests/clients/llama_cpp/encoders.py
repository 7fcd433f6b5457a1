"""Writes the models of embeddings and of reranking that llama.cpp's tests ask for.

Tiny BERTs with a vocabulary of the words in the tests, so that texts have as many tokens as in the real models'. The
weights of the embedder are random: its tests compare vectors with each other. Those of the reranker are made by hand:
each token has a number, larger for words about machine learning and smaller for French ones, and a text's score is
their mean.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import numpy as np

from woolly.gguf import GGUFWriter

_POOLINGS = {"none": 0, "mean": 1, "cls": 2, "last": 3}
_RANK = 4

# The file that the tests name says cls; --pooling of llama-server is another file here.
EMBEDDERS = {pooling: f"hf/ggml-org/models/bert-bge-small/{pooling}.gguf" for pooling in _POOLINGS}
RERANKER = "hf/ggml-org/models/jina-reranker-v1-tiny-en/ggml-model-f16.gguf"

_WIDTH, _FFN, _N_HEADS, _N_LAYERS, _CONTEXT = 64, 96, 4, 2, 1024
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_NEAR = frozenset(
    [
        "machine",
        "machines",
        "learning",
        "learn",
        "artificial",
        "intelligence",
        "statistical",
        "algorithms",
        "data",
        "tasks",
    ]
)
_FAR = frozenset(
    [
        "paris",
        "capitale",
        "de",
        "la",
        "france",
        "est",
        "une",
        "grande",
        "ville",
        "et",
        "un",
        "le",
        "l",
        "son",
        "du",
        "par",
    ]
)


def write_encoders(folder: Path, tests: Path) -> None:
    """Writes the embedder once for each pooling, and the reranker; `tests` is the folder of llama.cpp's tests."""
    texts = [(tests / "unit" / f"test_{name}.py").read_text() for name in ("embedding", "rerank")]
    words = _words("\n".join((*texts, "hello goodbye world")))
    random = np.random.RandomState(64)
    for pooling, name in EMBEDDERS.items():
        _write(folder / name, words, _tensors(len(words) + len(_SPECIAL), random), _POOLINGS[pooling])
    _write(folder / RERANKER, words, _ranking(words), _RANK)


def _words(text: str) -> list[str]:
    """Returns words and single characters as BERT reads them: without case and accents."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    words = set(re.findall(r"[a-z]+", plain)) | set(re.findall(r"[a-z0-9]|[^\w\s]", plain))
    letters = [f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0123456789"]
    return [*sorted(words), *letters]


def _tensors(n_vocab: int, random: np.random.RandomState) -> dict[str, np.ndarray]:
    """Returns random tensors under a file's names."""

    def table(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    found = {
        "token_embd.weight": table(n_vocab, _WIDTH),
        "token_types.weight": table(2, _WIDTH),
        "position_embd.weight": table(_CONTEXT, _WIDTH),
        "token_embd_norm.weight": np.ones(_WIDTH, np.float32),
        "token_embd_norm.bias": np.zeros(_WIDTH, np.float32),
    }
    for i in range(_N_LAYERS):
        shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (_WIDTH, _WIDTH))
        shapes |= {"ffn_up": (_FFN, _WIDTH), "ffn_down": (_WIDTH, _FFN)}
        for name, shape in shapes.items():
            found[f"blk.{i}.{name}.weight"] = table(*shape)
            found[f"blk.{i}.{name}.bias"] = np.zeros(shape[0], np.float32)
        for name in ("attn_output_norm", "layer_output_norm"):
            found[f"blk.{i}.{name}.weight"] = np.ones(_WIDTH, np.float32)
            found[f"blk.{i}.{name}.bias"] = np.zeros(_WIDTH, np.float32)
    return found


def _ranking(words: list[str]) -> dict[str, np.ndarray]:
    """Returns tensors whose first layer averages the first number of all tokens, and whose head reads it."""
    found = _tensors(len(words) + len(_SPECIAL), np.random.RandomState(65))
    for name, values in found.items():
        if not name.endswith("norm.weight"):
            values *= 0.02 if name in ("token_types.weight", "position_embd.weight") else 1.0
        if name.startswith("blk."):
            values[...] = 1.0 if name.endswith("norm.weight") else 0.0
    numbers = [float(word in _NEAR) - float(word in _FAR) for word in words]
    found["token_embd.weight"][:, 0] = [0.0] * len(_SPECIAL) + numbers
    found["blk.0.attn_v.weight"][0, 0] = 1.0
    found["blk.0.attn_output.weight"][0, 0] = 4.0
    found["cls.weight"] = np.zeros((_WIDTH, _WIDTH), np.float32)
    found["cls.weight"][0, 0] = 0.2
    found["cls.bias"] = np.zeros(_WIDTH, np.float32)
    found["cls.output.weight"] = np.zeros((1, _WIDTH), np.float32)
    found["cls.output.weight"][0, 0] = 1.0
    found["cls.output.bias"] = np.zeros(1, np.float32)
    return found


def _write(path: Path, words: list[str], tensors: dict[str, np.ndarray], pooling: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path)
    shown = [word[2:] if word.startswith("##") else f"\u2581{word}" for word in words]
    for key, value in {
        "general.architecture": "bert",
        "general.name": path.stem,
        "bert.block_count": _N_LAYERS,
        "bert.context_length": _CONTEXT,
        "bert.embedding_length": _WIDTH,
        "bert.feed_forward_length": _FFN,
        "bert.attention.head_count": _N_HEADS,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "bert.pooling_type": pooling,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": [*_SPECIAL, *shown],
        "tokenizer.ggml.token_type": [3] * len(_SPECIAL) + [1] * len(words),
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
    }.items():
        writer.add(key, value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write()
