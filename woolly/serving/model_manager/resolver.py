"""Finds models by name, and the default model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from woolly.errors import StoreError
from woolly.serving.accounts.account import current_account, is_model_allowed
from woolly.serving.errors import ApiError
from woolly.serving.model_manager.catalog import ModelCatalog
from woolly.serving.model_manager.cloud_names import is_cloud_name
from woolly.serving.model_manager.loaded_model import ModelSlot
from woolly.serving.model_manager.model_info import Capability, ModelInfo
from woolly.serving.model_manager.served_names import ServedNames
from woolly.serving.observability.logs import ignore, log
from woolly.serving.settings.table import Settings
from woolly.store import Preset
from woolly.store.catalogue.spelling import closest_names, is_short_form, normalize_name

NO_MODEL = "no model is installed; run `woolly pull smollm2`, or put a GGUF file into the models folder"

RESERVED = ("loaded", "current")  # the last used model, preferably with the requested capability

_RANKS = {"unloading": 0, "loading": 1, "ready": 2}

_LATEST = ":latest"  # Ollama's default tag

_MAX_WARNED = 1000  # replaced names that are logged
_MAX_NAME = 500  # characters; comparing a name of 1 MB with the names of one model takes 0.15 s


def is_allowed(info: ModelInfo) -> bool:
    """Return True if the current account may use a model."""
    return is_model_allowed(_names(info))


def _names(info: ModelInfo) -> tuple[str, ...]:
    return (info.name, *info.aliases, *info.given_names)


def _check(names: Sequence[str]) -> None:
    """Raise ApiError 403 if the current account may not use the model with these names."""
    account = current_account.get()
    if account is not None and not account.allows(names):
        raise ApiError(
            403,
            "model_not_allowed",
            f"the key {account.name} may not use {names[0]}; it may use {', '.join(account.models)}",
            param="model",
        )


def _check_length(name: str) -> None:
    """Raise ApiError 404 for a name that is longer than any model's."""
    if len(name) > _MAX_NAME:
        raise ApiError(
            404,
            "model_not_found",
            f"unknown model {name[:60]!r}...; a name has at most {_MAX_NAME} characters, but got {len(name)}",
            param="model",
            suggestion="use one of the available models",
        )


class ModelResolver:
    """Looks up models among the loaded models, then in the catalog. Use this class only on the event loop thread."""

    def __init__(
        self, settings: Settings, catalog: ModelCatalog, names: ServedNames, loaded: Mapping[str, ModelSlot]
    ) -> None:
        self._settings = settings
        self._known = names
        self._catalog = catalog
        self._loaded = loaded
        self._warned: set[str] = set()  # replaced names that the log has

    async def find_derived(self, name: str | None) -> Preset | None:
        """Return the preset of a derived model (/api/create), or None for other names."""
        return None if name is None else await asyncio.to_thread(self._known.find, name)

    def _current(self, capability: Capability | None = None) -> ModelInfo | None:
        """Return the last used loaded model, preferring models that are not unloading."""
        allowed = [slot for slot in self._loaded.values() if is_allowed(slot.info)]
        slots = [slot for slot in allowed if capability is None or capability in slot.info.capabilities]
        best = max(slots, key=lambda slot: (_RANKS[slot.state], slot.last_used), default=None)
        return None if best is None else best.info

    async def find(self, name: str | None, capability: Capability = "completion") -> ModelInfo:
        """Return a model by name, or the default model for None.

        Raises ApiError 404 for an unknown model, 403 for a model that is not allowed. An account may use a derived
        model without permission for its base model.
        """
        if name is None:
            return await self._default(capability)
        _check_length(name)
        if name in RESERVED:
            current = self._current(capability) or self._current()
            if current is None:
                raise ApiError(
                    404, "model_not_found", "no model is loaded", suggestion="load a model, or request it by name"
                )
            return current
        if (derived := await self.find_derived(name)) is not None and derived.base is not None:
            _check((derived.name,))
            return await self._load_derived(derived, await self._base_of(derived, derived.base))
        info = await self._named(name)
        _check(_names(info))
        return info

    async def _base_of(self, derived: Preset, base: str) -> ModelInfo:
        """Return the base model of a derived model. The error for an unknown base shows no path of this machine."""
        try:
            return await self._named(base)
        except ApiError as error:
            is_file = base.startswith((".", "~")) or Path(base).is_absolute()
            if error.code != "model_not_found" or not is_file:
                raise
            message = f"the model {derived.name} needs the file {Path(base).name}, which is not in the models folder"
            raise ApiError(
                404, error.code, message, param="model", suggestion="move the file there, and create the model again"
            ) from None

    async def _load_derived(self, derived: Preset, base: ModelInfo) -> ModelInfo:
        try:
            info = await asyncio.to_thread(self._known.backing_model, derived, base)
        except StoreError as error:
            raise ApiError(422, "model_not_loadable", str(error), param="model") from None
        slot = self._loaded.get(info.name)
        return info if slot is None else slot.info

    async def _named(self, name: str) -> ModelInfo:
        """Return the model with this name or alias."""
        slot = self._loaded.get(name)
        if slot is not None:
            return slot.info
        try:
            return await asyncio.to_thread(self._catalog.find, name)
        except ApiError as error:
            if error.code != "model_not_found":
                raise
            if not name.endswith(_LATEST):
                if error.suggestion is None:
                    error.suggestion = await self._suggestion(name)
                raise
        return await self.find(name.removesuffix(_LATEST))

    async def _default(self, capability: Capability) -> ModelInfo:
        """Return the default model: a loaded model, the model of --model, or the only model.

        If no model has the capability, the result is the default model, whose error then explains the problem.
        """
        found = self._current(capability) or await self._only(capability)
        if found is not None:
            return found
        models = await self.usable()
        able = [one for one in models if capability in one.capabilities]
        if able or not models:
            known = ", ".join(model.name for model in able)
            message = f"missing model name; available: {known}" if known else NO_MODEL
            raise ApiError(400, "model_required", message, param="model")
        return self._current() or (models[0] if self._catalog.main is None else await self.find(self._catalog.main))

    async def usable(self) -> Sequence[ModelInfo]:
        """Return the models that can run and that the account may use."""
        found = await asyncio.to_thread(self._catalog.list)
        return [one for one in found if one.unsupported is None and is_allowed(one)]

    async def _only(self, capability: Capability) -> ModelInfo | None:
        """Return the model of --model if it has the capability, or the only model of the folder that has it."""
        main = None if self._catalog.main is None else await self._named(self._catalog.main)
        if main is not None and capability in main.capabilities and is_allowed(main):
            return main
        able = [one for one in await self.usable() if capability in one.capabilities]
        return able[0] if len(able) == 1 else None

    async def resolve(self, name: str | None, capability: Capability = "completion") -> ModelInfo:
        """Return the model for a name; see `ModelManager.resolve`."""
        try:
            return await self.find(name, capability)
        except ApiError as error:
            if error.code != "model_not_found" or name is None or self._settings.strict_models:
                raise
            _check_length(name)
            if (whole := await self.long_form(name)) is not None:
                return await self.find(whole, capability)
            served = await self._substitute(capability) if await self.may_replace(name) else None
            if served is None:
                raise
            ignore(f"model ({name[:60]} is not here; {served.name} answers)")
            if name not in self._warned and len(self._warned) < _MAX_WARNED:
                self._warned.add(name)
                log.warning("another model answers", extra={"requested": name[:200], "model": served.name})
            return served

    async def may_replace(self, name: str) -> bool:
        """Return True if another model answers for an unknown name: a name that clients have built in, or any name if
        there is only one model."""
        return name in RESERVED or is_cloud_name(name) or len(await self._names_here()) <= 1

    async def long_form(self, name: str) -> str | None:
        """Return the only model of which this name is a short form, or None."""
        _check_length(name)
        meant = await self._long_forms(name)
        return meant[0] if len(meant) == 1 else None

    async def _substitute(self, capability: Capability) -> ModelInfo | None:
        """Return the main or only model, or the last used model if only that one is loaded and has the capability."""
        served = await self._only(capability)
        if served is None or served.name in self._loaded:
            return served
        current = self._current(capability)
        is_usable = current is not None and self._loaded[current.name].state != "unloading"
        return current if is_usable else served

    async def _names_here(self) -> Mapping[str, tuple[str, ...]]:
        """Return the models and derived models that the account may use, each with all of its names."""
        here = {info.name: _names(info) for info in await self.usable()}
        with suppress(StoreError):  # an invalid presets file is reported when a model is used
            for preset in await asyncio.to_thread(self._known.all):
                if preset.base is not None and is_model_allowed((preset.name,)):
                    here.setdefault(preset.name, (preset.name,))
        return here

    async def _long_forms(self, name: str) -> list[str]:
        """Return the models of which this name is a short form."""
        here = await self._names_here()
        return [own for own, names in here.items() if any(is_short_form(name, one) for one in names)]

    async def _suggestion(self, name: str) -> str:
        """Return what to do about an unknown name: similar names, or the list of models."""
        meant = await self._long_forms(name)
        here = await self._names_here()
        spelled = {normalize_name(one): own for own, names in here.items() for one in names}
        near = [spelled[one] for one in closest_names(normalize_name(name), spelled, 0.6)]
        if found := list(dict.fromkeys([*meant, *near]))[:3]:
            return f"did you mean {' or '.join(found)}?"
        return "use one of the available models"
