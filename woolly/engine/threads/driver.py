"""EngineDriver: shares an engine, which runs on a separate thread, between many threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from woolly.engine.request import Request
from woolly.engine.threads.completion import Chunk, Completion
from woolly.engine.threads.worker import Worker
from woolly.errors import DeviceError, RequestError
from woolly.runtime import CancelledRun

if TYPE_CHECKING:
    from woolly.engine.engine import Engine
    from woolly.engine.pooling import PoolingJob

# Receives each chunk of a request. Called by the engine thread between steps, so it must be fast.
Listener = Callable[[Request, Chunk], None]

Result = TypeVar("Result")

_AGAIN = 0.02  # seconds between calls of cancel() in `close`, because a run clears the flag when it starts


class EngineDriver:
    """Owns the engine until `close`.

    Every call is a task that the engine thread runs between two steps. Callers only wait, so a signal or an exception
    in a caller leaves the engine consistent.
    """

    def __init__(self, engine: Engine) -> None:
        engine.runner.meanwhile = self._deliver_changed
        self._engine: Engine | None = engine  # only the engine thread sets this to None
        self._worker = Worker(self._turn)
        self._listeners: dict[Request, Listener] = {}  # used only by the engine thread
        self._changed: list[Request] = []  # changed by the last step; delivered during the next step
        self.fault: DeviceError | None = None  # set when the device is lost, after which every request fails
        self.on_fault: Callable[[], None] | None = None  # called once by the engine thread

    @property
    def engine(self) -> Engine:
        """Engine of the driver. Outside of `call`, read immutable attributes only. Raise RequestError after `close`."""
        engine = self._engine
        self._check_process()
        if engine is None or self.is_closed:
            raise _closed()
        return engine

    @property
    def is_closed(self) -> bool:
        """True if the driver accepts no more requests."""
        return self._engine is None or self._worker.is_ended

    @property
    def is_foreign(self) -> bool:
        """True in a forked child of the process that opened the model."""
        return self._worker.is_foreign

    def add(self, requests: Iterable[Request], listener: Listener) -> None:
        """Queue requests. The listener receives their chunks until they end."""
        added = tuple(requests)

        def task(engine: Engine | None) -> None:
            for request in added:
                self._listeners[request] = listener
                if engine is None:
                    request.finish_reason = "cancelled"
                else:
                    engine.add(request)
            if ended := [request for request in added if request.finish_reason is not None]:
                self._deliver(ended)

        if not self._post(task):
            raise _closed()

    def cancel(self, requests: Sequence[Request], *, wait: bool = False) -> None:
        """End unfinished requests after the current step; with `wait`, return when they have ended.

        A step with only these requests is stopped. Any thread may call this, including finalizers.
        """
        if self.is_foreign:
            return  # the requests belong to the parent process
        for request in requests:
            request.is_unwanted = True

        def task(engine: Engine | None) -> None:
            if engine is not None:
                for request in requests:
                    engine.cancel(request)
            self._deliver(requests)

        # No lock: an unfinished request keeps the worker running, so the worker sees the task.
        self._worker.post_unlocked(lambda: self._do(task))
        if (engine := self._engine) is not None:
            engine.abandon()
        if wait and not self._is_inside():
            done = threading.Event()
            if self._post(lambda _: done.set()):
                done.wait()

    def end_reasoning(self, requests: Sequence[Request]) -> bool:
        """End the reasoning of answers with their next token; return True if an answer was in its reasoning."""
        return self.call(lambda _: sum(request.sampler.end_reasoning() for request in requests) > 0)

    def complete(
        self, groups: Sequence[Sequence[Request]], on_finish: Callable[[Request], None] | None = None
    ) -> list[Completion]:
        """Run requests to their end. Each group has the n answers to a prompt."""
        self.check_outside()
        requests = [request for group in groups for request in group]
        ended: queue.SimpleQueue[Request] = queue.SimpleQueue()

        def listen(request: Request, chunk: Chunk) -> None:
            if chunk.finish_reason is not None:
                ended.put(request)

        try:
            self.add(requests, listen)
            for _ in requests:
                request = ended.get()
                if on_finish is not None:
                    on_finish(request)
        except BaseException:
            self.cancel(requests)
            raise
        return [Completion.of(group) for group in groups]

    def run_pooling(self, job: PoolingJob) -> None:
        """Run a job to its end; the caller then reads its result."""
        self.check_outside()
        over = threading.Event()
        try:
            self.start_pooling(job, over.set)
            over.wait()
        except BaseException:
            self.cancel_pooling(job)
            raise

    def start_pooling(self, job: PoolingJob, on_end: Callable[[], None]) -> None:
        """Queue a job. The engine thread calls `on_end` once, when the job ends."""

        def end() -> None:
            self._notice(job.error)
            on_end()

        job.on_end = end

        def task(engine: Engine | None) -> None:
            if engine is None or job.is_unwanted:
                job.end()
            else:
                engine.pooling.add(job)

        if not self._post(task):
            raise _closed()

    def cancel_pooling(self, job: PoolingJob) -> None:
        """End an unfinished job and stop its current batch. Any thread may call it."""
        if self.is_foreign:
            return
        job.is_unwanted = True

        def task(engine: Engine | None) -> None:
            if engine is None:
                job.end()
            else:
                engine.pooling.cancel(job)

        self._worker.post_unlocked(lambda: self._do(task))
        if (engine := self._engine) is not None:
            engine.pooling.abandon()

    def call(self, function: Callable[[Engine], Result]) -> Result:
        """Call a function with the engine, on the engine thread between two steps, and return its result."""
        self.check_outside()
        answer: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()
        is_wanted = True

        def task(engine: Engine | None) -> None:
            try:
                while True:
                    if engine is None or self._worker.is_ended:
                        raise _closed()
                    try:
                        answer.put((function(engine), None))
                        return
                    except CancelledRun:
                        if not is_wanted:
                            raise
                        # A late cancel() of the previous run: retry.
            except BaseException as error:
                self._notice(error)
                answer.put((None, error))

        if not self._post(task):
            raise _closed()
        try:
            result, error = answer.get()
        except BaseException:
            is_wanted = False
            if (engine := self._engine) is not None:
                engine.program.cancel()
            raise
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # None only if returned by the function

    def close(self) -> None:
        """Cancel unfinished requests and release the engine with its program, cache and threads."""
        self.check_outside()
        if self.is_foreign:
            return
        done = threading.Event()

        def task(engine: Engine | None) -> None:
            self._engine = None
            try:
                if engine is not None:
                    for request in engine.requests:
                        engine.cancel(request)
                    engine.pooling.end_all()
                self._deliver(tuple(self._listeners))
                if engine is not None:
                    engine.close()
            finally:
                done.set()

        engine = self._engine
        if self._post(task, last=True):
            while not done.wait(_AGAIN) and engine is not None:
                engine.abort()
        del engine
        self._worker.join()

    def check_outside(self) -> None:
        """Raise RequestError on the engine thread, where a call would deadlock."""
        if self._is_inside():
            raise RequestError("a request callback cannot call its LLM, which waits for the callback; use another LLM")

    def _is_inside(self) -> bool:
        return self._worker.is_current

    def _check_process(self) -> None:
        if self.is_foreign:
            raise RequestError(
                "this LLM was opened before a fork and belongs to the parent process; open the model in each process"
            )

    def _post(self, task: Callable[[Engine | None], None], *, last: bool = False) -> bool:
        self._check_process()
        return self._worker.post(lambda: self._do(task), last=last)

    def _do(self, task: Callable[[Engine | None], None]) -> None:
        try:
            self._deliver_changed()
            task(self._engine)
        except BaseException as error:
            self._fail_all(error)

    def _turn(self) -> bool:
        """Run a step; return False if there is no work."""
        engine = self._engine
        if engine is None or engine.is_idle:
            return False
        try:
            changed = engine.step()
            self._deliver_changed()  # left by an interrupted step
            self._changed = changed
            if engine.is_idle or any(request.finish_reason or request.reports_progress for request in changed):
                self._deliver_changed()
        except BaseException as error:
            # The engine failed (`step` handles errors of single requests). Fail all requests, so that no caller waits
            # forever.
            self._fail_all(error)
        return True

    def _fail_all(self, error: BaseException) -> None:
        """End all unfinished requests with an error of the engine, and deliver their last chunks."""
        engine = self._engine
        shown = error if isinstance(error, Exception) else RuntimeError(f"the engine thread was ended by {error!r}")
        for request in tuple(self._listeners):
            if request.finish_reason is None:
                try:
                    if engine is not None:
                        engine.fail(request, shown)
                except BaseException:
                    self._give_up()
                request.error, request.finish_reason = shown, "error"
        if engine is not None:
            engine.pooling.end_all(shown)
        if engine is not None and not engine.is_idle:
            self._give_up()
        self._notice(shown)
        self._deliver(tuple(self._listeners))

    def _notice(self, error: BaseException | None) -> None:
        """Report the loss of the device once, before requests fail."""
        if isinstance(error, DeviceError) and error.code == "lost" and self.fault is None:
            self.fault = error
            if self.on_fault is not None:
                self.on_fault()

    def _give_up(self) -> None:
        """Accept no more requests: the engine cannot release its unfinished requests."""
        self._worker.is_ended = True
        self._engine = None

    def _deliver_changed(self) -> None:
        """Deliver the chunks of the last step."""
        if self._changed:
            changed, self._changed = self._changed, []
            self._deliver(changed)

    def _deliver(self, requests: Iterable[Request]) -> None:
        for request in requests:
            listener = self._listeners.get(request)
            if listener is None:
                continue
            chunk = Chunk.take(request)
            if chunk.finish_reason is not None:
                del self._listeners[request]
            has_more = chunk.finish_reason is not None or chunk.n_computed is not None
            self._notice(chunk.error)
            if chunk.text or chunk.logprobs or has_more:
                try:
                    listener(request, chunk)
                except BaseException:
                    # An exception in a listener only cancels its request.
                    self._listeners.pop(request, None)
                    if self._engine is not None:
                        self._engine.cancel(request)


def _closed() -> RequestError:
    return RequestError("this LLM was closed; open the model again")
