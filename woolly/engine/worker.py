"""The Worker: a thread that runs the engine, so that signals and cancelled tasks only ever meet those who wait."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable

__all__ = ["Job", "Worker"]

Job = Callable[[], None]

_LAST_WAIT = 10.0  # seconds that the end of the interpreter waits for a step or a callback


class Worker:
    """Does the jobs that are posted, and turns while there are none.

    Its thread lives while there is something to do: what nobody uses any more is freed, closed or not.
    """

    def __init__(self, turn: Callable[[], bool]) -> None:
        """`turn` does a piece of standing work, and says whether there was any. It must not raise, nor must jobs."""
        self._turn = turn
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running = threading.Lock()  # held by the thread that does the work
        self._thread: threading.Thread | None = None
        self.is_ended = False  # no further jobs are taken
        self.is_stopping = False  # the interpreter ends

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the one that does the work."""
        return self._thread is threading.current_thread()

    def post(self, job: Job, *, last: bool = False) -> bool:
        """Has a job done after those before it; False, and it is not, where the last one was posted before."""
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
                self._work()  # at the end of the interpreter no thread starts any more
        return True

    def slip(self, job: Job) -> None:
        """As `post`, for what matters only while there is work. Takes no lock: a finalizer may interrupt any code."""
        self._jobs.put(job)

    def join(self) -> None:
        """Waits until there is nothing to do."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        if not self._running.acquire(blocking=False):
            return  # another one was faster, and has seen the job
        self._thread = threading.current_thread()
        # Native code cannot be stopped once the interpreter is gone.
        atexit.register(self._stop)
        try:
            while not self._is_over():
                self._do_jobs()
                while not self.is_stopping and self._turn():
                    self._do_jobs()
        except BaseException:
            self.is_ended = True  # what fails here fails again
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
