"""DynamicAdaptersMixin: adds and removes LoRA adapters of a running model."""

from __future__ import annotations

import math
import numbers
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woolly.engine.engine import Engine
from woolly.engine.loading.adapters import AdapterSet, open_adapter
from woolly.engine.loading.memory_estimate import check_memory_for_second_copy
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.engine.loading.load import LoadedModel
    from woolly.engine.threads.driver import EngineDriver

_PATIENCE, _AGAIN = 10.0, 0.02  # seconds to wait for hooks and pooling jobs to end, and between attempts


class DynamicAdaptersMixin:
    """Adapter methods of LLM. Any thread may call them.

    The model is compiled with the new adapters while requests run. Between two steps, the engine switches to the new
    program and keeps the cache. Answers of requests that do not use the adapter are bit-identical before and after.
    While both programs exist, weights take twice the memory.
    """

    driver: EngineDriver
    _loaded: list[LoadedModel]
    _identity: Any
    _identifying: threading.Lock
    _adapting: threading.Lock

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the LoRA adapters available to requests, in order of their numbers."""
        return tuple(name for name in self.driver.engine.adapters.names if name is not None)

    @property
    def adapter_scales(self) -> dict[str, float]:
        """Default scale of each adapter, for requests that do not select adapters."""
        known = self.driver.engine.adapters
        return {name: scale for name, scale in zip(known.names, known.scales, strict=True) if name is not None}

    def add_adapter(self, path: str | os.PathLike[str], name: str | None = None, scale: float = 1.0) -> str:
        """Add a GGUF LoRA file to the running model and return its name, by default the stem of the file.

        Later requests that do not select adapters use it with `scale`. Raise RequestError if the name is taken, if a
        GPU or other processes run the model (load the model with its adapters instead), or if memory cannot hold a
        second copy of the prepared weights (`code` is "insufficient_memory").
        """
        name = Path(path).stem if name is None else name
        _check_scale(name, scale)
        with self._adapting:
            loaded, known = self._changeable()
            if name in known.names:
                raise RequestError(f"adapter {name!r} already exists; use another name, or remove it first")
            adapter = open_adapter(name, path, loaded.program.plan)
            try:
                left = known.pruned(self.driver.call(Engine.used_adapters))
                self._swap(left.with_adapter(adapter, float(scale)))
            except BaseException:
                adapter.close()
                raise
        return name

    def scale_adapters(self, scales: Mapping[str | int, float]) -> None:
        """Set the default scale of each adapter, for requests that do not select adapters; unnamed adapters get 0."""
        with self._adapting:
            known = self.driver.engine.adapters
            given = replace(known, scales=known.scales_of(scales))
            self.driver.call(lambda engine: engine.name_adapters(given))

    def remove_adapter(self, name: str) -> None:
        """Remove an adapter for new requests. Running requests continue to use it.

        Its memory is freed immediately or, if the adapter is in use or memory is short, at the next change of adapters.
        """
        with self._adapting:
            _, known = self._changeable()
            if name not in known.names:
                names = ", ".join(one for one in known.names if one is not None)
                raise RequestError(
                    f"unknown adapter {name!r}; {f'expected one of {names}' if names else 'no adapter is loaded'}"
                )
            hidden = known.hiding(name)
            self.driver.call(lambda engine: engine.name_adapters(hidden))
            left = hidden.pruned(self.driver.call(Engine.used_adapters))
            if left != hidden:
                try:
                    self._swap(left)
                except RequestError as error:
                    if error.code not in ("busy", "insufficient_memory"):
                        raise

    def _changeable(self) -> tuple[LoadedModel, AdapterSet]:
        known = self.driver.engine.adapters  # raises if the LLM was closed
        loaded = self._loaded[0]
        if loaded.compile is None:
            raise RequestError(
                "adapters can only be changed on the CPU in a single process; load the model with its adapters instead",
                field="adapters",
            )
        return loaded, known

    def _swap(self, wanted: AdapterSet) -> None:
        loaded = self._loaded[0]
        assert loaded.compile is not None
        check_memory_for_second_copy(loaded.path.stem, loaded.weight_bytes)
        before = self.driver.engine.adapters
        program = loaded.compile(wanted.adapters)
        opened = tuple(one for one in wanted.adapters if one is not None)
        with self._identifying:  # the identity depends on the program and its files
            try:
                self._hand_over(lambda engine: engine.swap(program, wanted))
            except BaseException:
                program.close()
                raise
            self._loaded[0] = replace(loaded, program=program, adapters=opened)
            self._identity = None  # the bits of answers depend on the adapters
        loaded.program.close()
        for gone in [one for one in before.adapters if one is not None and one not in opened]:
            gone.close()

    def _hand_over(self, swap: Callable[[Engine], None]) -> None:
        """Swap after requests with hooks and pooling jobs have ended, because they refer to steps of the old plan."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return self.driver.call(swap)
            except RequestError as error:
                if error.code != "busy" or time.monotonic() > until:
                    raise
            time.sleep(_AGAIN)


def _check_scale(name: str, scale: object) -> None:
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real) or not math.isfinite(scale):
        raise RequestError(f"the scale of adapter {name!r} is {scale!r}; expected a number", field="adapters")
