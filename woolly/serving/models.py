"""The ModelManager: which models are loaded, who uses them, and which makes room for another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from woolly.async_llm import AsyncLLM
from woolly.errors import RequestError, WoollyError
from woolly.llm import LLM
from woolly.serving.configuration import checked_value
from woolly.serving.errors import ApiError, answer_cancelled
from woolly.serving.library import Library, ModelInfo, name_taken, same_file
from woolly.serving.logs import log
from woolly.serving.memory import Estimate, check_memory
from woolly.serving.opening import examine, open_model
from woolly.serving.settings import Settings

__all__ = ["Loaded", "ModelInfo", "ModelManager"]

# Settings that may differ from one model to the next.
_OF_A_MODEL = (
    "ctx_size", "threads", "parallel", "batch_size", "ubatch_size", "cache_type_k", "cache_type_v", "kv_tokens",
    "weight_memory", "chat_template",
)  # fmt: skip

_RANKS = {"unloading": 0, "loading": 1, "ready": 2}

_RETRY = 2.0  # seconds after which a client may ask again for a model that comes or goes


@dataclass(eq=False)
class Loaded:
    """A model that is loaded, or on its way there or back."""

    info: ModelInfo
    settings: Settings
    state: str = "loading"  # loading, ready, unloading
    llm: AsyncLLM | None = None
    needs: Estimate | None = None
    users: int = 0
    last_used: float = field(default_factory=time.monotonic)
    task: asyncio.Task[None] | None = None  # what loads or unloads it, whoever waits for that

    @property
    def model(self) -> LLM:
        """The model itself. ApiError 503 where it was freed, as after the grace period."""
        if self.llm is None:
            raise answer_cancelled()
        return self.llm.llm


class ModelManager:
    """Its state belongs to the event loop's thread; files are read and models opened on others."""

    def __init__(self, settings: Settings) -> None:
        """StoreError where --model names nothing."""
        self._settings = settings
        self._library = Library(settings.folder, settings.model, settings.alias)
        self._loaded: dict[str, Loaded] = {}
        self._loading = asyncio.Lock()
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def main(self) -> str | None:
        """The name of the model that the operator named."""
        return self._library.main

    @property
    def all_loaded(self) -> tuple[Loaded, ...]:
        """What is loaded, or on its way."""
        return tuple(self._loaded.values())

    async def list(self) -> list[ModelInfo]:
        """Every model of the folder, and that of --model."""
        return [self._with_state(info) for info in await asyncio.to_thread(self._library.list)]

    async def get(self, name: str | None) -> ModelInfo:
        """A model by its name; None means the one that answers, "loaded" and "current" the one that is loaded."""
        return self._with_state(await self._find(name))

    async def load(self, name: str, *, path: str | None = None, config: Mapping[str, Any] | None = None) -> ModelInfo:
        """Loads a model, unless it is. `path` is within the folder; `config` holds settings of one model by name.

        A model that is loaded with other settings is loaded again; settings that are refused leave it as it is.
        """
        info = await self._find(name) if path is None else await asyncio.to_thread(self._library.at, path)
        if path is not None and name not in (info.name, *info.aliases):
            raise ApiError(400, "invalid_request", f"the file at path is the model {info.name!r}", param="path")
        settings = self._configured(config or {})
        slot = self._loaded.get(info.name)
        if slot is not None and not same_file(slot.info.path, info.path):
            raise name_taken(info.name)
        if slot is not None and config and slot.settings != settings:
            await self._check_exchange(slot, settings)
            await self.unload(info.name)
        slot = await self._ready(info, settings)
        return self._with_state(slot.info)

    async def unload(self, name: str) -> ModelInfo:
        """Frees a model when those who use it are done, at the latest after the grace period."""
        info = await self._find(name)
        slot = self._loaded.get(info.name)
        if slot is not None and slot.task is not None and slot.state == "loading":
            with suppress(ApiError):
                await asyncio.shield(slot.task)
        if slot is not None:
            await self._unload(slot)
        return self._with_state(info)

    @asynccontextmanager
    async def acquire(self, name: str | None) -> AsyncIterator[AsyncLLM]:
        """As `use`, for those who want the model alone."""
        async with self.use(name) as slot:
            assert slot.llm is not None
            yield slot.llm

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[Loaded]:
        """The model, loaded where it was not, and kept for as long as the block runs.

        ApiError 503 with Retry-After where it does not come in time.
        """
        slot = self._loaded.get(name) if name is not None else None
        if slot is None or slot.state != "ready":
            slot = await self._ready(await self._find(name), self._settings)
        slot.users += 1
        try:
            yield slot
        finally:
            slot.users -= 1
            slot.last_used = time.monotonic()
            self._notify()

    async def unload_idle(self) -> None:
        """Frees what nobody has used for --keep-alive."""
        now = time.monotonic()
        for slot in self.all_loaded:
            if slot.state == "ready" and slot.users == 0 and now - slot.last_used >= self._settings.keep_alive:
                log.info("model unused", extra={"model": slot.info.name})
                await self._unload(slot)

    async def close(self) -> None:
        """Frees all; open requests end cancelled."""
        self._closed = True
        self._notify()
        for slot in self.all_loaded:
            if slot.task is not None:
                with suppress(ApiError):
                    await slot.task
            if slot.llm is not None:
                await slot.llm.close()
        self._loaded.clear()

    def _with_state(self, info: ModelInfo) -> ModelInfo:
        slot = self._loaded.get(info.name)
        if slot is None:
            return info
        ctx = info.context_length if slot.llm is None else slot.llm.llm.ctx
        return replace(info, state=slot.state, context_length=ctx)

    def _current(self) -> ModelInfo | None:
        """The loaded model that was used last; one that goes only where there is no other."""
        slots = self._loaded.values()
        best = max(slots, key=lambda slot: (_RANKS[slot.state], slot.last_used), default=None)
        return None if best is None else best.info

    async def _find(self, name: str | None) -> ModelInfo:
        if name in ("loaded", "current") or name is None:
            current = self._current()
            if current is not None:
                return current
            if name is not None:
                raise ApiError(404, "model_not_found", "no model is loaded", suggestion="load one, or ask by its name")
            if self.main is not None:
                name = self.main
            else:
                models = await asyncio.to_thread(self._library.list)
                if len(models) == 1:
                    return models[0]
                known = ", ".join(model.name for model in models)
                none = "there is no model here; run `woolly pull smollm2`, or put a GGUF file into the models folder"
                message = f"no model is named; known: {known}" if known else none
                raise ApiError(400, "model_required", message, param="model")
        slot = self._loaded.get(name)
        return slot.info if slot is not None else await asyncio.to_thread(self._library.find, name)

    def _configured(self, config: Mapping[str, Any]) -> Settings:
        unknown = sorted(set(config) - set(_OF_A_MODEL))
        if unknown:
            raise ApiError(
                400,
                "invalid_request",
                f"config has {', '.join(unknown)}; a model takes {', '.join(_OF_A_MODEL)}",
                param="config",
            )
        try:
            values = {name: checked_value(f"config.{name}", name, value) for name, value in config.items()}
            return replace(self._settings, **values)
        except RequestError as error:
            raise ApiError(400, "invalid_request", str(error), param="config") from None

    async def _ready(self, info: ModelInfo, settings: Settings) -> Loaded:
        """The model when it is loaded; whoever comes first loads it, others wait for that."""
        end = time.monotonic() + self._settings.load_wait
        while True:
            if self._closed:
                raise ApiError(503, "server_stopping", "the server is about to stop", retry_after=_RETRY)
            slot = self._loaded.get(info.name)
            if slot is not None and slot.state == "ready":
                return slot
            if slot is None:
                slot = self._loaded[info.name] = Loaded(info, settings)
                slot.task = asyncio.create_task(self._load(slot))
                slot.task.add_done_callback(_observe)
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
                slot.needs = await asyncio.to_thread(examine, slot.info.path, slot.settings)
                await self._make_room(slot)
                slot.llm = await asyncio.to_thread(open_model, slot.info.path, slot.settings)
            slot.state = "ready"
            slot.last_used = time.monotonic()
            log.info("model loaded", extra={"model": name, "seconds": time.monotonic() - started})
        except BaseException as error:
            self._loaded.pop(name, None)
            log.warning("model not loaded", extra={"model": name, "reason": str(error)})
            if isinstance(error, ApiError) or not isinstance(error, Exception):
                raise
            if isinstance(error, WoollyError):
                raise _not_loadable(slot.info, error) from error
            if isinstance(error, MemoryError):
                raise ApiError(503, "insufficient_memory", f"{name} does not fit into memory") from error
            raise ApiError(500, "internal_error", f"{name} could not be loaded; the log has the reason") from error
        finally:
            self._notify()

    async def _check_exchange(self, slot: Loaded, settings: Settings) -> None:
        """ApiError where a model could not be loaded with other settings, for which it is not given up then."""
        try:
            needs = await asyncio.to_thread(examine, slot.info.path, settings)
        except WoollyError as error:
            raise _not_loadable(slot.info, error) from error
        freed = (
            other.needs.total
            for other in self.all_loaded
            if other.needs is not None
            and (other is slot or other.state == "unloading" or (other.state == "ready" and not other.users))
        )
        check_memory(slot.info.name, needs, sum(freed))

    async def _make_room(self, slot: Loaded) -> None:
        """Unloads what was not used for longest, after it is sure that this is enough.

        A model that is being unloaded holds its memory until it is gone, which is waited for.
        """
        assert slot.needs is not None
        going = [other for other in self._loaded.values() if other.state == "unloading"]
        others = sorted(
            (other for other in self._loaded.values() if other is not slot and other.state == "ready"),
            key=lambda other: (other.users > 0, other.last_used),
        )
        leaving = others[: max(0, len(others) + 1 - self._settings.models_max)]
        staying = [other for other in others if other not in leaving]
        while True:
            freed = sum(other.needs.total for other in (*going, *leaving) if other.needs is not None)
            try:
                check_memory(slot.info.name, slot.needs, freed)
                break
            except ApiError:
                # Others that are idle may go too, but nobody's answer is cut off for it.
                if not staying or staying[0].users:
                    raise
                leaving.append(staying.pop(0))
        for other in (*going, *leaving):
            await self._unload(other)

    async def _unload(self, slot: Loaded) -> None:
        """Waits until the model is freed, which goes on where the one who asked for it leaves."""
        if slot.state == "ready":
            slot.state = "unloading"
            slot.task = asyncio.create_task(self._free(slot))
            slot.task.add_done_callback(_observe)
        if slot.state == "unloading" and slot.task is not None:
            await asyncio.shield(slot.task)

    async def _free(self, slot: Loaded) -> None:
        end = time.monotonic() + self._settings.grace
        with suppress(asyncio.TimeoutError):
            while slot.users and not self._closed:
                await self._wait(max(0.0, end - time.monotonic()))
        assert slot.llm is not None
        llm, slot.llm = slot.llm, None
        try:
            await llm.close()
        finally:
            self._loaded.pop(slot.info.name, None)
            self._notify()
            log.info("model unloaded", extra={"model": slot.info.name})

    async def _wait(self, seconds: float) -> None:
        """Until something changes. TimeoutError after the time."""
        await asyncio.wait_for(self._changed.wait(), seconds)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _not_loadable(info: ModelInfo, error: WoollyError) -> ApiError:
    message = str(error).replace(str(info.path), info.path.name)
    return ApiError(422, "model_not_loadable", message, param="model")


def _observe(task: asyncio.Task[None]) -> None:
    """Whoever waits gets the error; where nobody does, it was logged."""
    if not task.cancelled():
        task.exception()
