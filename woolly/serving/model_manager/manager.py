"""Loads models, keeps them loaded while requests use them, and unloads them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from woolly.engine.loading.memory_estimate import MemoryEstimate
from woolly.errors import DeviceError, WoollyError
from woolly.llm import LLM
from woolly.llm.model_options import ModelOptions
from woolly.serving.errors import ApiError, server_stopping
from woolly.serving.generation.thread_pool import start_task
from woolly.serving.model_manager.catalog import ModelCatalog, name_taken, same_file
from woolly.serving.model_manager.device_failures import DeviceFailures
from woolly.serving.model_manager.dynamic_adapters import DynamicAdapters
from woolly.serving.model_manager.eviction import check_reload, choose_evictions
from woolly.serving.model_manager.keep_alive import KeepAlive, KeepAliveTimes
from woolly.serving.model_manager.loaded_model import ModelSlot
from woolly.serving.model_manager.loader import (
    estimate_model,
    has_scales,
    load_error,
    log_disk_cache_error,
    open_model,
    options_for,
    warn_missing_template,
    with_client_config,
)
from woolly.serving.model_manager.model_info import Capability, ModelInfo
from woolly.serving.model_manager.resolver import NO_MODEL as NO_MODEL
from woolly.serving.model_manager.resolver import ModelResolver, is_allowed
from woolly.serving.model_manager.served_names import ServedNames
from woolly.serving.observability.logs import log
from woolly.serving.settings.table import Settings
from woolly.store import Preset

_RETRY = 2.0  # seconds after which a client may retry while a model is loading or unloading


class ModelManager:
    """Loads and unloads models.

    Use this class only on the event loop thread; file access and loading run on other threads.
    """

    def __init__(self, settings: Settings) -> None:
        """Raise StoreError if --model does not exist or --names-file is invalid."""
        self._settings = settings
        given = (settings.model, settings.alias, settings.request_ctx, settings.tags, settings.models_follow_links)
        self._catalog = ModelCatalog(settings.folder, *given)
        self._loaded: dict[str, ModelSlot] = {}
        self._names = ServedNames(settings.folder, settings.names_file)
        self._names.check()
        self.dynamic_adapters = DynamicAdapters(settings, self._catalog, self._names, self._loaded, self.use)
        self.resolver = ModelResolver(settings, self._catalog, self._names, self._loaded)
        self.device_failures = DeviceFailures()
        self._keep_alive = KeepAliveTimes(settings.keep_alive)
        self._loading = asyncio.Lock()
        self._changed = asyncio.Event()
        self._closed = False
        self.open_model: Callable[[Path, ModelOptions], LLM] | None = None  # replaces `open_model` of loader.py
        self.on_device_failure: Callable[[], bool] | None = None  # returns True if the process restarts
        self.n_replicas = 1  # copies of each model in this machine's memory

    @property
    def main(self) -> str | None:
        """Return the name of the model of --model."""
        return self._catalog.main

    @property
    def loaded_models(self) -> tuple[ModelSlot, ...]:
        """Return all models that are loading, loaded or unloading."""
        return tuple(self._loaded.values())

    def ready(self, name: str | None = None, only_allowed: bool = False) -> ModelSlot | None:
        """Return a loaded model by name, by default the last used.

        `only_allowed` limits the search to the account's models.
        """
        slots = [slot for slot in self._loaded.values() if slot.state == "ready"]
        slots = [slot for slot in slots if not only_allowed or is_allowed(slot.info)]
        if name is not None:
            return next((slot for slot in slots if name in (slot.info.name, *slot.info.aliases)), None)
        return max(slots, key=lambda slot: slot.last_used, default=None)

    async def list(self) -> list[ModelInfo]:
        """Return all models of the folder, the model of --model, and derived models."""
        found = [self._with_state(info) for info in await asyncio.to_thread(self._catalog.list)]
        names = await asyncio.to_thread(lambda: [*self._names.as_models(found)])
        derived = [self._with_state(info, loaded) for info, loaded in names]
        return [info for info in (*found, *derived) if is_allowed(info)]

    async def find_derived(self, name: str | None) -> Preset | None:
        """Return the preset of a derived model (/api/create), or None for other names."""
        return await self.resolver.find_derived(name)

    async def has_any(self) -> bool:
        """Return True if a model is available."""
        return self.main is not None or bool(await self.resolver.usable())

    async def get(self, name: str | None, capability: Capability = "completion") -> ModelInfo:
        """Return a model by name; "loaded" and "current" select the last used model, None the default."""
        return self._with_state(await self.resolver.find(name, capability))

    async def resolve(self, name: str | None, capability: Capability = "completion") -> ModelInfo:
        """Return the model for a name, which may be a short form of its name.

        For names that clients have built in, such as gpt-4, and for any name if there is only one model, this is the
        main or only model, unless --strict-models is set. The reply names the model that was used.
        """
        return self._with_state(await self.resolver.resolve(name, capability))

    async def load(self, name: str, *, path: str | None = None, config: Mapping[str, Any] | None = None) -> ModelInfo:
        """Load a model if necessary. `path` is within the folder; `config` has settings of this model.

        A model that is loaded with other settings is reloaded. Invalid settings leave it unchanged.
        """
        info = await self.resolver.find(name) if path is None else await asyncio.to_thread(self._catalog.by_path, path)
        if path is not None and name not in (info.name, *info.aliases):
            raise ApiError(400, "invalid_request", f"the file at path is the model {info.name!r}", param="path")
        settings = with_client_config(self._settings, config or {})
        slot = self._loaded.get(info.name)
        if slot is not None and not same_file(slot.info.path, info.path):
            raise name_taken(info.name)
        if slot is not None and config and slot.settings != settings:
            await self._check_reload(slot, settings)
            await self.unload(info.name)
        slot = await self._acquire(info, settings)
        self._release(slot)
        return self._with_state(slot.info)

    async def unload(self, name: str) -> ModelInfo:
        """Unload a model when its requests have ended, at the latest after the grace period."""
        info = await self.resolver.find(name)
        slot = self._loaded.get(info.name)
        if slot is not None and slot.task is not None and slot.state == "loading":
            with suppress(ApiError):
                await asyncio.shield(slot.task)
        if slot is not None:
            await self._unload(slot)
        self.device_failures.clear(info.name)
        return self._with_state(info)

    @asynccontextmanager
    async def use(self, name: str | ModelInfo | None) -> AsyncIterator[ModelSlot]:
        """Load the model if necessary and keep it loaded while the block runs. A ModelInfo is used without a lookup.

        A request must call this only once, or it can deadlock (see Generator). Raises ApiError 503 if loading exceeds
        --load-wait or the model's device has failed.
        """
        slot = self._loaded.get(name) if isinstance(name, str) else None
        if slot is None or slot.state != "ready" or not is_allowed(slot.info):
            info = name if isinstance(name, ModelInfo) else await self.resolver.resolve(name)
            self.device_failures.check(info.name)
            if not self._settings.models_autoload and info.name not in self._loaded:
                raise ApiError(
                    400,
                    "model_not_loaded",
                    f"{info.name} is not loaded, and --no-models-autoload disables loading on request",
                    param="model",
                    suggestion="load it with POST /models/load",
                )
            slot = await self._acquire(info, self._settings)
        else:
            slot.users += 1
        try:
            yield slot
        finally:
            slot.last_used = time.monotonic()
            self._release(slot)

    def discard(self, slot: ModelSlot, seconds: float | None = None) -> None:
        """Start to unload a model without waiting for its requests; the next request reloads it.

        Running answers have `seconds` to finish, by default the grace period, or less if the model is unloading.
        """
        end = time.monotonic() + (self._settings.grace if seconds is None else seconds)
        if slot.state == "ready":
            slot.state, slot.drain_deadline = "unloading", end
            slot.task = start_task(self._free(slot))
        elif slot.state == "unloading" and end < slot.drain_deadline:
            slot.drain_deadline = end
            self._notify()

    def fail(self, slot: ModelSlot) -> None:
        """Unload a model whose device failed. `on_device_failure` restarts the process if possible."""
        if slot.state == "ready" and slot.llm is not None and slot.llm.driver.fault is not None and not self._closed:
            self._record_failure(slot.info.name, slot.llm.driver.fault)
            self.discard(slot)

    def _record_failure(self, name: str, fault: DeviceError) -> None:
        self.device_failures.record(
            name, fault, will_restart=self.on_device_failure is not None and self.on_device_failure()
        )

    def set_keep_alive(self, name: str, seconds: float) -> None:
        """Set how long a model stays loaded after its last use, instead of --keep-alive."""
        self._keep_alive.set(name, seconds)

    def keep_alive_of(self, name: str) -> float:
        """Return the keep-alive of a model in seconds; infinite for a model that is never unloaded."""
        preset = self._loaded[name].keep_alive if name in self._loaded else KeepAlive()
        return self._keep_alive.seconds(name, preset)

    async def unload_idle(self) -> None:
        """Unload models whose keep-alive has expired."""
        for slot in self._keep_alive.expired(self.loaded_models):
            log.info("model unused", extra={"model": slot.info.name})
            await self._unload(slot)

    async def close(self) -> None:
        """Unload all models; open requests are cancelled."""
        self._closed = True
        self._notify()
        for slot in self.loaded_models:
            if slot.task is not None:
                with suppress(ApiError):
                    await slot.task
            if slot.llm is not None:
                await asyncio.to_thread(slot.llm.close)
                log_disk_cache_error(slot.info.name, slot.llm)
        await self.dynamic_adapters.close()
        self._loaded.clear()

    def _with_state(self, info: ModelInfo, loaded: str | None = None) -> ModelInfo:
        """Return a model with the state of its slot; `loaded` is the slot's name if it differs."""
        slot = self._loaded.get(loaded or info.name)
        if slot is None:
            return replace(info, state="unloaded", stage=None, progress=None)
        ctx = info.context_length if slot.llm is None else slot.llm.ctx
        stage = slot.stage if slot.state == "loading" else None
        return replace(info, state=slot.state, stage=stage, progress=slot.progress, context_length=ctx)

    async def _acquire(self, info: ModelInfo, settings: Settings) -> ModelSlot:
        """Load the model, add a user to its slot and return the slot; the caller must release the slot.

        The first caller starts the loading task, and others wait for it. Waiting callers count as users, so a model
        loaded for requests is not evicted before they have run.
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
                slot = self._loaded[info.name] = ModelSlot(info, settings)
                slot.task = start_task(self._load(slot))
            try:
                left = max(0.0, end - time.monotonic())
                if slot.state == "loading" and slot.task is not None:
                    await self._wait_as_user(slot, slot.task, left)
                    return slot
                await self._wait(left)
            except asyncio.TimeoutError:
                raise ApiError(
                    503, "model_loading", f"{info.name} is {slot.state}; try again later", retry_after=_RETRY
                ) from None

    async def _wait_as_user(self, slot: ModelSlot, task: asyncio.Task[None], seconds: float) -> None:
        slot.users += 1
        try:
            await asyncio.wait_for(asyncio.shield(task), seconds)
        except BaseException:
            self._release(slot)
            raise

    def _release(self, slot: ModelSlot) -> None:
        slot.users -= 1
        self._notify()

    async def _evict(self, slot: ModelSlot) -> None:
        """Unload models to make room for another. Requests for loaded models go first, up to --swap-wait."""
        end = slot.requested_at + self._settings.swap_wait
        while True:
            if self._closed:
                raise server_stopping()
            evicted = choose_evictions(slot, self.loaded_models, self._settings.max_models, self._settings.models_bytes)
            left = end - time.monotonic()
            if left <= 0 or not any(one.state == "ready" and one.users for one in evicted):
                break
            slot.stage = "waiting"
            with suppress(asyncio.TimeoutError):
                await self._wait(left)
        for other in evicted:
            slot.stage = "freeing"
            # Running answers may use the time that the waiting request has left, minus the time to load.
            left = slot.requested_at + self._settings.load_wait - self._settings.grace - time.monotonic()
            await self._unload(other, max(self._settings.grace, left))

    async def _load(self, slot: ModelSlot) -> None:
        name = slot.info.name
        started = time.monotonic()
        try:
            async with self._loading:
                slot.stage = "reading"
                info = slot.info
                options = await asyncio.to_thread(options_for, info.path, slot.settings, info.loading)
                slot.needs = await asyncio.to_thread(self._estimate, info.path, options)
                slot.has_scales = has_scales(options, self._settings, info.loading)
                slot.keep_alive = await asyncio.to_thread(self._names.keep_alive_of, info)
                await self._evict(slot)
                slot.stage = "opening"
                slot.llm = await asyncio.to_thread(self.open_model or open_model, slot.info.path, options)
                await self.dynamic_adapters.put_into(slot, slot.llm)
                if slot.settings.probe:
                    await asyncio.to_thread(slot.llm.identity)
            slot.state = "ready"
            slot.last_used = time.monotonic()
            self.device_failures.clear(name)
            self._watch(slot, slot.llm)
            log.info("model loaded", extra={"model": name, "seconds": time.monotonic() - started})
            warn_missing_template(name, slot.llm)
        except BaseException as error:
            self._loaded.pop(name, None)
            llm, slot.llm = slot.llm, None
            if llm is not None:  # adding adapters or the fingerprint failed
                await asyncio.to_thread(llm.close)
            log.warning("model not loaded", extra={"model": name, "reason": str(error)})
            if isinstance(error, ApiError) or not isinstance(error, Exception):
                raise
            if isinstance(error, DeviceError) and error.code == "lost":
                self._record_failure(name, error)
            raise load_error(slot.info, error) from error
        finally:
            self._notify()

    def _watch(self, slot: ModelSlot, llm: LLM) -> None:
        """Make the engine's thread notify the event loop if the device fails."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the event loop and the server have ended
                loop.call_soon_threadsafe(self.fail, slot)

        llm.driver.on_fault = tell
        if llm.driver.fault is not None:
            tell()

    async def _check_reload(self, slot: ModelSlot, settings: Settings) -> None:
        """Raise ApiError if the model could not be reloaded with other settings, so that it stays loaded."""
        try:
            needs = await asyncio.to_thread(
                lambda: self._estimate(slot.info.path, options_for(slot.info.path, settings, slot.info.loading))
            )
        except WoollyError as error:
            raise load_error(slot.info, error) from error
        check_reload(slot, needs, self.loaded_models, self._settings.models_bytes)

    def _estimate(self, path: Path, options: ModelOptions) -> MemoryEstimate:
        return estimate_model(path, options).times(self.n_replicas)

    async def _unload(self, slot: ModelSlot, seconds: float | None = None) -> None:
        """Unload a model and wait for it, as `discard`; unloading continues if the caller is cancelled."""
        self.discard(slot, seconds)
        if slot.state == "unloading" and slot.task is not None:
            await asyncio.shield(slot.task)

    async def _free(self, slot: ModelSlot) -> None:
        with suppress(asyncio.TimeoutError):
            # After a device failure, all requests have failed already.
            while slot.users and not self._closed and not self.device_failures.has(slot.info.name):
                await self._wait(max(0.0, slot.drain_deadline - time.monotonic()))
        assert slot.llm is not None
        llm, slot.llm = slot.llm, None
        try:
            await asyncio.to_thread(llm.close)
            log_disk_cache_error(slot.info.name, llm)
        finally:
            self._loaded.pop(slot.info.name, None)
            self._notify()
            log.info("model unloaded", extra={"model": slot.info.name})

    async def _wait(self, seconds: float) -> None:
        """Wait until a model changes its state or loses a user. Raises TimeoutError after `seconds`."""
        await asyncio.wait_for(self._changed.wait(), seconds)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
