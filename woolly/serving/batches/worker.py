"""Runs the server's batches one after the other, and resumes them after a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.requests import HTTPConnection

from woolly.errors import RequestError, WoollyError
from woolly.serving.batches.disk_budget import DiskBudget
from woolly.serving.batches.files import count_rows, read_rows, write_lines
from woolly.serving.batches.job import Job, Tally
from woolly.serving.batches.journal import Journal, JournalLocked
from woolly.serving.batches.row_client import RowDeferred
from woolly.serving.batches.store import ENDED, BatchStore
from woolly.serving.errors import ApiError
from woolly.serving.generation.thread_pool import run_in_thread, start_task
from woolly.serving.observability.logs import log

_EVERY = 1.0  # seconds between writes of a batch's counts
_PAUSE = 30.0  # seconds before retrying a batch that another server runs or that lacks disk space

_NO_ROOM = 507  # error status if an object could not be written

Data = dict[str, Any]


@dataclass
class _Running:
    """The batch that the worker is running."""

    batch: Data
    job: Job | None = None


class BatchWorker:
    """Background task that runs the oldest unfinished batch. Use this class only on the event loop thread.

    Disk access runs on other threads. The lock `changing` protects changes of stored objects.
    """

    def __init__(self, app: FastAPI, store: BatchStore) -> None:
        self._app = app
        self.store = store
        self.changing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._running: dict[str, _Running] = {}
        self._paused: dict[str, float] = {}  # retry time by time.monotonic()

    def wake(self) -> None:
        """Make the task look for batches; start the task if necessary."""
        self._woken.set()
        if self._task is None or self._task.done():
            self._task = start_task(self._run())

    async def stop(self) -> None:
        """Stop the task. Batches stay unchanged and resume at the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def shown(self, batch: Data) -> Data:
        """Return a batch with its current counts."""
        running = self._running.get(batch["id"])
        return batch if running is None else running.batch

    async def add(self, batch: Data) -> None:
        """Store a batch and start it. Raises ApiError if the store rejects the batch."""
        async with self.changing:
            await run_in_thread(self.store.add_batch, batch)
        self.wake()

    async def add_rows(self, owner: str, endpoint: str, data: bytes, n_rows: int) -> Data:
        """Store a batch of inline rows and start it. Raises ApiError if the store rejects the batch."""
        store = self.store
        async with self.changing:
            file = await run_in_thread(store.add_file, owner, "requests.jsonl", "batch", data)
            counts = {"total": n_rows, "completed": 0, "failed": 0}
            batch = store.new_batch(owner, endpoint, file["id"], request_counts=counts, owns_files=True)
            try:
                await run_in_thread(store.add_batch, batch)
            except ApiError:
                await run_in_thread(store.delete_file, owner, file["id"])
                raise
        self.wake()
        return batch

    async def cancel(self, owner: str, id: str) -> Data:
        """Cancel a batch. Running rows finish, and the answers become the output.

        Raises ApiError 409 if the batch has ended.
        """
        async with self.changing:
            batch = self.shown(await run_in_thread(self.store.get, owner, id, "batch"))
            if batch["status"] in ENDED:
                message = f"the batch is {batch['status']}; only running and waiting batches can be cancelled"
                raise ApiError(409, "batch_ended", message)
            batch |= {"status": "cancelling", "cancelling_at": batch["cancelling_at"] or int(time.time())}
            await run_in_thread(self.store.save, batch)
        running = self._running.get(id)
        if running is not None and running.job is not None:
            running.job.is_cancelled = True
        self._paused.pop(id, None)
        self.wake()
        return batch

    async def _run(self) -> None:
        with suppress(OSError):
            await run_in_thread(self.store.sweep)
        while True:
            self._woken.clear()
            try:
                waiting = await run_in_thread(self.store.unfinished)
            except OSError as error:
                log.warning("batches not read", extra={"reason": str(error)})
                await asyncio.sleep(_PAUSE)
                continue
            now = time.monotonic()
            batch = next((one for one in waiting if self._paused.get(one["id"], 0.0) <= now), None)
            if batch is not None:
                await self._try(batch)
            elif waiting:
                seconds = min(self._paused[one["id"]] for one in waiting) - now
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), seconds)
            elif not self._woken.is_set():
                return

    async def _try(self, batch: Data) -> None:
        """Run a batch to its end, or pause it. Never raises, so that other batches continue."""
        id = batch["id"]
        self._paused.pop(id, None)
        self._running[id] = running = _Running(batch)
        try:
            await self._run_one(running)
        except JournalLocked:
            self._paused[id] = time.monotonic() + _PAUSE
        except RowDeferred as busy:
            log.info("batch paused", extra={"batch": id, "reason": str(busy)})
            self._paused[id] = time.monotonic() + busy.seconds
        except Exception as error:
            log.warning("batch paused", extra={"batch": id, "reason": str(error)}, exc_info=_unexpected(error))
            self._paused[id] = time.monotonic() + _PAUSE
        finally:
            self._running.pop(id, None)

    async def _run_one(self, running: _Running) -> None:
        """Open the journal of a batch and run the batch. Raises ApiError 507 if the disk is full."""
        # The stack closes the journal even if a cancelled `run_in_thread` opens it without returning it.
        with ExitStack() as stack:
            try:
                journal = await run_in_thread(self._open, running.batch, stack)
            except JournalLocked:
                raise
            except RequestError as error:  # the file is not a journal
                running.batch["errors"] = _errors(error)
                await self._save_end(running.batch, "failed")
            else:
                await self._run_over(running, journal)

    def _open(self, batch: Data, stack: ExitStack) -> Journal:
        budget = DiskBudget(self.store, batch["owner"])
        return stack.enter_context(closing(Journal(self.store.journal(batch["id"]), budget.take)))

    async def _run_over(self, running: _Running, journal: Journal) -> None:
        store, batch = self.store, running.batch
        async with self.changing:  # another server may have ended the batch meanwhile
            running.batch = batch = await run_in_thread(store.get, batch["owner"], batch["id"], "batch")
            if batch["status"] in ENDED:
                await run_in_thread(journal.remove)
                return
            if batch["status"] != "cancelling":
                batch |= {"status": "in_progress", "in_progress_at": batch["in_progress_at"] or int(time.time())}
                await run_in_thread(store.save, batch)
        try:
            status = await self._answer(running, journal)
        except Exception as error:
            if isinstance(error, (OSError, RowDeferred)) or (isinstance(error, ApiError) and error.status == _NO_ROOM):
                raise
            reason = {"batch": batch["id"], "reason": str(error)}
            log.warning("batch failed", extra=reason, exc_info=_unexpected(error))
            batch["errors"], status = _errors(error), "failed"
        await self._end(batch, journal, status)

    async def _answer(self, running: _Running, journal: Journal) -> str:
        """Answer the rows of a batch and return its final status."""
        store, batch = self.store, running.batch
        file = await run_in_thread(store.get, batch["owner"], batch["input_file_id"], "file")
        path = store.content(file["id"])
        if not path.is_file():
            raise ApiError(404, "not_found", f"the content of {file['id']} no longer exists")
        total = await run_in_thread(count_rows, path)

        def on_row(tally: Tally) -> None:
            batch["request_counts"] = {"total": total, "completed": tally.n_good, "failed": tally.n_bad}

        running.job = job = Job(
            self._app,
            lambda: read_rows(path, batch["endpoint"]),
            journal,
            created=file["created_at"],
            owner=batch["owner"],
            on_row=on_row,
        )
        job.is_cancelled = batch["status"] == "cancelling"
        on_row(job.tally)
        async with self._saving(running):
            on_row(await job.run())
        return "cancelled" if job.is_cancelled else "completed"

    async def _end(self, batch: Data, journal: Journal, status: str) -> None:
        """Write the answers of a batch to its files, then its status."""
        store = self.store
        batch["finalizing_at"] = int(time.time())
        kinds = [("output", True), ("error", False)]
        kinds = [one for one in kinds if any(note.is_good == one[1] for note in journal.notes.values())]
        for kind, _ in kinds:
            batch[f"{kind}_file_id"] = batch[f"{kind}_file_id"] or store.new_id("file")
        async with self.changing:  # save the ids first, so that a run after a kill writes the same files
            await run_in_thread(store.save, batch)
        for kind, is_good in kinds:
            made = batch[f"{kind}_file_id"]
            await run_in_thread(write_lines, store.content(made), journal.lines(is_good))
            store.content(made).chmod(0o600)
            await run_in_thread(
                store.describe_file, batch["owner"], made, f"{batch['id']}_{kind}.jsonl", "batch_output"
            )
        await self._save_end(batch, status)
        await run_in_thread(journal.remove)
        counts = batch["request_counts"]
        log.info("batch ended", extra={"batch": batch["id"], "good": counts["completed"], "bad": counts["failed"]})

    async def _save_end(self, batch: Data, status: str) -> None:
        async with self.changing:
            ended = {**batch, "status": status, f"{status}_at": int(time.time())}
            await run_in_thread(self.store.save, ended)
            batch |= ended  # clients see the final status after it is on disk

    @asynccontextmanager
    async def _saving(self, running: _Running) -> AsyncIterator[None]:
        """Update the counts on disk while the block runs, and detect a cancellation by another server."""
        task = start_task(self._save_counts(running))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _save_counts(self, running: _Running) -> None:
        batch, job = running.batch, running.job
        while job is not None and not job.is_cancelled:
            await asyncio.sleep(_EVERY)
            with suppress(ApiError, OSError):  # the next write may succeed
                async with self.changing:
                    found = await run_in_thread(self.store.get, batch["owner"], batch["id"], "batch")
                    if found["status"] == "cancelling":
                        batch |= {"status": "cancelling", "cancelling_at": found["cancelling_at"]}
                        job.is_cancelled = True
                    elif found["request_counts"] != batch["request_counts"]:
                        await run_in_thread(self.store.save, batch)


def worker_of(connection: HTTPConnection) -> BatchWorker:
    """Return the server's BatchWorker."""
    worker: BatchWorker = connection.app.state.batches
    return worker


def _unexpected(error: Exception) -> Exception | None:
    """Return the error if it is internal and its traceback belongs in the log."""
    return None if isinstance(error, (WoollyError, OSError)) else error


def _errors(error: Exception) -> Data:
    """Return the error in OpenAI's batch format; internal errors have no details."""
    message = str(error) if isinstance(error, WoollyError) else "internal server error; see the server's log"
    return {"object": "list", "data": [{"code": "batch_failed", "message": message}]}
