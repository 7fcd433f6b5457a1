"""DynamicAdaptersMixin: LoRA adapters that come and go while a model answers."""

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

_PATIENCE, _AGAIN = 10.0, 0.02  # seconds that requests with hooks and readings have to end, and between two tries


class DynamicAdaptersMixin:
    """The part of LLM that changes its adapters; any thread may do so.

    The model is compiled with the other adapters while requests run. Between two steps the engine goes on with that
    program, on the same cache: a request that does not want an adapter has the same bits with and without it. Both
    programs pack weights meanwhile: they take twice the memory.
    """

    driver: EngineDriver
    _loaded: list[LoadedModel]
    _identity: Any
    _identifying: threading.Lock
    _adapting: threading.Lock

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the LoRA adapters that requests may want, in the order of their numbers."""
        return tuple(name for name in self.driver.engine.adapters.names if name is not None)

    @property
    def adapter_scales(self) -> dict[str, float]:
        """How much of each adapter requests get that name none."""
        known = self.driver.engine.adapters
        return {name: scale for name, scale in zip(known.names, known.scales, strict=True) if name is not None}

    def add_adapter(self, path: str | os.PathLike[str], name: str | None = None, scale: float = 1.0) -> str:
        """Opens a LoRA file in GGUF beside the model while it runs, and returns its name: by default that of the file.

        Requests that name no adapters get `scale` of it from then on. RequestError if the name is taken, if a GPU or
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
        """Sets how much of each adapter requests get that name none; 0 of those that are not given."""
        with self._adapting:
            known = self.driver.engine.adapters
            given = replace(known, scales=known.scales_of(scales))
            self.driver.call(lambda engine: engine.name_adapters(given))

    def remove_adapter(self, name: str) -> None:
        """Takes an adapter away from further requests. Those that run with it end as they would have.

        Its memory is freed at once, or, if a request uses it or memory is short, when adapters are changed the next
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
        with self._identifying:  # an identity is of one program and of its files
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
        """Waits for requests with hooks and readings to end, which count the steps of their plan."""
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
