"""Validated vocabulary of a GGUF file: tokens, types, scores and merges."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woolly import _native
from woolly.errors import TokenizerError
from woolly.gguf import StringArray
from woolly.tokens.bpe_ranks import merges_by_rank

BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "\u2581"  # space in SentencePiece vocabularies


class TokenType(IntEnum):
    """Type of a token, as in `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of a file and their metadata."""

    model: str  # tokenizer.ggml.model
    texts: _native.Texts  # per id
    types: NDArray[np.int32]  # TokenType per id
    metadata: Mapping[str, Any]

    @cached_property
    def map(self) -> _native.PieceMap:
        """Map of token text to id. For equal texts, the last id wins."""
        return _native.PieceMap(self.texts)

    @cached_property
    def tokens(self) -> list[str]:
        """Token texts by id. Bytes that are not UTF-8 are surrogate-escaped."""
        return [text.decode("utf-8", "surrogateescape") for text in self.texts.tolist()]

    def find(self, text: str) -> int | None:
        """Return the id of a token text, or None."""
        index = self.map.find(text.encode("utf-8", "surrogateescape"))
        return None if index < 0 else index

    @property
    def kinds(self) -> bytes:
        """Token types, one byte each."""
        return self.types.astype(np.uint8).tobytes()

    def scores(self) -> NDArray[np.float32]:
        """Finite score per token."""
        scores = _numbers(self.metadata, "tokenizer.ggml.scores", len(self.texts), np.float32)
        if scores is None:
            raise TokenizerError(f"the file has no tokenizer.ggml.scores, which a {self.model!r} vocabulary needs")
        if not np.isfinite(scores).all():
            bad = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise TokenizerError(
                f"tokenizer.ggml.scores: the score of token {bad} is {scores[bad]}, not a finite number"
            )
        return scores

    @property
    def is_ranked(self) -> bool:
        """True if the token order determines the merges, as in whisper.cpp's files."""
        is_whisper = self.text("general.architecture") == "whisper"
        return is_whisper and "tokenizer.ggml.merges" not in self.metadata

    def merges(self) -> _native.Texts:
        """Merges in order of priority, each as "left right"."""
        merges = _texts(self.metadata, "tokenizer.ggml.merges")
        if merges is None and self.is_ranked:
            words = [text for text, kind in zip(self.tokens, self.types, strict=True) if kind == TokenType.NORMAL]
            return _native.Texts([rule.encode() for rule in merges_by_rank(words)])
        if merges is None:
            raise TokenizerError(f"the file has no tokenizer.ggml.merges, which a {self.model!r} vocabulary needs")
        return merges

    def flag(self, name: str, default: bool) -> bool:
        """Return the boolean `tokenizer.ggml.<name>`."""
        value = self.metadata.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, (bool, np.bool_)):
            raise TokenizerError(f"tokenizer.ggml.{name} is {value!r}, but must be true or false")
        return bool(value)

    def text(self, key: str) -> str:
        """Return a string of the metadata, empty if it is missing."""
        value = self.metadata.get(key, "")
        if not isinstance(value, str):
            raise TokenizerError(f"{key} is {type(value).__name__}, but must be a string")
        return value


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Read and validate the token list of `metadata`."""
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str):
        raise TokenizerError("the file has no tokenizer.ggml.model, so its tokenizer is unknown")
    texts = _texts(metadata, "tokenizer.ggml.tokens")
    if not texts:
        raise TokenizerError(f"tokenizer.ggml.tokens is missing or empty; the {model!r} tokenizer needs it")
    if texts.has_empty:
        texts = _native.Texts([text or f"[EMPTY_{i}]".encode() for i, text in enumerate(texts.tolist())])
    types = _numbers(metadata, "tokenizer.ggml.token_type", len(texts), np.int32)
    if types is None:
        types = np.full(len(texts), TokenType.NORMAL, np.int32)
        for i, text in enumerate(texts.tolist()):
            if len(text) == 6 and BYTE_NAME.fullmatch(text.decode("utf-8", "replace")):
                types[i] = TokenType.BYTE
    types[(types < 0) | (types > max(TokenType))] = TokenType.UNDEFINED
    return Vocabulary(model, texts, types, metadata)


def _texts(metadata: Mapping[str, Any], key: str) -> _native.Texts | None:
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, StringArray):
        return value.texts()
    items = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(items, (list, tuple)) or not set(map(type, items)) <= {str}:
        raise TokenizerError(f"{key} must be an array of strings")
    try:
        return _native.Texts([item.encode("utf-8", "surrogateescape") for item in items])
    except UnicodeEncodeError as error:
        raise TokenizerError(f"{key} has {error.object!r} with a lone surrogate") from None


def _numbers(metadata: Mapping[str, Any], key: str, count: int, dtype: type[Any]) -> NDArray[Any] | None:
    """Return a copy of the first `count` numbers of an array."""
    value = metadata.get(key)
    if value is None:
        return None
    try:
        numbers = np.array(value)
    except (TypeError, ValueError):
        numbers = np.array(None)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iufb":
        raise TokenizerError(f"{key} must be an array of numbers")
    if len(numbers) < count:
        raise TokenizerError(f"{key} has {len(numbers)} values, but the vocabulary has {count} tokens")
    return numbers[:count].astype(dtype)
