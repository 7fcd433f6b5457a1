"""Stages: addresses of the processes that run the parts of a model."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from woolly.errors import RequestError

Address = tuple[str, int]  # host and port

_MIN_LENGTH = 16  # characters of a token


@dataclass(frozen=True)
class Stages:
    """The processes that hold a model's layers, in the order of the layers."""

    places: tuple[tuple[Address, ...], ...]  # addresses per stage: the first one, then its replacements
    token: bytes
    model: str = ""  # digest of the file, which every stage must have
    ctx: int | None = None  # context that the plan was traced for
    patience: float = 60.0  # seconds to wait for a lost stage to come back

    @classmethod
    def parse(cls, names: Sequence[str], token_file: str | os.PathLike[str] | None) -> Stages:
        """Parse "HOST:PORT" of each stage. "HOST:PORT|HOST:PORT" adds a replacement."""
        if isinstance(names, str) or not names:
            raise RequestError("stages must be a non-empty list of HOST:PORT", field="stages")
        if token_file is None:
            raise RequestError(
                "stages need stage_token_file, a file with the token that the stages were started with",
                field="stage_token_file",
                names=("stages", "stage_token_file"),
            )
        places = tuple(tuple(parse_address("stages", one) for one in str(name).split("|")) for name in names)
        return cls(places, read_token(token_file))


def parse_address(field: str, text: str) -> Address:
    """Parse "HOST:PORT" or "[IPV6]:PORT"."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise RequestError(f"{field} has {text!r}; expected HOST:PORT, such as 10.0.0.2:7070", field=field)
    return host.removeprefix("[").removesuffix("]"), int(port)


def read_token(path: str | os.PathLike[str]) -> bytes:
    """Read the file with the token that this process shares with its stages."""
    try:
        token = Path(path).read_bytes().strip()
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise RequestError(
            f"stage_token_file is {os.fspath(path)}, which cannot be read: {error.strerror}", field="stage_token_file"
        ) from None
    if len(token) < _MIN_LENGTH:
        raise RequestError(
            f"the token in {os.fspath(path)} is too short; it needs at least {_MIN_LENGTH} characters",
            field="stage_token_file",
        )
    if os.name == "posix" and mode & (stat.S_IRGRP | stat.S_IROTH):
        warnings.warn(f"the token file {os.fspath(path)} is readable by other users; run chmod 600 on it", stacklevel=3)
    return token
