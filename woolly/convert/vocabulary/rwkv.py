"""RWKV's vocabulary format: one line per token, with its id, its bytes as a Python literal, and their count."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from woolly.errors import ModelError
from woolly.tokens.vocabulary import TokenType

_MAX_BYTES = 64 << 20
_END_OF_TURN = r"\n\n"


def find_rwkv(folder: Path) -> Path | None:
    """Return the vocabulary file of a folder, or None."""
    return next(iter(sorted(folder.glob("rwkv_vocab*.txt"))), None)


def read_rwkv(path: Path) -> dict[str, Any]:
    """Read the vocabulary. Raise a ModelError that names an invalid line. Token 0 ends texts and has no line."""
    if path.stat().st_size > _MAX_BYTES:
        raise ModelError(f"{path} is too large for a vocabulary")
    texts = ["<s>"]
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        data = _token(line, len(texts))
        if data is None:
            raise ModelError(f"{path}: line {number} is not token {len(texts)} with its bytes and their count")
        texts.append(repr(data)[2:-1])
    types = [int(TokenType.CONTROL), *[int(TokenType.NORMAL)] * (len(texts) - 1)]
    return {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": types}


def rwkv_ends(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the special tokens, which are not in files: 0 is BOS and EOS, an empty line ends a turn."""
    out = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0}
    texts = keys["tokenizer.ggml.tokens"]
    return out | ({"tokenizer.ggml.eot_token_id": texts.index(_END_OF_TURN)} if _END_OF_TURN in texts else {})


def _token(line: bytes, index: int) -> bytes | None:
    number, _, rest = line.partition(b" ")
    literal, _, count = rest.rpartition(b" ")
    try:
        value = ast.literal_eval(literal.decode())
        data = value.encode() if isinstance(value, str) else value
        is_sound = isinstance(data, bytes) and int(number) == index and int(count) == len(data)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return data if is_sound else None
