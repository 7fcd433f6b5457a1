"""LoRA adapters that are added while the server runs, each with a separate model name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from woolly.errors import WoollyError
from woolly.llm import LLM
from woolly.serving.errors import ApiError
from woolly.serving.generation.thread_pool import start_task
from woolly.serving.model_manager.catalog import ModelCatalog
from woolly.serving.model_manager.eviction import check_adapter_memory
from woolly.serving.model_manager.loaded_model import ModelSlot
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.model_manager.resolver import RESERVED
from woolly.serving.model_manager.served_names import ServedNames
from woolly.serving.observability.logs import log
from woolly.serving.settings.table import Settings
from woolly.store import Preset

T = TypeVar("T")
Use = Callable[[ModelInfo], AbstractAsyncContextManager[ModelSlot]]


class DynamicAdapters:
    """Adapters of each model in addition to its initial adapters. Use this class only on the event loop thread.

    Requests for the model do not use these adapters; a request for an adapter's name uses the model with this adapter
    at scale 1. A change continues if its caller is cancelled, because its thread continues and the name must be updated
    afterwards.
    """

    def __init__(
        self, settings: Settings, catalog: ModelCatalog, names: ServedNames, loaded: Mapping[str, ModelSlot], use: Use
    ) -> None:
        self._folder, self._max_bytes = settings.folder, settings.models_bytes
        self._catalog = catalog
        self._names = names
        self._loaded = loaded
        self._use = use
        self._files: dict[str, dict[str, Path]] = {}  # model -> adapter name -> file
        self._coming: set[str] = set()  # names of adapters that are being added
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    async def add(self, model: ModelInfo, name: str, path: str) -> None:
        """Add an adapter file to a model. Raises ApiError 400 if the name is taken or the file is not usable."""
        if (key := _key(name)) in self._coming:
            raise _name_taken(name)
        self._coming.add(key)
        await self._run_to_end(self._add(model, name, path))

    async def remove(self, name: str) -> str:
        """Remove an adapter and return the name of its model. Running answers with the adapter are not affected."""
        return await self._run_to_end(self._remove(name))

    async def close(self) -> None:
        """Wait for running changes. Closed models reject further changes."""
        await asyncio.gather(*self._changes, return_exceptions=True)

    async def _run_to_end(self, change: Coroutine[Any, Any, T]) -> T:
        task = start_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def _add(self, model: ModelInfo, name: str, path: str) -> None:
        try:
            if await asyncio.to_thread(self._is_taken, name):
                raise _name_taken(name)
            if model.base is not None:
                raise ApiError(
                    400,
                    "invalid_request",
                    f"{model.name} is derived from {model.base}; add the adapter to {model.base}",
                    param="model",
                )
            file = await asyncio.to_thread(self._within, model, path)
            async with self._changing, self._use(model) as slot:
                try:
                    await self._put(slot, slot.model, file, name)
                except WoollyError as error:
                    _ = slot.model  # raises ApiError if the model was unloaded meanwhile
                    if error.code == "insufficient_memory":
                        raise ApiError(503, error.code, str(error)) from None
                    raise ApiError(400, "invalid_request", str(error), param="lora_path") from None
                self._files.setdefault(model.name, {})[name] = file
                self._names.add(Preset(name, file, sampling={"adapters": {name: 1.0}}, base=model.name))
        finally:
            self._coming.discard(_key(name))

    def _is_taken(self, name: str) -> bool:
        """Return True if the name is in use."""
        key = _key(name)
        if not key or key in RESERVED or self._names.find(name) is not None:
            return True
        for one in (name, key):
            try:
                info = self._catalog.find(one)
            except ApiError as error:
                if error.code != "model_not_found":
                    return True
            else:
                if info.metadata.get("general.type") != "adapter":  # adapter files are not models
                    return True
        return False

    async def _remove(self, name: str) -> str:
        async with self._changing:
            model = self._model_of(name)
            slot = self._loaded.get(model)
            if slot is not None and slot.state != "unloading":
                try:
                    async with self._use(slot.info) as slot_in_use:
                        await asyncio.to_thread(slot_in_use.model.remove_adapter, name)
                except ApiError:
                    if model in self._loaded:
                        raise  # still loading; a model that fails to load has no adapters
                except WoollyError as error:  # the model was unloaded meanwhile, or the adapter is no longer available
                    log.warning("adapter not freed", extra={"model": model, "adapter": name, "reason": str(error)})
            self._drop(model, name)
            return model

    def _model_of(self, name: str) -> str:
        """Return the model of an adapter. Raises ApiError 404 for an unknown adapter."""
        found = next((model for model, files in self._files.items() if name in files), None)
        if found is None:
            known = ", ".join(one for files in self._files.values() for one in files)
            raise ApiError(
                404,
                "adapter_not_found",
                f"unknown adapter {name[:60]!r}; known: {known or 'none'}",
                param="lora_name",
            )
        return found

    def _drop(self, model: str, name: str) -> None:
        self._files[model].pop(name, None)  # loading may have removed it
        self._names.remove(name)

    async def put_into(self, slot: ModelSlot, llm: LLM) -> None:
        """Add a model's adapters after it was reloaded; adapters that fail are removed."""
        model = slot.info.name
        for name, file in [*self._files.get(model, {}).items()]:
            try:
                await self._put(slot, llm, file, name)
            except (ApiError, WoollyError) as error:
                log.warning("adapter left out", extra={"model": model, "adapter": name, "reason": str(error)})
                self._drop(model, name)

    async def _put(self, slot: ModelSlot, llm: LLM, file: Path, name: str) -> None:
        check_adapter_memory(slot, tuple(self._loaded.values()), self._max_bytes)
        await asyncio.to_thread(llm.add_adapter, file, name, 0.0)

    def _within(self, model: ModelInfo, path: str) -> Path:
        """Return a file in the models folder or next to the model; clients may use no other files."""
        try:
            file = (self._folder / path).resolve()
        except (OSError, RuntimeError, ValueError):  # symbolic link loops, NUL
            raise ApiError(400, "invalid_request", "lora_path is not a file path", param="lora_path") from None
        if not any(file.is_relative_to(folder.resolve()) for folder in (self._folder, model.path.parent)):
            raise ApiError(
                400,
                "invalid_request",
                "lora_path is outside of the models folder; move the adapter there, or next to its model",
                param="lora_path",
            )
        return file


def _key(name: str) -> str:
    """Normalize a name for comparison."""
    return name.removesuffix(":latest").lower()


def _name_taken(name: str) -> ApiError:
    return ApiError(400, "invalid_request", f"the name {name[:60]!r} is taken; choose another name", param="lora_name")
