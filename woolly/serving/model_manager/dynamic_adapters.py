"""DynamicAdapters: LoRA adapters that come to models while the server runs, each a name that requests may ask for."""

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
    """Adapters that each model has besides those it was opened with. Event loop thread only.

    Requests that ask for the model do without them; the name of an adapter is that of the model with all of it.
    A change goes on if its caller is cancelled: its thread does, too, and the name must be known after it.
    """

    def __init__(
        self, settings: Settings, catalog: ModelCatalog, names: ServedNames, loaded: Mapping[str, ModelSlot], use: Use
    ) -> None:
        self._folder, self._max_bytes = settings.folder, settings.models_bytes
        self._catalog = catalog
        self._names = names
        self._loaded = loaded
        self._use = use
        self._files: dict[str, dict[str, Path]] = {}  # by model, then by name
        self._coming: set[str] = set()  # names of adapters that are not added yet
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    async def add(self, model: ModelInfo, name: str, path: str) -> None:
        """Adds a file to a model. ApiError 400 if the name is taken, or if the file cannot be used."""
        if (key := _key(name)) in self._coming:
            raise _name_taken(name)
        self._coming.add(key)
        await self._run_to_end(self._add(model, name, path))

    async def remove(self, name: str) -> str:
        """Removes an adapter and returns its model; running answers that use it are not affected."""
        return await self._run_to_end(self._remove(name))

    async def close(self) -> None:
        """Wait for running changes; closed models reject further ones."""
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
                    f"{model.name} is a name of {model.base} with settings of its own: add adapters to that model",
                    param="model",
                )
            file = await asyncio.to_thread(self._within, model, path)
            async with self._changing, self._use(model) as slot:
                try:
                    await self._put(slot, slot.model, file, name)
                except WoollyError as error:
                    _ = slot.model  # ApiError if it was freed meanwhile
                    if error.code == "insufficient_memory":
                        raise ApiError(503, error.code, str(error)) from None
                    raise ApiError(400, "invalid_request", str(error), param="lora_path") from None
                self._files.setdefault(model.name, {})[name] = file
                self._names.add(Preset(name, file, sampling={"adapters": {name: 1.0}}, base=model.name))
        finally:
            self._coming.discard(_key(name))

    def _is_taken(self, name: str) -> bool:
        """Return True if a name is in use: requests for it would go elsewhere."""
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
                if info.metadata.get("general.type") != "adapter":  # which is no model, and gladly has its own name
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
                        raise  # it still loads; if it cannot be loaded, no model has the adapter
                except WoollyError as error:  # further requests cannot have it, or the model was freed meanwhile
                    log.warning("adapter not freed", extra={"model": model, "adapter": name, "reason": str(error)})
            self._drop(model, name)
            return model

    def _model_of(self, name: str) -> str:
        """Return the model that an adapter was added to; ApiError 404 if there is none of this name."""
        found = next((model for model, files in self._files.items() if name in files), None)
        if found is None:
            known = ", ".join(one for files in self._files.values() for one in files)
            raise ApiError(
                404,
                "adapter_not_found",
                f"no adapter {name[:60]!r} was added; there {f'are {known}' if known else 'is none'}",
                param="lora_name",
            )
        return found

    def _drop(self, model: str, name: str) -> None:
        self._files[model].pop(name, None)  # loading may have dropped it
        self._names.remove(name)

    async def put_into(self, slot: ModelSlot, llm: LLM) -> None:
        """Adds to a model that was loaded again what it had; an adapter that it cannot have any more loses its name."""
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
        """Return a file of the models folder or next to the model; clients may name no other files."""
        try:
            file = (self._folder / path).resolve()
        except (OSError, RuntimeError, ValueError):  # loops of links, a NUL
            raise ApiError(400, "invalid_request", "lora_path is not a file path", param="lora_path") from None
        if not any(file.is_relative_to(folder.resolve()) for folder in (self._folder, model.path.parent)):
            raise ApiError(
                400,
                "invalid_request",
                "lora_path is outside of the models folder: put the adapter there, or beside its model",
                param="lora_path",
            )
        return file


def _key(name: str) -> str:
    """Return what is equal for names that mean the same."""
    return name.removesuffix(":latest").lower()


def _name_taken(name: str) -> ApiError:
    return ApiError(400, "invalid_request", f"the name {name[:60]!r} is taken: give another", param="lora_name")
