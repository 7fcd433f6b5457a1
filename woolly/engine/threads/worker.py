"""Worker: runs the engine on a separate thread, so that signals and cancelled tasks only reach callers."""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]

_LAST_WAIT = 10.0  # seconds that interpreter shutdown waits for a step or a callback


class Worker:
    """Runs posted jobs, and calls `turn` while no jobs are queued.

    The thread ends when there is no work, so a driver that is dropped without `close` is freed.
    """

    def __init__(self, turn: Callable[[], bool]) -> None:
        """`turn` does a unit of work and returns True if there was any. Neither `turn` nor a job may raise."""
        self._turn = turn
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running = threading.Lock()  # locked by the working thread
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self.is_ended = False  # True if no more jobs are accepted
        self.is_stopping = False  # True if the interpreter is shutting down

    @property
    def is_current(self) -> bool:
        """True on the worker thread."""
        return self._thread is threading.current_thread()

    @property
    def is_foreign(self) -> bool:
        """True in a forked child of the process that created the worker, where the thread does not exist."""
        return os.getpid() != self._process

    def post(self, job: Job, *, last: bool = False) -> bool:
        """Append a job. With `last`, this is the final job; later calls return False."""
        with self._lock:
            if self.is_ended:
                return False
            self._jobs.put(job)
            self.is_ended = last
            is_idle = not self._running.locked()
        if is_idle:
            thread = threading.Thread(target=self._work, name="woolly-engine", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._work()  # no thread can start during interpreter shutdown
        return True

    def post_unlocked(self, job: Job) -> None:
        """Append a job without a lock, for finalizers, which may interrupt `post`. Does not start the thread."""
        self._jobs.put(job)

    def join(self) -> None:
        """Wait until there is no work."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        if not self._running.acquire(blocking=False):
            return  # another thread already runs the job
        self._thread = threading.current_thread()
        # Wait at shutdown: native code cannot be stopped after the interpreter is gone.
        atexit.register(self._stop)
        try:
            while not self._is_over():
                self._do_jobs()
                while not self.is_stopping and self._turn():
                    self._do_jobs()
        except BaseException:
            self.is_ended = True  # a repeated call would fail again
            self._leave()
            raise

    def _is_over(self) -> bool:
        with self._lock:
            if self._jobs.empty() or self.is_stopping:
                self._leave()
                return True
            return False

    def _leave(self) -> None:
        atexit.unregister(self._stop)
        self._thread = None
        self._running.release()

    def _do_jobs(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            job()

    def _stop(self) -> None:
        self.is_stopping = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LAST_WAIT)
