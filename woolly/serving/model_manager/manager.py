"""The ModelManager: loads models, lends them to requests and unloads them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from woolly.engine.opening.memory import Estimate
from woolly.errors import DeviceError, WoollyError
from woolly.llm import LLM
from woolly.llm.model_options import ModelOptions
from woolly.serving.errors import ApiError, server_stopping
from woolly.serving.generation.threads import start_task
from woolly.serving.model_manager.added import AddedAdapters
from woolly.serving.model_manager.faults import Faults
from woolly.serving.model_manager.finding import NO_MODEL as NO_MODEL
from woolly.serving.model_manager.finding import Finder, is_allowed
from woolly.serving.model_manager.library import Capability, Library, ModelInfo, name_taken, same_file
from woolly.serving.model_manager.loaded import Loaded
from woolly.serving.model_manager.names import Names, Stay
from woolly.serving.model_manager.opening import configured, examine, has_scales, open_model, options_for, tell_template
from woolly.serving.model_manager.room import check_exchange, choose_leaving
from woolly.serving.observability.logs import log
from woolly.serving.settings.table import Settings
from woolly.store import Preset

_RETRY = 2.0  # seconds after which a client may ask again for a model that loads or unloads


class ModelManager:
    """Belongs to the event loop's thread; threads of the pool read files and open models."""

    def __init__(self, settings: Settings) -> None:
        """StoreError if --model names nothing, or --names-file is not as it should be."""
        self._settings = settings
        given = (settings.model, settings.alias, settings.request_ctx, settings.tags, settings.models_follow_links)
        self._library = Library(settings.folder, *given)
        self._loaded: dict[str, Loaded] = {}
        self._names = Names(settings.folder, settings.names_file)
        self._names.check()
        self.added = AddedAdapters(settings, self._library, self._names, self._loaded, self.use)
        self._finder = Finder(settings, self._library, self._names, self._loaded)
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

    def ready(self, name: str | None = None, only_allowed: bool = False) -> Loaded | None:
        """Returns the loaded model of a name, None if it is not loaded; without a name, the one that was used last.

        `only_allowed`: of those that the account that asks may use.
        """
        slots = [slot for slot in self._loaded.values() if slot.state == "ready"]
        slots = [slot for slot in slots if not only_allowed or is_allowed(slot.info)]
        if name is not None:
            return next((slot for slot in slots if name in (slot.info.name, *slot.info.aliases)), None)
        return max(slots, key=lambda slot: slot.last_used, default=None)

    async def list(self) -> list[ModelInfo]:
        """Returns every model of the folder, that of --model, and made names."""
        found = [self._with_state(info) for info in await asyncio.to_thread(self._library.list)]
        names = await asyncio.to_thread(lambda: [*self._names.shown(found)])
        made = [self._with_state(info, loaded) for info, loaded in names]
        return [info for info in (*found, *made) if is_allowed(info)]

    async def made(self, name: str | None) -> Preset | None:
        """Returns the preset of a made name (/api/create), None for other names."""
        return await self._finder.made(name)

    async def has_any(self) -> bool:
        """Whether there is a model to answer with."""
        return self.main is not None or bool(await self._finder.usable())

    async def get(self, name: str | None, can: Capability = "completion") -> ModelInfo:
        """Returns a model by name; "loaded" and "current" mean the one used last.

        None means the default one: of those that can do what is asked, if there are any.
        """
        return self._with_state(await self._finder.find(name, can))

    async def answering(self, name: str | None, can: Capability = "completion") -> ModelInfo:
        """Returns the model that answers to a name: its own, or the main or only one unless --strict-models is set.

        Clients have names of their own built in, such as gpt-4 or claude-sonnet; the reply says who answered.
        """
        return self._with_state(await self._finder.answering(name, can))

    async def load(self, name: str, *, path: str | None = None, config: Mapping[str, Any] | None = None) -> ModelInfo:
        """Loads a model, unless it is loaded. `path` is within the folder; `config` holds settings of this model.

        If the model is loaded with other settings, it is loaded again; refused settings leave it loaded as it is.
        """
        info = await self._finder.find(name) if path is None else await asyncio.to_thread(self._library.at, path)
        if path is not None and name not in (info.name, *info.aliases):
            raise ApiError(400, "invalid_request", f"the file at path is the model {info.name!r}", param="path")
        settings = configured(self._settings, config or {})
        slot = self._loaded.get(info.name)
        if slot is not None and not same_file(slot.info.path, info.path):
            raise name_taken(info.name)
        if slot is not None and config and slot.settings != settings:
            await self._check_exchange(slot, settings)
            await self.unload(info.name)
        slot = await self._hold(info, settings)
        self._release(slot)
        return self._with_state(slot.info)

    async def unload(self, name: str) -> ModelInfo:
        """Frees a model when its requests have ended, at the latest after the grace period."""
        info = await self._finder.find(name)
        slot = self._loaded.get(info.name)
        if slot is not None and slot.task is not None and slot.state == "loading":
            with suppress(ApiError):
                await asyncio.shield(slot.task)
        if slot is not None:
            await self._unload(slot)
        self.faults.forget(info.name)
        return self._with_state(info)

    @asynccontextmanager
    async def use(self, name: str | ModelInfo | None) -> AsyncIterator[Loaded]:
        """Loads the model if need be, and keeps it loaded while the block runs; a ModelInfo was found before.

        A request calls this once, or it can deadlock (see Generator). ApiError 503 with Retry-After if loading takes
        longer than --load-wait, and at once if the model's device has failed.
        """
        slot = self._loaded.get(name) if isinstance(name, str) else None
        if slot is None or slot.state != "ready" or not is_allowed(slot.info):
            info = name if isinstance(name, ModelInfo) else await self._finder.answering(name)
            self.faults.check(info.name)
            if not self._settings.models_autoload and info.name not in self._loaded:
                raise ApiError(
                    400,
                    "model_not_loaded",
                    f"{info.name} is not loaded, and this server loads no model for a request (--no-models-autoload)",
                    param="model",
                    suggestion="load it with POST /models/load",
                )
            slot = await self._hold(info, self._settings)
        else:
            slot.users += 1
        try:
            yield slot
        finally:
            slot.last_used = time.monotonic()
            self._release(slot)

    def discard(self, slot: Loaded, seconds: float | None = None) -> None:
        """Starts to free a model, without waiting for its requests; the next request loads it anew.

        Its answers have these seconds to finish, the grace period unless given; fewer, if it is being freed already.
        """
        end = time.monotonic() + (self._settings.grace if seconds is None else seconds)
        if slot.state == "ready":
            slot.state, slot.leave_by = "unloading", end
            slot.task = start_task(self._free(slot))
        elif slot.state == "unloading" and end < slot.leave_by:
            slot.leave_by = end
            self._notify()

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
        stay = self._loaded[name].stay if name in self._loaded else Stay()
        if stay.is_pinned:
            return math.inf
        default = self._settings.keep_alive or math.inf
        return self._kept.get(name, default if stay.seconds is None else stay.seconds)

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
        await self.added.close()
        self._loaded.clear()

    def _with_state(self, info: ModelInfo, loaded: str | None = None) -> ModelInfo:
        """Returns a model with the state of its slot; `loaded` is the slot's name, if that is another one."""
        slot = self._loaded.get(loaded or info.name)
        if slot is None:
            return replace(info, state="unloaded", stage=None, progress=None)
        ctx = info.context_length if slot.llm is None else slot.llm.ctx
        stage = slot.stage if slot.state == "loading" else None
        return replace(info, state=slot.state, stage=stage, progress=slot.progress, context_length=ctx)

    async def _hold(self, info: ModelInfo, settings: Settings) -> Loaded:
        """Returns the model when it is loaded, with one more user, which the caller releases.

        The first caller starts the task that loads it, others wait for it. A caller counts as a user from then on: a
        model that was loaded for requests is not unloaded for others before these have run.
        """
        end = time.monotonic() + self._settings.load_wait
        while True:
            if self._closed:
                raise server_stopping()
            slot = self._loaded.get(info.name)
            if slot is not None and slot.state == "ready":
                slot.users += 1
                return slot
            if slot is None:
                slot = self._loaded[info.name] = Loaded(info, settings)
                slot.task = start_task(self._load(slot))
            try:
                left = max(0.0, end - time.monotonic())
                if slot.state == "loading" and slot.task is not None:
                    await self._wait_as_user(slot, slot.task, left)
                    return slot
                await self._wait(left)
            except asyncio.TimeoutError:
                raise ApiError(
                    503, "model_loading", f"{info.name} is {slot.state}; try again", retry_after=_RETRY
                ) from None

    async def _wait_as_user(self, slot: Loaded, task: asyncio.Task[None], seconds: float) -> None:
        slot.users += 1
        try:
            await asyncio.wait_for(asyncio.shield(task), seconds)
        except BaseException:
            self._release(slot)
            raise

    def _release(self, slot: Loaded) -> None:
        slot.users -= 1
        self._notify()

    async def _make_room(self, slot: Loaded) -> None:
        """Unloads what must leave for a model. Requests for loaded models go first, up to --swap-wait."""
        end = slot.wanted + self._settings.swap_wait
        while True:
            if self._closed:
                raise server_stopping()
            leaving = choose_leaving(slot, self.all_loaded, self._settings.max_models, self._settings.models_bytes)
            left = end - time.monotonic()
            if left <= 0 or not any(one.state == "ready" and one.users for one in leaving):
                break
            slot.stage = "waiting"
            with suppress(asyncio.TimeoutError):
                await self._wait(left)
        for other in leaving:
            slot.stage = "freeing"
            # Nobody asked for its end: answers have what the request that waits has left, less the time to open.
            left = slot.wanted + self._settings.load_wait - self._settings.grace - time.monotonic()
            await self._unload(other, max(self._settings.grace, left))

    async def _load(self, slot: Loaded) -> None:
        name = slot.info.name
        started = time.monotonic()
        try:
            async with self._loading:
                slot.stage = "reading"
                info = slot.info
                options = await asyncio.to_thread(options_for, info.path, slot.settings, info.loading)
                slot.needs = await asyncio.to_thread(self._examine, info.path, options)
                slot.has_scales = has_scales(options, self._settings, info.loading)
                slot.stay = await asyncio.to_thread(self._names.stay_of, info)
                await self._make_room(slot)
                slot.stage = "opening"
                slot.llm = await asyncio.to_thread(self.open_model or open_model, slot.info.path, options)
                await self.added.put_into(slot, slot.llm)
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
            llm, slot.llm = slot.llm, None
            if llm is not None:  # its adapters or its probe failed
                await asyncio.to_thread(llm.close)
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
                lambda: self._examine(slot.info.path, options_for(slot.info.path, settings, slot.info.loading))
            )
        except WoollyError as error:
            raise _not_loadable(slot.info, error) from error
        check_exchange(slot, needs, self.all_loaded, self._settings.models_bytes)

    def _examine(self, path: Path, options: ModelOptions) -> Estimate:
        return examine(path, options).times(self.n_copies)

    async def _unload(self, slot: Loaded, seconds: float | None = None) -> None:
        """Waits until the model is freed, as `discard` does; freeing continues if the caller is cancelled."""
        self.discard(slot, seconds)
        if slot.state == "unloading" and slot.task is not None:
            await asyncio.shield(slot.task)

    async def _free(self, slot: Loaded) -> None:
        with suppress(asyncio.TimeoutError):
            # After a fault of the device every request has its error: there is nothing to wait for.
            while slot.users and not self._closed and not self.faults.has(slot.info.name):
                await self._wait(max(0.0, slot.leave_by - time.monotonic()))
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
