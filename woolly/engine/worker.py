"""The Worker: a thread of its own that runs the engine, for callers that must never wait."""

from __future__ import annotations

import atexit
import threading

from woolly.engine.driver import Driver

__all__ = ["Worker"]


class Worker:
    """Runs steps while there is work; sleeps otherwise."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="woolly-engine", daemon=True)
        self._thread.start()
        # A thread that native code holds when the interpreter ends cannot be stopped any more.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends the thread after the step under way; open requests wait for whoever runs the driver next."""
        self._stopped = True
        atexit.unregister(self.stop)
        self._driver.cancel(())  # wakes it
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        while not self._stopped:
            try:
                self._driver.wait(lambda: self._stopped)
            except Exception as error:
                # No fault of one request, which the engine would have kept to it: nobody waits for nothing.
                if self._stopped:
                    return
                try:
                    self._driver.fail_all(error)
                except Exception:
                    return  # the driver was closed
