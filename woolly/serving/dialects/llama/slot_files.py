"""Slot files: the tokens of a slot, with their model and client.

The KV cache is not stored: a restore recomputes it from the tokens, bit for bit. A slot file takes a few bytes per
token, and cannot put wrong values into the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import struct
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path

from woolly.serving.errors import ApiError, invalid_param
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.store.safe_files import atomic_write, open_regular_file, read_regular_file

_MAGIC = b"WOOLSLOT"
_HEAD = struct.Struct("<8sI16sII")  # magic, version, owner digest, length of the model fingerprint, tokens
_VERSION = 2
_MAX_BYTES = 256 << 20
_MAX_FILES = 256  # per owner
_REPLACING = threading.Lock()  # held between opening and closing a file
_ASIDE = ".slot."  # prefix of temporary files
_NAME = re.compile(r"[^/\\:*?\"<>|\x00-\x1f]{1,255}")


def slot_path(folder: Path, name: str) -> Path:
    """Return the path of a slot file. Raises ApiError 400 for a name outside of the folder."""
    if not _NAME.fullmatch(name) or name.strip(". ") == "":
        raise invalid_param("filename", f"invalid file name {name[:80]!r}; use a name without a path")
    return folder / name


def write_slot(path: Path, info: ModelInfo, owner: str, tokens: Sequence[int]) -> int:
    """Write a slot file atomically and return its size.

    Raises ApiError 400 if the name is used by another file or owner, and ApiError 413 if the owner has too many files.
    """
    mark = _mark(info)
    head = _HEAD.pack(_MAGIC, _VERSION, _digest(owner), len(mark), len(tokens))
    data = head + mark + array("i", tokens).tobytes()
    beside = path.with_name(f"{_ASIDE}{secrets.token_hex(16)}")
    try:
        with _REPLACING, atomic_write(path, aside=beside) as file:
            file.write(data)
            if os.path.lexists(path):
                _check_owner(path, _read_head(path), owner)
            else:
                _check_number(path.parent, owner)
    except OSError as error:
        raise ApiError(507, "storage_full", f"cannot write {path.name}: {error.strerror}") from None
    return len(data)


def read_slot(path: Path, info: ModelInfo, owner: str, n_vocab: int) -> tuple[list[int], int]:
    """Return the tokens and the size of a file.

    Raises ApiError 400 unless the file is a slot file of this model and client.
    """
    try:
        data = read_regular_file(path, _MAX_BYTES)
    except ValueError:
        raise invalid_param("filename", f"{path.name} is not a Woolly slot file") from None
    except OSError as error:
        raise invalid_param("filename", f"cannot read {path.name}: {error.strerror}") from None
    _check_owner(path, data[: _HEAD.size], owner)
    *_, n_mark, n_tokens = _HEAD.unpack_from(data)
    end = _HEAD.size + n_mark
    if len(data) != end + 4 * n_tokens:
        raise invalid_param("filename", f"{path.name} is not a Woolly slot file")
    if data[_HEAD.size : end] != _mark(info):
        raise invalid_param("filename", f"{path.name} was saved with another model")
    tokens = array("i")
    tokens.frombytes(data[end:])
    if any(not 0 <= token < n_vocab for token in tokens):
        raise invalid_param("filename", f"{path.name} has tokens that are not in the model's vocabulary")
    return tokens.tolist(), len(data)


def _read_head(path: Path) -> bytes:
    """Return the first bytes of a regular file, or b"" for a pipe or device, which could block."""
    try:
        with open_regular_file(path) as file:
            return file.read(_HEAD.size)
    except ValueError:
        return b""


def _check_number(folder: Path, owner: str) -> None:
    """Raise ApiError 413 if the owner has reached the maximum number of slot files."""
    own, n_files = _HEAD.pack(_MAGIC, _VERSION, _digest(owner), 0, 0)[:-8], 0
    for path in folder.iterdir():
        if not path.name.startswith(_ASIDE):
            with contextlib.suppress(OSError):
                n_files += _read_head(path).startswith(own)
    if n_files >= _MAX_FILES:
        message = f"the limit of {_MAX_FILES} slot files is reached; overwrite an existing file"
        raise ApiError(413, "too_many_slot_files", message)


def _check_owner(path: Path, head: bytes, owner: str) -> None:
    """Raise ApiError 400 unless the header belongs to a slot file of this owner."""
    if len(head) < _HEAD.size or _HEAD.unpack(head)[:2] != (_MAGIC, _VERSION):
        raise invalid_param("filename", f"{path.name} is not a Woolly slot file")
    if _HEAD.unpack(head)[2] != _digest(owner):
        raise invalid_param("filename", f"{path.name} belongs to another client; choose another name")


def _digest(owner: str) -> bytes:
    data = owner.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16, person=b"woolly slot").digest()


def _mark(info: ModelInfo) -> bytes:
    """Return a fingerprint of the model. Models with equal fingerprints have the same tokenizer."""
    return f"{info.architecture} {info.parameters} {info.size_bytes}".encode()
