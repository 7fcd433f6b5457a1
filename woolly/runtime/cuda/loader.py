"""The Loader: brings weights from the file to the device in a thread of its own, in order of use."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from woolly.errors import DeviceError
from woolly.runtime.cuda.device import Address, Device
from woolly.runtime.cuda.emit import Array, Fill, Part
from woolly.runtime.views import Views

__all__ = ["Loader"]

# Bytes of the file that are on the device at a time, before they are packed.
_STAGED = 64 << 20


class Loader:
    """Fills weights. `wait` returns when those that a run needs are there."""

    def __init__(self, device: Device, views: Views, weights: Sequence[Fill | Array]) -> None:
        self._device = device
        self._views = views
        self._weights = weights
        self._n_loaded = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._is_ended = False
        self._thread: threading.Thread | None = None
        self.n_bytes = sum(weight.n_bytes for weight in weights)

    def start(self) -> None:
        """Starts the thread, or nothing if all is loaded or it runs already."""
        with self._changed:
            if self._thread is None and self._n_loaded < len(self._weights) and self._error is None:
                self._is_ended = False
                self._thread = threading.Thread(target=self._work, name="woolly-upload", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Ends the thread after the weight that it is at. What is loaded stays; `wait` goes on with the rest."""
        with self._changed:
            thread, self._is_ended = self._thread, True
        if thread is not None:
            thread.join()

    def wait(self, n: int) -> None:
        """Returns when the first n weights are loaded. Raises what made loading fail."""
        while self._n_loaded < n:
            self.start()
            with self._changed:
                self._changed.wait_for(lambda: self._n_loaded >= n or self._thread is None)
                if self._error is not None:
                    raise self._error

    def _work(self) -> None:
        try:
            device = self._device.beside()
            try:
                self._fill_all(device)
            finally:
                device.close()
        except BaseException as error:  # it is raised again by the run that needs the weight
            self._error = error
        finally:
            with self._changed:
                self._thread = None
                self._changed.notify_all()

    def _fill_all(self, device: Device) -> None:
        staged: Address | None = None
        room = 0
        try:
            while self._n_loaded < len(self._weights) and not self._is_ended:
                weight = self._weights[self._n_loaded]
                if isinstance(weight, Array):
                    device.upload(weight.address, np.ascontiguousarray(weight.make()))
                else:
                    needed = max((self._chunk_bytes(part) for part in weight.parts if part.pack), default=0)
                    if needed > room:
                        if staged is not None:
                            device.free(staged)
                        staged, room = device.allocate(needed), needed
                    for part in weight.parts:
                        self._fill(device, weight, part, staged)
                device.wait()
                with self._changed:
                    self._n_loaded += 1
                    self._changed.notify_all()
        finally:
            if staged is not None:
                with suppress(DeviceError):  # a device that is lost has no memory to give back
                    device.free(staged)

    def _rows(self, part: Part) -> tuple[int, int, int]:
        """Rows of the tensor, bytes of a row, rows of a chunk."""
        tensor = self._views[part.name]
        n_rows, row_bytes = math.prod(tensor.shape[:-1]), tensor.type.row_bytes(tensor.shape[-1])
        if part.rows == 0:
            return n_rows, row_bytes, n_rows
        return n_rows, row_bytes, min(n_rows, max(1, _STAGED // (row_bytes * part.rows)) * part.rows)

    def _chunk_bytes(self, part: Part) -> int:
        _, row_bytes, n_chunk = self._rows(part)
        return row_bytes * n_chunk

    def _fill(self, device: Device, weight: Fill, part: Part, staged: Address | None) -> None:
        n_rows, row_bytes, n_chunk = self._rows(part)
        data = self._views[part.name].data
        rows = data.reshape(n_rows, row_bytes)
        if part.pack is None:
            device.upload(weight.address, np.ascontiguousarray(rows))
            return
        assert staged is not None
        for first in range(0, n_rows, n_chunk):
            chunk = np.ascontiguousarray(rows[first : first + n_chunk])
            device.upload(staged, chunk)
            part.pack(device, weight.address, staged, first, len(chunk))
