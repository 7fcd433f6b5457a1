"""Which architectures there are, and the one way from a file to its plan."""

from __future__ import annotations

from collections.abc import Callable

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import GGUFFile
from woolly.models import granite, llama, qwen2, qwen3
from woolly.models.params import Keys
from woolly.plan import Plan, Tracer

__all__ = ["architectures", "trace"]

_TRACERS: dict[str, Callable[[Tracer, Keys], None]] = {
    "granite": lambda p, keys: granite.build(p, granite.read(keys)),
    "llama": lambda p, keys: llama.build(p, llama.read(keys)),
    "qwen2": lambda p, keys: qwen2.build(p, qwen2.read(keys)),
    "qwen3": lambda p, keys: qwen3.build(p, qwen3.read(keys)),
}


def architectures() -> tuple[str, ...]:
    """Names of `general.architecture` that Woolly can run."""
    return tuple(sorted(_TRACERS))


def trace(file: GGUFFile) -> Plan:
    """The plan of the model in a file."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelError(f"{file.path}: metadata key general.architecture is missing, so this is no model")
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedError(f"{file.path}: the file is of type {kind!r}, not a model, and cannot be run by itself")
    if name not in _TRACERS:
        known = ", ".join(architectures())
        raise UnsupportedError(f"{file.path}: architecture {name!r} is not supported yet; supported: {known}")
    if not file.tensors:
        raise ModelError(f"{file.path}: the file holds a vocabulary but no weights, so it cannot be run")
    tracer = Tracer(name, file.tensors)
    _TRACERS[name](tracer, Keys(file.metadata, name))
    return tracer.plan()
