"""The table of backends. A backend is a folder here and a line in the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from woolly.errors import RequestError
from woolly.runtime.cpu import CpuBackend
from woolly.runtime.pipeline import PipelineBackend
from woolly.runtime.program import Backend
from woolly.runtime.reference import ReferenceBackend
from woolly.runtime.stages import Stages

__all__ = ["BACKENDS", "choose"]

# Fastest first: "auto" takes the first that this machine can run.
BACKENDS: Mapping[str, Callable[[], Backend]] = {
    "cpu": CpuBackend,
    "reference": ReferenceBackend,
}


def choose(name: str = "auto", stages: Stages | None = None) -> Backend:
    """The backend of that name; "auto": the fastest that this machine can run. With stages, they run it there."""
    if stages is not None:
        return PipelineBackend(choose(name).name, stages)
    if name == "auto":
        return next(backend for make in BACKENDS.values() if (backend := make()).is_available())
    if name not in BACKENDS:
        raise RequestError(
            f"backend {name!r} is unknown; choose auto or one of: {', '.join(sorted(BACKENDS))}", field="backend"
        )
    return BACKENDS[name]()
