"""AddedAdapters: LoRA adapters that come to models while the server runs, each a name that requests may ask for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from woolly.errors import WoollyError
from woolly.llm import LLM
from woolly.serving.errors import ApiError
from woolly.serving.loading.loaded import Loaded
from woolly.serving.loading.names import Names
from woolly.store import Preset

__all__ = ["AddedAdapters"]


class AddedAdapters:
    """Which adapters each model has beside those that it is opened with. Belongs to the event loop's thread.

    Requests that ask for the model do without them; the name of an adapter is that of the model with all of it.
    """

    def __init__(self, folder: Path, names: Names) -> None:
        self._folder = folder
        self._names = names
        self._files: dict[str, dict[str, Path]] = {}  # by model, then by name

    async def add(self, slot: Loaded, name: str, path: str) -> None:
        """Adds a file to a loaded model. ApiError 400 if the name is taken, or if the file cannot be used."""
        if not name or await asyncio.to_thread(self._names.find, name) is not None or slot.info.has_name(name):
            raise ApiError(400, "invalid_request", f"the name {name[:60]!r} is taken: give another", param="lora_name")
        if slot.info.base is not None:
            raise ApiError(
                400,
                "invalid_request",
                f"{slot.info.name} is a name of {slot.info.base} with settings of its own: add adapters to that model",
                param="model",
            )
        file = self._within(slot, path)
        try:
            await asyncio.to_thread(slot.model.add_adapter, file, name, 0.0)
        except WoollyError as error:
            raise ApiError(400, "invalid_request", str(error), param="lora_path") from None
        self._files.setdefault(slot.info.name, {})[name] = file
        self._names.give(Preset(name, file, sampling={"adapters": {name: 1.0}}, base=slot.info.name))

    def model_of(self, name: str) -> str:
        """Returns the model that an adapter was added to; ApiError 404 if there is none of this name."""
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

    async def remove(self, slot: Loaded | None, name: str) -> None:
        """Removes an adapter from its model, which may be loaded; answers that use it end as they would have."""
        del self._files[self.model_of(name)][name]
        self._names.take(name)
        if slot is not None:
            await asyncio.to_thread(slot.model.remove_adapter, name)

    def put_into(self, model: str, llm: LLM) -> None:
        """Adds to a model that was loaded again what it had; on a thread of the pool."""
        for name, file in [*self._files.get(model, {}).items()]:
            llm.add_adapter(file, name, 0.0)

    def _within(self, slot: Loaded, path: str) -> Path:
        """Returns a file of the models folder or beside the model: a client names no other of this machine."""
        file = (self._folder / path).resolve()
        if not any(file.is_relative_to(folder.resolve()) for folder in (self._folder, slot.info.path.parent)):
            raise ApiError(
                400,
                "invalid_request",
                "lora_path is outside of the models folder: put the adapter there, or beside its model",
                param="lora_path",
            )
        return file
