"""Gpus: what GPUs this machine has, of every kind, without a program on them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from woolly.errors import DeviceError, RequestError
from woolly.runtime.devices import GPU_KINDS, is_gpu_backend
from woolly.runtime.gpu.found import Gpu

__all__ = ["count_gpus", "find_gpu"]


def _rooms(kind: str | None) -> Iterator[Any]:
    """The module `gpus` of a kind, or of all kinds, that of "auto" first."""
    for one in (kind,) if kind is not None and is_gpu_backend(kind) else GPU_KINDS:
        yield importlib.import_module(f"woolly.runtime.{one}.gpus")


def find_gpu(number: int = 0, kind: str | None = None) -> Gpu:
    """The GPU of that number, of a kind or of the first kind that finds one.

    DeviceError if there is none that can be used, RequestError if none has that number.
    """
    errors: list[DeviceError] = []
    for room in _rooms(kind):
        try:
            found: Gpu = room.find_gpu(number, kind is not None)
            return found
        except DeviceError as error:
            errors.append(error)
    first, *others = errors
    if not others or first.code != "no_driver":
        raise first
    faults = dict.fromkeys(error.fault for error in errors)
    raise DeviceError("; ".join(faults), code=first.code, remedy="install a driver, or use backend='cpu'")


def count_gpus() -> int:
    """GPUs of the first kind; 0 if the first of them cannot be used."""
    try:
        return int(next(_rooms(None)).count_gpus())
    except (DeviceError, RequestError):
        return 0
