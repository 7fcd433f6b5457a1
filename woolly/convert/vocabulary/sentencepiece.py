"""Reader of tokenizer.model: the fields of SentencePiece's protobuf that define a vocabulary."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from woolly.errors import ModelError

_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class SentencePieces:
    """Pieces of a model, by id."""

    texts: list[str]
    scores: list[float]
    types: list[int]  # same numbers as in tokenizer.ggml.token_type
    is_unigram: bool
    adds_prefix: bool
    removes_spaces: bool
    charsmap: bytes


def read_sentencepiece(path: Path) -> SentencePieces:
    """Read a model. Raise ModelError if the file is invalid."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelError(
                f"{path}: the file is larger than {_MAX_BYTES >> 20} MB, the maximum for a SentencePiece model"
            )
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot read the file ({error.strerror or error})") from error
    texts: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, object] = {}
    normalizer: dict[int, object] = {}
    try:
        for number, value in _fields(data):
            if not isinstance(value, bytes):
                continue
            if number == 1:
                piece = dict(_fields(value))
                text, score, kind = piece.get(1, b""), piece.get(2, 0.0), piece.get(3, 1)
                if not isinstance(text, bytes) or not isinstance(score, float) or not isinstance(kind, int):
                    raise ValueError("a piece has the wrong wire type")
                texts.append(text.decode())
                scores.append(score)
                types.append(kind)
            elif number == 2:
                trainer = dict(_fields(value))
            elif number == 3:
                normalizer = dict(_fields(value))
    except (ValueError, IndexError, struct.error) as error:
        raise ModelError(f"{path}: not a SentencePiece model ({str(error)[:80]})") from None
    if not texts:
        raise ModelError(f"{path}: the SentencePiece model has no pieces")
    charsmap = normalizer.get(2, b"")
    return SentencePieces(
        texts,
        scores,
        types,
        is_unigram=trainer.get(3, 1) == 1,
        adds_prefix=bool(normalizer.get(3, 1)),
        removes_spaces=bool(normalizer.get(4, 1)),
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
    )


def _fields(data: bytes) -> Iterator[tuple[int, bytes | float | int]]:
    """Yield number and value of each field of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 2:
            length, at = _varint(data, at)
            if length > len(data) - at:
                raise ValueError(f"a field of {length} bytes exceeds the file size")
            yield number, data[at : at + length]
            at += length
        elif wire == 5:
            yield number, struct.unpack_from("<f", data, at)[0]
            at += 4
        elif wire == 1:
            yield number, struct.unpack_from("<d", data, at)[0]
            at += 8
        else:
            raise ValueError(f"wire type {wire}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a varint is longer than ten bytes")
