"""DynamicAdaptersMixin: adds and removes LoRA adapters while a model runs."""

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

_PATIENCE, _AGAIN = 10.0, 0.02  # seconds to wait for hooks and pooling jobs to end, and between two attempts


class DynamicAdaptersMixin:
    """Adapter methods of LLM; any thread may call them.

    The model is compiled with the new adapters while requests run. Between two steps the engine switches to that
    program, with the same cache: requests that do not use an adapter have the same bits with and without it. Both
    programs have packed weights meanwhile, which doubles the memory.
    """

    driver: EngineDriver
    _loaded: list[LoadedModel]
    _identity: Any
    _identifying: threading.Lock
    _adapting: threading.Lock

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the LoRA adapters that requests may use, in the order of their numbers."""
        return tuple(name for name in self.driver.engine.adapters.names if name is not None)

    @property
    def adapter_scales(self) -> dict[str, float]:
        """Default scale of each adapter, for requests that name no adapters."""
        known = self.driver.engine.adapters
        return {name: scale for name, scale in zip(known.names, known.scales, strict=True) if name is not None}

    def add_adapter(self, path: str | os.PathLike[str], name: str | None = None, scale: float = 1.0) -> str:
        """Add a GGUF LoRA file to the running model; return its name, by default the file's.

        Requests that name no adapters use it with `scale` from then on. RequestError if the name is taken, if a GPU or
        other processes run the model (open it with its adapters there), or if the available memory cannot hold the
        prepared weights a second time (`code` is "insufficient_memory").
        """
        name = Path(path).stem if name is None else name
        _check_scale(name, scale)
        with self._adapting:
            loaded, known = self._changeable()
            if name in known.names:
                raise RequestError(f"there is an adapter {name!r} already: give another name, or remove it first")
            adapter = open_adapter(name, path, loaded.program.plan)
            try:
                left = known.pruned(self.driver.call(Engine.used_adapters))
                self._swap(left.with_adapter(adapter, float(scale)))
            except BaseException:
                adapter.close()
                raise
        return name

    def scale_adapters(self, scales: Mapping[str | int, float]) -> None:
        """Set the default scale of each adapter, for requests that name no adapters; 0 if not given."""
        with self._adapting:
            known = self.driver.engine.adapters
            given = replace(known, scales=known.scales_of(scales))
            self.driver.call(lambda engine: engine.name_adapters(given))

    def remove_adapter(self, name: str) -> None:
        """Remove an adapter for new requests. Running requests keep it to their end.

        Its memory is freed immediately, or, if a request uses it or memory is short, when adapters are changed the next
        time.
        """
        with self._adapting:
            _, known = self._changeable()
            if name not in known.names:
                names = ", ".join(one for one in known.names if one is not None)
                raise RequestError(f"there is no adapter {name!r}; there {f'are {names}' if names else 'is none'}")
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
        known = self.driver.engine.adapters  # raises if this was closed
        loaded = self._loaded[0]
        if loaded.compile is None:
            raise RequestError(
                "adapters can be changed only while a model runs in one process and on the CPU: open it with them here",
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
            self._identity = None  # bits of answers depend on the adapters
        loaded.program.close()
        for gone in [one for one in before.adapters if one is not None and one not in opened]:
            gone.close()

    def _hand_over(self, swap: Callable[[Engine], None]) -> None:
        """Wait for requests with hooks and pooling jobs to end, which refer to steps of their plan, then swap."""
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
        raise RequestError(f"the scale of adapter {name!r} is {scale!r}; a number was expected", field="adapters")
