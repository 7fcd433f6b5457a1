"""Discovery of the GPUs of this machine, of every kind, without compiling a program."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from woolly.errors import DeviceError, RequestError
from woolly.runtime.devices import GPU_KINDS, is_gpu_backend

if TYPE_CHECKING:
    from woolly.runtime.gpu.gpu_info import Gpu


def _rooms(kind: str | None) -> Iterator[Any]:
    """Yield the module `gpu_discovery` of a kind, or of every kind in the order of "auto"."""
    for one in (kind,) if kind is not None and is_gpu_backend(kind) else GPU_KINDS:
        yield importlib.import_module(f"woolly.runtime.{one}.gpu_discovery")


def find_gpu(number: int = 0, kind: str | None = None) -> Gpu:
    """Return the GPU of that number, of the given kind or of the first kind that finds one.

    Raises DeviceError if no GPU is usable, RequestError if the number does not exist.
    """
    errors: list[DeviceError] = []
    for room in _rooms(kind):
        try:
            found: Gpu = room.find_gpu(number, kind is not None)
            return found
        except DeviceError as error:
            # Kinds of other operating systems are reported only if requested.
            if kind is not None or error.code != "other_system":
                errors.append(error)
    first, *others = errors
    if not others or first.code != "no_driver":
        raise first
    faults = dict.fromkeys(error.fault for error in errors)
    raise DeviceError("; ".join(faults), code=first.code, remedy="install a driver, or use backend='cpu'")


def name_gpus(backend: str = "auto") -> list[str]:
    """Return the GPUs of a backend, or of the first kind that has some, as `device` names, or [] if none is usable."""
    for kind in (backend,) if is_gpu_backend(backend) else GPU_KINDS:
        try:
            (room,) = _rooms(kind)
            if n := room.count_gpus():
                return [f"{kind}:{number}" for number in range(n)]
        except (DeviceError, RequestError):
            continue
    return []
