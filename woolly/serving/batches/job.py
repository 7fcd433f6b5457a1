"""Runs the rows of a batch through the app's routes, each exactly once."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from fastapi import FastAPI

from woolly.serving.batches.journal import Journal
from woolly.serving.batches.row_client import RowDeferred, RowReply, send_row
from woolly.serving.batches.rows import EMBEDDINGS, BadRow, BatchRow
from woolly.serving.errors import ApiError, error_body
from woolly.serving.generation.thread_pool import run_in_thread, start_task
from woolly.serving.model_manager.loaded_model import ModelSlot
from woolly.serving.model_manager.model_info import Capability
from woolly.serving.settings.table import Settings

_PATIENCE = 900.0  # seconds without an answer before the batch fails, for example if a model does not fit into memory

_groups = itertools.count(1)  # used as negative numbers; request ids are positive

# Returns an iterator over valid and invalid rows.
Source = Callable[[], AsyncGenerator[BatchRow | BadRow, None]]


@dataclass(frozen=True)
class Tally:
    """Number of successful and failed rows."""

    n_good: int
    n_bad: int

    @property
    def n_done(self) -> int:
        """Return the number of finished rows."""
        return self.n_good + self.n_bad


@dataclass(frozen=True)
class _Model:
    """Properties of a model that affect the answers to its rows."""

    name: str
    slot: weakref.ref[ModelSlot]
    identity: str
    preset: str
    ctx: int
    has_adapters: bool


class Job:
    """Single run of a batch. After an interruption, the next run continues from the journal with identical results."""

    def __init__(
        self,
        app: FastAPI,
        source: Source,
        journal: Journal,
        *,
        created: int,
        owner: str = "",
        on_row: Callable[[Tally], None] = lambda tally: None,
    ) -> None:
        """`created` is the timestamp of all replies, which must not depend on when a row ran."""
        self._app = app
        self._source = source
        self._journal = journal
        self._created = created
        self._owner = owner
        self._on_row = on_row
        self._models: dict[tuple[str | None, Capability], asyncio.Task[_Model]] = {}  # by name and capability
        self._adding = asyncio.Lock()
        self._group = -next(_groups)
        self._deferred_since: float | None = None  # time of the first deferred row since the last finished row
        self._quota_error: RowDeferred | None = None  # set when the key has reached its limit
        settings = app.state.settings
        self._max_concurrent: Callable[[], int] = app.state.generator.max_concurrent  # grows when the model is loaded
        self._is_seeded = settings.seed >= 0
        self._defaults = _digest(json.dumps(_of_answers(settings), sort_keys=True, default=str))
        self._seen: dict[bytes, int] = {}  # row number by digest of the custom_id
        self.is_cancelled = False

    @property
    def tally(self) -> Tally:
        """Return the counts of finished rows."""
        n_good = self._journal.n_good
        return Tally(n_good, len(self._journal.notes) - n_good)

    async def run(self) -> Tally:
        """Answer all rows that are missing from the journal, and return the counts.

        Raises OSError if the journal cannot be written, ApiError 503 if the server could not answer any row for 15
        minutes for a reason other than load, and RowDeferred if the key has reached its limit. Running rows finish
        first, because they count toward the limit.
        """
        tasks: set[asyncio.Task[None]] = set()
        n_rows = 0
        try:
            async with aclosing(self._source()) as rows:  # closes the file even if a row ends the job
                async for row in rows:
                    if self._is_over:
                        break
                    n_rows += 1
                    tasks.add(asyncio.create_task(self._settle(row)))
                    while len(tasks) >= self._max_concurrent():
                        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                        for task in done:
                            task.result()
            if tasks:
                await asyncio.gather(*tasks)
        finally:
            left: list[asyncio.Task[Any]] = [*tasks, *self._models.values()]
            for one in left:
                one.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        if not self._is_over:
            self._journal.keep(n_rows)
        await run_in_thread(self._journal.sync)
        if self._quota_error is not None and not self.is_cancelled:
            raise self._quota_error
        return self.tally

    @property
    def _is_over(self) -> bool:
        """Return True if no more rows are sent."""
        return self.is_cancelled or self._quota_error is not None

    async def _settle(self, row: BatchRow | BadRow) -> None:
        """Answer one row unless the journal has its answer."""
        if isinstance(row, BadRow):
            await self._fail(row.number, row.id, _digest(str(row.error)), row.error)
            return
        first = self._seen.setdefault(_digest(row.id).encode(), row.number)
        if first != row.number:
            error = ApiError(400, "duplicate_custom_id", f"row {first + 1} has the same custom_id; use unique values")
            await self._fail(row.number, row.id, _digest(str(error)), error)
            return
        while not self._is_over:
            try:
                if await self._answer(row):
                    return
            except RowDeferred as busy:
                if busy.is_spent:
                    self._quota_error = busy
                    return
                self._check_patience(busy)
                await self._sleep(busy.seconds)

    async def _answer(self, row: BatchRow) -> bool:
        """Answer one row. Return False if the model or its settings changed; raise RowDeferred if the row must wait."""
        try:
            model, added = await self._facts(row)
            key = row.key(model.identity, added)
            if self._has(row.number, key):
                return True
            asked = row.with_model(model.name)
            reply = await self._ask(asked if self._is_seeded else asked.with_seed(key))
            if reply is None:
                return True
            now, added_now = await self._facts(row)
            if row.key(now.identity, added_now) != key:
                return False
        except ApiError as error:
            if (busy := RowDeferred.of(error)) is not None:
                raise busy from None
            await self._fail(row.number, row.id, _digest(str(error)), error)
            return True
        body = _settled(reply.body, key, self._created)
        line = {
            "id": f"batch_req_{key}",
            "custom_id": row.id,
            "response": {"status_code": reply.status, "request_id": key, "body": body},
            "error": None,
        }
        await self._add(row.number, key, reply.status < 400, line)
        return True

    async def _ask(self, row: BatchRow) -> RowReply | None:
        return None if self.is_cancelled else await send_row(self._app, row, self._owner, self._group)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but return early if no more rows are sent."""
        end = time.monotonic() + seconds
        while not self._is_over and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.5))

    def _check_patience(self, busy: RowDeferred) -> None:
        """Raise ApiError if rows have been deferred for too long. Deferrals because of a full queue do not count."""
        now = time.monotonic()
        if busy.is_full:
            self._deferred_since = None
            return
        self._deferred_since = self._deferred_since or now
        if now - self._deferred_since > _PATIENCE:
            raise ApiError(
                503, "batch_refused", f"the server could not answer any row for {_PATIENCE:g} seconds: {busy}"
            )

    async def _facts(self, row: BatchRow) -> tuple[_Model, str]:
        """Load and return the model of a row, and a digest of everything else that affects the answer."""
        name = row.body.get("model")
        if name is not None and not isinstance(name, str):
            raise ApiError(400, "invalid_request", "model: expected a string", param="model")
        can: Capability = "embedding" if row.url == EMBEDDINGS else "completion"
        known = self._models.get((name, can))
        if known is None or (known.done() and self._is_stale(known)):
            known = self._models[name, can] = start_task(self._learn(name, can))
        model = await asyncio.shield(known)
        scales = self._app.state.generator.adapter_scales if model.has_adapters else ()
        return model, _digest(f"{self._defaults} {model.preset} {model.ctx} {scales}")

    def _is_stale(self, known: asyncio.Task[_Model]) -> bool:
        """Return True if loading the model failed or the model was reloaded, so its file or context may differ."""
        if known.cancelled() or known.exception() is not None:
            return True
        slot = self._app.state.models.ready(known.result().name)
        return slot is not None and slot is not known.result().slot()

    async def _learn(self, name: str | None, can: Capability) -> _Model:
        models = self._app.state.models
        info = await models.resolve(name, can)
        async with models.use(info.name) as slot:
            llm = slot.model
            identity = await run_in_thread(llm.identity)
            return _Model(
                info.name, weakref.ref(slot), identity.id, str(llm.preset), llm.ctx, has_adapters=bool(llm.adapters)
            )

    def _has(self, number: int, key: str) -> bool:
        note = self._journal.notes.get(number)
        return note is not None and note.key == key

    async def _fail(self, number: int, id: str, key: str, error: ApiError) -> None:
        if self._has(number, key):
            return
        reply = {"status_code": error.status, "request_id": key, "body": error_body(error)}
        await self._add(
            number, key, False, {"id": f"batch_req_{key}", "custom_id": id, "response": reply, "error": None}
        )

    async def _add(self, number: int, key: str, is_good: bool, line: dict[str, Any]) -> None:
        async with self._adding:
            await run_in_thread(self._journal.add, number, key, is_good, line)
        self._deferred_since = None
        self._on_row(self.tally)


def _of_answers(settings: Settings) -> dict[str, Any]:
    """Return the settings that affect answers."""
    names = ("reasoning", "reasoning_format", "chat_template_kwargs", "max_prompt", "request_ctx")
    options = settings.model_options()
    found = {name: getattr(settings, name) for name in names}
    return {**found, "defaults": asdict(settings.defaults()), "template": options.chat_template}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _settled(body: Any, key: str, created: int) -> Any:
    """Return a reply without values that vary between runs, such as random ids, times and cached tokens."""
    if not isinstance(body, dict):
        return body
    body = {name: value for name, value in body.items() if name != "timings"}
    if kind := re.match(r"[a-z]+[-_]", str(body.get("id"))):
        body["id"] = f"{kind[0]}{key}"
    body |= {name: created for name in ("created", "created_at", "completed_at") if isinstance(body.get(name), int)}
    if isinstance(body.get("output"), list):  # items of a response
        for i, item in enumerate(body["output"]):
            item["id"] = f"{str(item.get('id')).partition('_')[0]}_{key}{i}"
    if isinstance(body.get("usage"), dict):
        usage = dict(body["usage"])
        for name in ("prompt_tokens_details", "input_tokens_details"):
            if isinstance(usage.get(name), dict):
                usage[name] = dict.fromkeys(usage[name], 0)
        if "cache_read_input_tokens" in usage:  # in Anthropic's usage, input_tokens excludes cached tokens
            usage["input_tokens"] += usage["cache_read_input_tokens"]
            usage["cache_read_input_tokens"] = 0
        body["usage"] = usage
    return body
