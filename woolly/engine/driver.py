"""The Driver: several threads share one engine; of those that wait for text, one runs the steps for all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager

from woolly.engine.completion import Chunk, Completion
from woolly.engine.engine import Engine
from woolly.engine.sequence import Sequence
from woolly.errors import RequestError

__all__ = ["Driver", "Listener"]

# Is told what is new of a request, after the step that made it, by whichever thread ran that step; must be quick.
Listener = Callable[[Sequence, Chunk], None]


class Driver:
    """Holds the engine until it is closed.

    One thread at a time is at the engine, without holding the lock, so that others can come and go during a step. What
    they want of the engine meanwhile is done at the step's end.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine
        self._changed = threading.Condition(threading.Lock())
        self._busy = False  # somebody is at the engine:
        self._owner: int | None = None  # this thread
        self._n_claims = 0  # threads that want it for themselves
        self._commands: deque[Callable[[Engine], None]] = deque()
        self._listeners: dict[Sequence, Listener] = {}

    @property
    def engine(self) -> Engine:
        """What runs the requests; to be used within `exclusive` but for what never changes."""
        if self._engine is None:
            raise RequestError("this LLM was closed; open the model again")
        return self._engine

    def add(self, sequences: Iterable[Sequence], listener: Listener) -> None:
        """Queues requests. They are computed while some thread is in `wait`."""
        _ = self.engine

        def command(engine: Engine) -> None:
            for sequence in sequences:
                self._listeners[sequence] = listener
                engine.add(sequence)

        self._post(command)

    def cancel(self, sequences: Seq[Sequence], *, blocking: bool = True) -> None:
        """Ends requests where they have not finished, at once or after the step under way.

        From a finalizer, which may interrupt any code, `blocking` must be False.
        """

        def command(engine: Engine) -> None:
            for sequence in sequences:
                engine.cancel(sequence)
            self._deliver(sequences)  # another thread may wait for it

        self._post(command, blocking)

    def wait(self, done: Callable[[], bool]) -> None:
        """Returns when `done` says so; runs steps until then, unless another thread does."""
        with self._changed:
            while not done():
                engine = self._checked()
                if not self._busy and not self._n_claims:
                    self._run_commands(engine)
                    if not engine.is_idle:
                        self._step(engine)
                        continue
                    if done():
                        break
                self._changed.wait()
            # Another one may have to take over.
            self._changed.notify_all()

    def complete(
        self, groups: Seq[Seq[Sequence]], on_finish: Callable[[Sequence], None] | None = None
    ) -> list[Completion]:
        """Runs requests to their end; a group is the answers to one prompt."""
        sequences = [sequence for group in groups for sequence in group]
        n_open = len(sequences)

        def listen(sequence: Sequence, chunk: Chunk) -> None:
            nonlocal n_open
            if chunk.finish_reason is not None:
                n_open -= 1
                if on_finish is not None:
                    on_finish(sequence)

        try:
            self.add(sequences, listen)
            self.wait(lambda: n_open == 0)
        finally:
            if n_open:
                self.cancel(sequences)
        return [Completion.of(group) for group in groups]

    @contextmanager
    def exclusive(self) -> Iterator[Engine]:
        """The engine for the calling thread alone, between two steps of others."""
        with self._changed:
            self._n_claims += 1
            try:
                self._checked()
                while self._busy:
                    self._changed.wait()
                engine = self.engine
                self._enter()
            finally:
                self._n_claims -= 1
                self._changed.notify_all()
        try:
            yield engine
        finally:
            with self._changed:
                self._leave()

    def fail_all(self, error: Exception) -> None:
        """Ends every request with an error that is not its own."""
        with self.exclusive() as engine:
            self._end_all(engine, lambda sequence: engine.fail(sequence, error))

    def close(self) -> None:
        """Lets go of the engine: its program, cache and threads are freed; open requests end cancelled."""
        try:
            with self.exclusive() as engine:
                self._end_all(engine, engine.cancel)
                self._engine = None
        except RequestError:
            if self._engine is not None:
                raise

    def _checked(self) -> Engine:
        """The engine, unless the calling thread is at it already: it would wait for itself."""
        if self._owner == threading.get_ident():
            raise RequestError("a callback of a request cannot ask the same LLM, which waits for it; use another one")
        return self.engine

    def _enter(self) -> None:
        self._busy = True
        self._owner = threading.get_ident()

    def _leave(self) -> None:
        self._busy = False
        self._owner = None
        self._changed.notify_all()

    def _end_all(self, engine: Engine, end: Callable[[Sequence], None]) -> None:
        self._run_commands(engine)
        sequences = engine.scheduler.sequences
        for sequence in sequences:
            end(sequence)
        self._deliver(sequences)

    def _post(self, command: Callable[[Engine], None], blocking: bool = True) -> None:
        """Does something to the engine as soon as nobody is at it."""
        self._commands.append(command)
        if self._changed.acquire(blocking):
            try:
                if not self._busy and self._engine is not None:
                    self._run_commands(self._engine)
                self._changed.notify_all()
            finally:
                self._changed.release()

    def _run_commands(self, engine: Engine) -> None:
        while self._commands:
            self._commands.popleft()(engine)

    def _step(self, engine: Engine) -> None:
        """One step without the lock, which the caller holds before and after."""
        self._enter()
        self._changed.release()
        touched: Iterable[Sequence] = ()
        try:
            touched = engine.step()
        except BaseException:
            # Those that ended before it broke must still be told.
            touched = [sequence for sequence in self._listeners if sequence.finish_reason is not None]
            raise
        finally:
            self._changed.acquire()
            self._leave()
            self._run_commands(engine)
            self._deliver(touched)

    def _deliver(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            listener = self._listeners.get(sequence)
            if listener is None:
                continue
            chunk = Chunk.take(sequence)
            if chunk.finish_reason is not None:
                del self._listeners[sequence]
            if chunk.text or chunk.logprobs or chunk.finish_reason is not None:
                listener(sequence, chunk)
