"""The Loader: brings weights from the file to the device in threads of its own, in order of use."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from woolly.errors import DeviceError, RequestError
from woolly.machine.cores import default_threads
from woolly.runtime.gpu.device import Address, Device
from woolly.runtime.gpu.emit import Array, Fill, TensorPart
from woolly.runtime.program import CancelledRun
from woolly.runtime.views import Views

# Bytes of the file that a thread has on the device at a time, before they are packed.
_STAGED = 16 << 20
# One thread copies at 6 to 10 GB/s, and the bus takes 50.
_MAX_THREADS = 6
# Pieces of a thread that are on their way while it brings the next.
_UNDER_WAY = 2


@dataclass(frozen=True)
class _Piece:
    """Rows of the tensors that a weight is made of, or all of an array that the host makes."""

    number: int  # of the weight
    weight: Fill | Array
    parts: tuple[TensorPart, ...] = ()
    first: int = 0
    last: int = 0


class Loader:
    """Fills weights, and loads kernels meanwhile. `wait` returns when the weights that a run needs are there."""

    def __init__(
        self, device: Device, views: Views, weights: Sequence[Fill | Array], kernels: Mapping[str, int] | None = None
    ) -> None:
        self._device = device
        self._kernels = dict(kernels or {})  # names in order of use, and the dynamic shared memory of each
        self._views = views
        self._weights = weights
        self._changed = threading.Condition()
        self._pieces = self._cut()
        self._left: dict[int, int] = {}  # pieces that were begun and are not there, of each weight
        self._n_begun = 0  # weights whose pieces were all begun
        self._n_loaded = 0  # weights before the first one that is not all there
        self._awaited: int | None = None  # a weight that must be there before another piece is begun
        self._error: BaseException | None = None
        self._is_ended = False
        self._threads: set[threading.Thread] = set()  # that have work left
        self._started: list[threading.Thread] = []  # and those that are about to end
        self.n_bytes = sum(weight.n_bytes for weight in weights)

    @property
    def n_missing(self) -> int:
        """Bytes of the weights that are not on the device yet."""
        return sum(weight.n_bytes for weight in self._weights[self._n_loaded :])

    def start(self) -> None:
        """Starts the threads, or nothing if all is loaded or they run already."""
        with self._changed:
            if self._threads or self._n_loaded == len(self._weights) or self._error is not None:
                return
            self._is_ended = False
            names = [f"woolly-upload-{i}" for i in range(min(_MAX_THREADS, default_threads()))]
            threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
            threads.append(threading.Thread(target=self._prepare, name="woolly-upload-kernels", daemon=True))
            self._started = [thread for thread in self._started if thread.is_alive()]
            # With the lock held: `end` joins none that was not started, and none leaves before it is counted.
            for thread in threads:
                try:
                    thread.start()
                except RuntimeError:  # the system grants no more threads
                    if not self._threads:
                        raise
                    break
                self._threads.add(thread)
                self._started.append(thread)

    def end(self) -> None:
        """Ends the threads after the pieces that they are at. What is loaded stays; `wait` goes on with the rest."""
        with self._changed:
            threads, self._is_ended = list(self._started), True
        if threading.current_thread() in threads:
            return  # a program that nobody uses was found here: nothing can wait for the thread that waits
        for thread in threads:
            thread.join()

    def wait(self, n: int, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Returns when the first n weights are loaded. Raises what made loading fail.

        CancelledRun if the caller is cancelled meanwhile: `wake` has it look. Loading goes on.
        """
        while self._n_loaded < n:
            self.start()
            with self._changed:
                self._changed.wait_for(lambda: self._n_loaded >= n or not self._threads or is_cancelled())
                if self._error is not None:
                    raise self._error
            if is_cancelled():
                raise CancelledRun("the computation was cancelled")

    def wake(self) -> None:
        """Has those who wait see whether they are cancelled."""
        with self._changed:
            self._changed.notify_all()

    def _cut(self) -> Iterator[_Piece | None]:
        """All pieces in order of use; None after the last of each weight."""
        for number, weight in enumerate(self._weights):
            if isinstance(weight, Array):
                yield _Piece(number, weight)
            else:
                # Parts are alike, and one packs into what the other packed: one thread does both, in turn.
                n_rows, _, n_chunk = self._rows(weight.parts[0])
                for first in range(0, n_rows, n_chunk):
                    yield _Piece(number, weight, weight.parts, first, min(n_rows, first + n_chunk))
            yield None

    def _next(self) -> _Piece | None:
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._awaited is None or self._error is not None)
                if self._is_ended or self._error is not None:
                    return None
                piece = next(self._pieces, None)
                if piece is not None:
                    self._left[piece.number] = self._left.get(piece.number, 0) + 1
                    if isinstance(piece.weight, Array) and piece.weight.is_first:
                        self._awaited = piece.number
                    return piece
                if self._n_begun == len(self._weights):
                    return None
                self._n_begun += 1
                self._count()

    def _finish(self, piece: _Piece) -> None:
        with self._changed:
            self._left[piece.number] -= 1
            if self._left[piece.number] == 0:
                del self._left[piece.number]
                self._count()
            if self._awaited == piece.number:
                self._awaited = None
                self._changed.notify_all()

    def _count(self) -> None:
        n = min(self._left, default=self._n_begun)
        if n != self._n_loaded:
            self._n_loaded = n
            self._changed.notify_all()

    def _prepare(self) -> None:
        try:
            while self._kernels and not self._is_ended and self._error is None:
                kernel = next(iter(self._kernels))
                self._device.prepare(kernel, self._kernels.pop(kernel))
        except (DeviceError, RequestError):
            pass  # its launch tells it again
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._changed:
            self._threads.discard(threading.current_thread())
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            device = self._device.beside()
            try:
                self._fill_all(device)
            finally:
                device.close()
        except BaseException as error:  # it is raised again by the run that needs the weight
            with self._changed:
                self._error = self._error or error
        finally:
            self._leave()

    def _fill_all(self, device: Device) -> None:
        staged: Address | None = None
        room = 0
        under_way: deque[tuple[int, _Piece]] = deque()
        try:
            while (piece := self._next()) is not None:
                needed = self._staged_bytes(piece)
                if needed > room:
                    if staged is not None:
                        # Forgotten first: if there is no more memory, another thread may have this by now.
                        old, staged, room = staged, None, 0
                        device.free(old)
                    staged, room = device.allocate(needed), needed
                self._fill(device, piece, staged)
                under_way.append((device.mark(), piece))
                while len(under_way) > (0 if self._awaited == piece.number else _UNDER_WAY):
                    self._reach(device, *under_way.popleft())
            while under_way:
                self._reach(device, *under_way.popleft())
        finally:
            with suppress(DeviceError):  # a device that is lost has no memory to give back
                device.wait()  # what failed may have left copies on their way
                if staged is not None:
                    device.free(staged)

    def _reach(self, device: Device, mark: int, piece: _Piece) -> None:
        device.reach(mark)
        self._finish(piece)

    def _rows(self, part: TensorPart) -> tuple[int, int, int]:
        """Rows of the tensor, bytes of a row, rows of a piece."""
        tensor = self._views[part.name]
        n_rows, row_bytes = math.prod(tensor.shape[:-1]), tensor.type.row_bytes(tensor.shape[-1])
        step = part.rows if part.pack is not None else 1
        if step == 0:
            return n_rows, row_bytes, max(n_rows, 1)
        return n_rows, row_bytes, max(1, _STAGED // (row_bytes * step)) * step

    def _staged_bytes(self, piece: _Piece) -> int:
        packed = (part for part in piece.parts if part.pack is not None)
        return max((self._rows(part)[1] * (piece.last - piece.first) for part in packed), default=0)

    def _fill(self, device: Device, piece: _Piece, staged: Address | None) -> None:
        weight = piece.weight
        if isinstance(weight, Array):
            device.upload(weight.address, np.ascontiguousarray(weight.make()))
            return
        for part in piece.parts:
            n_rows, row_bytes, _ = self._rows(part)
            rows = self._views[part.name].data.reshape(n_rows, row_bytes)[piece.first : piece.last]
            if part.pack is None:
                device.upload(weight.address + piece.first * row_bytes, np.ascontiguousarray(rows))
                continue
            assert staged is not None
            device.upload(staged, np.ascontiguousarray(rows))
            part.pack(device, weight.address, staged, piece.first, len(rows))
