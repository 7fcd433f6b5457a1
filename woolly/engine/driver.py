"""The Driver: many threads share one engine, which a thread of its own runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import TypeVar

from woolly.engine.completion import Chunk, Completion
from woolly.engine.engine import Engine
from woolly.engine.sequence import Sequence
from woolly.engine.worker import Worker
from woolly.errors import RequestError
from woolly.runtime import CancelledRun

__all__ = ["Driver", "Listener"]

# Is told what is new of a request, after the step that made it, by the engine's thread; must be quick.
Listener = Callable[[Sequence, Chunk], None]

Result = TypeVar("Result")

_AGAIN = 0.02  # seconds after which `close` tells a run to stop once more: one that had not begun did not hear it


class Driver:
    """Holds the engine until it is closed.

    Whatever is wanted of the engine is a job that its thread does between two steps. Callers only wait, so a signal
    or an exception that hits them leaves nothing half done.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine  # set to None by the engine's thread alone
        self._worker = Worker(self._turn)
        self._owner: int | None = None  # the thread that is in `exclusive`
        self._listeners: dict[Sequence, Listener] = {}  # the engine's thread alone uses it

    @property
    def engine(self) -> Engine:
        """What runs the requests; to be used within `exclusive` but for what never changes."""
        engine = self._engine
        if engine is None or self._worker.is_ended:
            raise _closed()
        return engine

    def add(self, sequences: Iterable[Sequence], listener: Listener) -> None:
        """Queues requests; each is told to the listener until it ends."""
        added = tuple(sequences)

        def job(engine: Engine | None) -> None:
            for sequence in added:
                self._listeners[sequence] = listener
                if engine is None:
                    sequence.finish_reason = "cancelled"
                else:
                    engine.add(sequence)
            if engine is None:
                self._deliver(added)

        if not self._post(job):
            raise _closed()

    def cancel(self, sequences: Seq[Sequence], *, wait: bool = False) -> None:
        """Ends requests where they have not finished, after the step under way; with `wait` they have ended then.

        A step that computes nothing else is broken off. May be called anywhere, by a finalizer too.
        """
        for sequence in sequences:
            sequence.is_unwanted = True

        def job(engine: Engine | None) -> None:
            if engine is not None:
                for sequence in sequences:
                    engine.cancel(sequence)
            self._deliver(sequences)

        # A request that is open keeps the worker at work, so it sees this.
        self._worker.slip(lambda: self._do(job))
        if (engine := self._engine) is not None:
            engine.abandon()
        if wait and not self._is_inside():
            done = threading.Event()
            if self._post(lambda _: done.set()):
                done.wait()

    def complete(
        self, groups: Seq[Seq[Sequence]], on_finish: Callable[[Sequence], None] | None = None
    ) -> list[Completion]:
        """Runs requests to their end; a group is the answers to one prompt."""
        self.check_outside()
        sequences = [sequence for group in groups for sequence in group]
        ended: queue.SimpleQueue[Sequence] = queue.SimpleQueue()

        def listen(sequence: Sequence, chunk: Chunk) -> None:
            if chunk.finish_reason is not None:
                ended.put(sequence)

        try:
            self.add(sequences, listen)
            for _ in sequences:
                sequence = ended.get()
                if on_finish is not None:
                    on_finish(sequence)
        except BaseException:
            self.cancel(sequences)
            raise
        return [Completion.of(group) for group in groups]

    def call(self, function: Callable[[Engine], Result]) -> Result:
        """What a function gives for the engine, called between two steps by the engine's thread."""
        self.check_outside()
        answer: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()
        is_wanted = True

        def job(engine: Engine | None) -> None:
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
                        # It was meant for the run before: what was computed does not count, and comes again.
            except BaseException as error:
                answer.put((None, error))

        if not self._post(job):
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
        return result  # type: ignore[return-value]  # None only where the function gave it

    @contextmanager
    def exclusive(self) -> Iterator[Engine]:
        """The engine for the calling thread alone, between two steps of others."""
        self.check_outside()
        granted: queue.SimpleQueue[Engine | None] = queue.SimpleQueue()
        released = threading.Event()

        def job(engine: Engine | None) -> None:
            granted.put(engine)
            while engine is not None and not released.wait(1.0) and not self._worker.is_stopping:
                pass

        if not self._post(job):
            raise _closed()
        try:
            engine = granted.get()
            if engine is None:
                raise _closed()
            self._owner = threading.get_ident()
            yield engine
        finally:
            self._owner = None
            released.set()

    def close(self) -> None:
        """Lets go of the engine: its program, cache and threads are freed; open requests end cancelled."""
        self.check_outside()
        done = threading.Event()

        def job(engine: Engine | None) -> None:
            self._engine = None
            try:
                if engine is not None:
                    for sequence in engine.scheduler.sequences:
                        engine.cancel(sequence)
                self._deliver(tuple(self._listeners))
            finally:
                done.set()

        engine = self._engine
        if self._post(job, last=True):
            while not done.wait(_AGAIN) and engine is not None:
                engine.abort()
        del engine
        self._worker.join()

    def check_outside(self) -> None:
        """Refuses a call that would wait for itself."""
        if self._is_inside():
            raise RequestError("a callback of a request cannot ask the same LLM, which waits for it; use another one")

    def _is_inside(self) -> bool:
        return self._worker.is_current or self._owner == threading.get_ident()

    def _post(self, job: Callable[[Engine | None], None], *, last: bool = False) -> bool:
        return self._worker.post(lambda: self._do(job), last=last)

    def _do(self, job: Callable[[Engine | None], None]) -> None:
        try:
            job(self._engine)
        except BaseException as error:
            self._fail_all(error)

    def _turn(self) -> bool:
        """One step, where there is one to do."""
        engine = self._engine
        if engine is None or engine.is_idle:
            return False
        try:
            self._deliver(engine.step())
        except BaseException as error:
            # No fault of one request, which the engine would have kept to it: nobody waits for nothing.
            self._fail_all(error)
        return True

    def _fail_all(self, error: BaseException) -> None:
        """Ends every request with an error that is not its own; those that had ended are told so."""
        engine = self._engine
        told = error if isinstance(error, Exception) else RuntimeError(f"the engine's thread was ended by {error!r}")
        for sequence in tuple(self._listeners):
            if sequence.finish_reason is None:
                try:
                    if engine is not None:
                        engine.fail(sequence, told)
                except BaseException:
                    self._give_up()
                sequence.error, sequence.finish_reason = told, "error"
        if engine is not None and not engine.is_idle:
            self._give_up()
        self._deliver(tuple(self._listeners))

    def _give_up(self) -> None:
        """An engine that cannot even let go of its requests takes no others."""
        self._worker.is_ended = True
        self._engine = None

    def _deliver(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            listener = self._listeners.get(sequence)
            if listener is None:
                continue
            chunk = Chunk.take(sequence)
            if chunk.finish_reason is not None:
                del self._listeners[sequence]
            if chunk.text or chunk.logprobs or chunk.finish_reason is not None:
                try:
                    listener(sequence, chunk)
                except BaseException:
                    # Whoever cannot listen gets no more; others are not disturbed.
                    self._listeners.pop(sequence, None)
                    if self._engine is not None:
                        self._engine.cancel(sequence)


def _closed() -> RequestError:
    return RequestError("this LLM was closed; open the model again")
