"""The ModelManager: loads models, lends them to requests and unloads them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from woolly.errors import DeviceError, WoollyError
from woolly.llm import LLM
from woolly.serving.answers.threads import start_task
from woolly.serving.errors import ApiError, server_stopping
from woolly.serving.loading.faults import Faults
from woolly.serving.loading.library import Capability, Library, ModelInfo, name_taken, same_file
from woolly.serving.loading.loaded import Loaded
from woolly.serving.loading.memory import Estimate
from woolly.serving.loading.opening import configured, examine, open_model, options_for, tell_template
from woolly.serving.loading.room import check_exchange, choose_leaving
from woolly.serving.settings.options import ModelOptions
from woolly.serving.settings.table import Settings
from woolly.serving.watch.logs import ignore, log
from woolly.store import Preset

__all__ = ["NO_MODEL", "ModelInfo", "ModelManager"]

NO_MODEL = "there is no model here; run `woolly pull smollm2`, or put a GGUF file into the models folder"

_RANKS = {"unloading": 0, "loading": 1, "ready": 2}

_LATEST = ":latest"  # Ollama's tag of a name without one

_RETRY = 2.0  # seconds after which a client may ask again for a model that loads or unloads


class ModelManager:
    """Belongs to the event loop's thread; threads of the pool read files and open models."""

    def __init__(self, settings: Settings) -> None:
        """StoreError if --model names nothing."""
        self._settings = settings
        given = (settings.model, settings.alias, settings.request_ctx, settings.tags, settings.models_follow_links)
        self._library = Library(settings.folder, *given)
        self._loaded: dict[str, Loaded] = {}
        self.faults = Faults()
        self._kept: dict[str, float] = {}  # seconds, of models that a client has asked to keep
        self._loading = asyncio.Lock()
        self._changed = asyncio.Event()
        self._closed = False
        self.open_model: Callable[[Path, ModelOptions], LLM] | None = None  # in place of opening.py's
        self.on_lost: Callable[[], bool] | None = None  # called when a device has failed: whether a new process begins
        self.n_copies = 1  # of each model in this machine's memory

    @property
    def main(self) -> str | None:
        """Returns the name of the model that --model names."""
        return self._library.main

    @property
    def all_loaded(self) -> tuple[Loaded, ...]:
        """Returns every model that is loading, loaded or unloading."""
        return tuple(self._loaded.values())

    def ready(self, name: str | None = None) -> Loaded | None:
        """Returns the loaded model of a name, None if it is not loaded; without a name, the one that was used last."""
        slots = [slot for slot in self._loaded.values() if slot.state == "ready"]
        if name is not None:
            return next((slot for slot in slots if name in (slot.info.name, *slot.info.aliases)), None)
        return max(slots, key=lambda slot: slot.last_used, default=None)

    async def list(self) -> list[ModelInfo]:
        """Returns every model of the folder, that of --model, and made names."""
        found = [self._with_state(info) for info in await asyncio.to_thread(self._library.list)]
        return found + list(self._library.list_made(found))

    async def made(self, name: str | None) -> Preset | None:
        """Returns the preset of a made name (/api/create), None for other names."""
        return None if name is None else await asyncio.to_thread(self._library.made, name)

    async def get(self, name: str | None, can: Capability = "completion") -> ModelInfo:
        """Returns a model by name; "loaded" and "current" mean the one used last.

        None means the default one: of those that can do what is asked, if there are any.
        """
        return self._with_state(await self._find(name, can))

    async def answering(self, name: str | None, can: Capability = "completion") -> ModelInfo:
        """Returns the model that answers to a name: its own, or the main or only one unless --strict-models is set.

        Clients have names of their own built in, such as gpt-4 or claude-sonnet; the reply says who answered.
        """
        return self._with_state(await self._answering(name, can))

    async def load(self, name: str, *, path: str | None = None, config: Mapping[str, Any] | None = None) -> ModelInfo:
        """Loads a model, unless it is loaded. `path` is within the folder; `config` holds settings of this model.

        If the model is loaded with other settings, it is loaded again; refused settings leave it loaded as it is.
        """
        info = await self._find(name) if path is None else await asyncio.to_thread(self._library.at, path)
        if path is not None and name not in (info.name, *info.aliases):
            raise ApiError(400, "invalid_request", f"the file at path is the model {info.name!r}", param="path")
        settings = configured(self._settings, config or {})
        slot = self._loaded.get(info.name)
        if slot is not None and not same_file(slot.info.path, info.path):
            raise name_taken(info.name)
        if slot is not None and config and slot.settings != settings:
            await self._check_exchange(slot, settings)
            await self.unload(info.name)
        slot = await self._ready(info, settings)
        return self._with_state(slot.info)

    async def unload(self, name: str) -> ModelInfo:
        """Frees a model when its requests have ended, at the latest after the grace period."""
        info = await self._find(name)
        slot = self._loaded.get(info.name)
        if slot is not None and slot.task is not None and slot.state == "loading":
            with suppress(ApiError):
                await asyncio.shield(slot.task)
        if slot is not None:
            await self._unload(slot)
        self.faults.forget(info.name)
        return self._with_state(info)

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[Loaded]:
        """Loads the model if need be, and keeps it loaded while the block runs.

        A request calls this once, or it can deadlock (see Generator). ApiError 503 with Retry-After if loading takes
        longer than --load-wait, and at once if the model's device has failed.
        """
        slot = self._loaded.get(name) if name is not None else None
        if slot is None or slot.state != "ready":
            info = await self._answering(name)
            self.faults.check(info.name)
            if not self._settings.models_autoload and info.name not in self._loaded:
                raise ApiError(
                    400,
                    "model_not_loaded",
                    f"{info.name} is not loaded, and this server loads no model for a request (--no-models-autoload)",
                    param="model",
                    suggestion="load it with POST /models/load",
                )
            slot = await self._ready(info, self._settings)
        slot.users += 1
        try:
            yield slot
        finally:
            slot.users -= 1
            slot.last_used = time.monotonic()
            self._notify()

    def discard(self, slot: Loaded) -> None:
        """Starts to free a model, without waiting for its requests; the next request loads it anew."""
        if slot.state == "ready":
            slot.state = "unloading"
            slot.task = start_task(self._free(slot))

    def lose(self, slot: Loaded) -> None:
        """Gives up a model whose device has failed. Only a new process can use that again: `on_lost` starts one."""
        if slot.state == "ready" and slot.llm is not None and slot.llm.driver.fault is not None and not self._closed:
            self._note_lost(slot.info.name, slot.llm.driver.fault)
            self.discard(slot)

    def _note_lost(self, name: str, fault: DeviceError) -> None:
        self.faults.note(name, fault, will_restart=self.on_lost is not None and self.on_lost())

    def keep(self, name: str, seconds: float) -> None:
        """Keeps a model for this long after its last use, instead of --keep-alive; the last call counts."""
        self._kept[name] = seconds

    def kept(self, name: str) -> float:
        """Returns how many seconds after its last use a model is unloaded; infinite for never."""
        return self._kept.get(name, self._settings.keep_alive or math.inf)

    async def unload_idle(self) -> None:
        """Unloads models that were unused for as long as they are kept."""
        now = time.monotonic()
        for slot in self.all_loaded:
            if slot.is_idle and now - slot.last_used >= self.kept(slot.info.name):
                log.info("model unused", extra={"model": slot.info.name})
                await self._unload(slot)

    async def close(self) -> None:
        """Frees all models; open requests end cancelled."""
        self._closed = True
        self._notify()
        for slot in self.all_loaded:
            if slot.task is not None:
                with suppress(ApiError):
                    await slot.task
            if slot.llm is not None:
                await asyncio.to_thread(slot.llm.close)
                _tell_refusal(slot.info.name, slot.llm)
        self._loaded.clear()

    def _with_state(self, info: ModelInfo) -> ModelInfo:
        slot = self._loaded.get(info.name)
        if slot is None:
            return info
        ctx = info.context_length if slot.llm is None else slot.llm.ctx
        stage = slot.stage if slot.state == "loading" else None
        return replace(info, state=slot.state, stage=stage, progress=slot.progress, context_length=ctx)

    def _current(self, can: Capability | None = None) -> ModelInfo | None:
        """Returns the loaded model that was used last; one that is unloading only if there is no other."""
        slots = [slot for slot in self._loaded.values() if can is None or can in slot.info.capabilities]
        best = max(slots, key=lambda slot: (_RANKS[slot.state], slot.last_used), default=None)
        return None if best is None else best.info

    async def _find(self, name: str | None, can: Capability = "completion") -> ModelInfo:
        if name is None:
            return await self._default(can)
        if name in ("loaded", "current"):
            current = self._current()
            if current is None:
                raise ApiError(404, "model_not_found", "no model is loaded", suggestion="load one, or ask by its name")
            return current
        if (made := await self.made(name)) is not None:
            name = made.base or name
        slot = self._loaded.get(name)
        if slot is not None:
            return slot.info
        try:
            return await asyncio.to_thread(self._library.find, name)
        except ApiError as error:
            if error.code != "model_not_found" or not name.endswith(_LATEST):
                raise
        return await self._find(name.removesuffix(_LATEST))

    async def _default(self, can: Capability) -> ModelInfo:
        """Returns the model of a request that names none: a loaded one, that of --model, or the only one there is.

        If none can do what is asked, a model that cannot is returned as well: its refusal names what to do.
        """
        found = self._current(can) or await self._only(can)
        if found is not None:
            return found
        models = await self._usable()
        able = [one for one in models if can in one.capabilities]
        if able or not models:
            known = ", ".join(model.name for model in able)
            message = f"no model is named; known: {known}" if known else NO_MODEL
            raise ApiError(400, "model_required", message, param="model")
        return self._current() or (models[0] if self.main is None else await self._find(self.main))

    async def has_any(self) -> bool:
        """Whether there is a model to answer with."""
        return self.main is not None or bool(await self._usable())

    async def _usable(self) -> Sequence[ModelInfo]:
        return [one for one in await asyncio.to_thread(self._library.list) if one.unsupported is None]

    async def _only(self, can: Capability) -> ModelInfo | None:
        """Returns the model of --model if it can do what is asked, or the only one of the folder that can."""
        main = None if self.main is None else await self._find(self.main)
        if main is not None and can in main.capabilities:
            return main
        able = [one for one in await self._usable() if can in one.capabilities]
        return able[0] if len(able) == 1 else None

    async def _answering(self, name: str | None, can: Capability = "completion") -> ModelInfo:
        try:
            return await self._find(name, can)
        except ApiError as error:
            served = None if self._settings.strict_models else await self._only(can)
            if error.code != "model_not_found" or name is None or served is None:
                raise
            ignore(f"model ({name[:60]} is not here; {served.name} answers)")
            return served

    async def _ready(self, info: ModelInfo, settings: Settings) -> Loaded:
        """Returns the model when it is loaded; the first caller starts the task that loads it, others wait for it."""
        end = time.monotonic() + self._settings.load_wait
        while True:
            if self._closed:
                raise server_stopping()
            slot = self._loaded.get(info.name)
            if slot is not None and slot.state == "ready":
                return slot
            if slot is None:
                slot = self._loaded[info.name] = Loaded(info, settings)
                slot.task = start_task(self._load(slot))
            try:
                left = max(0.0, end - time.monotonic())
                if slot.state == "loading" and slot.task is not None:
                    await asyncio.wait_for(asyncio.shield(slot.task), left)
                else:
                    await self._wait(left)
            except asyncio.TimeoutError:
                raise ApiError(
                    503, "model_loading", f"{info.name} is {slot.state}; try again", retry_after=_RETRY
                ) from None

    async def _load(self, slot: Loaded) -> None:
        name = slot.info.name
        started = time.monotonic()
        try:
            async with self._loading:
                slot.stage = "reading"
                options = await asyncio.to_thread(options_for, slot.info.path, slot.settings)
                slot.needs = await asyncio.to_thread(self._examine, slot.info.path, options)
                for other in choose_leaving(slot, self.all_loaded, self._settings.models_max):
                    slot.stage = "freeing"
                    await self._unload(other)
                slot.stage = "opening"
                slot.llm = await asyncio.to_thread(self.open_model or open_model, slot.info.path, options)
                if slot.settings.probe:
                    await asyncio.to_thread(slot.llm.identity)
            slot.state = "ready"
            slot.last_used = time.monotonic()
            self.faults.forget(name)
            self._watch(slot, slot.llm)
            log.info("model loaded", extra={"model": name, "seconds": time.monotonic() - started})
            tell_template(name, slot.llm)
        except BaseException as error:
            self._loaded.pop(name, None)
            log.warning("model not loaded", extra={"model": name, "reason": str(error)})
            if isinstance(error, ApiError) or not isinstance(error, Exception):
                raise
            if isinstance(error, DeviceError) and error.code == "lost":
                self._note_lost(name, error)
            if isinstance(error, WoollyError):
                raise _not_loadable(slot.info, error) from error
            if isinstance(error, MemoryError):
                raise ApiError(503, "insufficient_memory", f"{name} does not fit into memory") from error
            raise ApiError(500, "internal_error", f"{name} could not be loaded; the log has the reason") from error
        finally:
            self._notify()

    def _watch(self, slot: Loaded, llm: LLM) -> None:
        """Has the engine's thread tell this one if the device fails."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop has ended, and the server with it
                loop.call_soon_threadsafe(self.lose, slot)

        llm.driver.on_fault = tell
        if llm.driver.fault is not None:
            tell()

    async def _check_exchange(self, slot: Loaded, settings: Settings) -> None:
        """ApiError if the model could not be loaded with other settings; then it stays loaded."""
        try:
            needs = await asyncio.to_thread(
                lambda: self._examine(slot.info.path, options_for(slot.info.path, settings))
            )
        except WoollyError as error:
            raise _not_loadable(slot.info, error) from error
        check_exchange(slot, needs, self.all_loaded)

    def _examine(self, path: Path, options: ModelOptions) -> Estimate:
        return examine(path, options).times(self.n_copies)

    async def _unload(self, slot: Loaded) -> None:
        """Waits until the model is freed; freeing continues if the caller is cancelled."""
        self.discard(slot)
        if slot.state == "unloading" and slot.task is not None:
            await asyncio.shield(slot.task)

    async def _free(self, slot: Loaded) -> None:
        end = time.monotonic() + self._settings.grace
        with suppress(asyncio.TimeoutError):
            # After a fault of the device every request has its error: there is nothing to wait for.
            while slot.users and not self._closed and not self.faults.has(slot.info.name):
                await self._wait(max(0.0, end - time.monotonic()))
        assert slot.llm is not None
        llm, slot.llm = slot.llm, None
        try:
            await asyncio.to_thread(llm.close)
            _tell_refusal(slot.info.name, llm)
        finally:
            self._loaded.pop(slot.info.name, None)
            self._notify()
            log.info("model unloaded", extra={"model": slot.info.name})

    async def _wait(self, seconds: float) -> None:
        """Waits until a model changes its state or loses a user. TimeoutError after the time."""
        await asyncio.wait_for(self._changed.wait(), seconds)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _tell_refusal(name: str, llm: LLM) -> None:
    """Logs why pages of a model that was closed are not on disk, if some are not."""
    stats = llm.known_disk_stats
    if stats is not None and stats.refusal is not None:
        log.warning("pages not written", extra={"model": name, "files": stats.n_files, "reason": stats.refusal})


def _not_loadable(info: ModelInfo, error: WoollyError) -> ApiError:
    message = str(error).replace(str(info.path), info.path.name)
    return ApiError(422, "model_not_loadable", message, param="model")
