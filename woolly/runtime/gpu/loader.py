"""Background loader: uploads weights from the file to the device, in order of use."""

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
from woolly.runtime.gpu.emitter import Array, Fill, TensorPart
from woolly.runtime.program import CancelledRun
from woolly.runtime.weight_views import WeightViews

# Size of each thread's staging buffer on the device, for data to be repacked.
_STAGED = 16 << 20
# One thread copies 6 to 10 GB/s; the PCIe bus takes 50.
_MAX_THREADS = 6
# Copies in flight per thread while it prepares the next.
_UNDER_WAY = 2


@dataclass(frozen=True)
class _Piece:
    """Unit of upload: a row range of the tensors of a weight, or an entire array made on the host."""

    number: int  # index of the weight
    weight: Fill | Array
    parts: tuple[TensorPart, ...] = ()
    first: int = 0
    last: int = 0


class Loader:
    """Uploads weights and prepares kernels in background threads. `wait` blocks until weights are loaded."""

    def __init__(
        self,
        device: Device,
        views: WeightViews,
        weights: Sequence[Fill | Array],
        kernels: Mapping[str, int] | None = None,
    ) -> None:
        self._device = device
        self._kernels = dict(kernels or {})  # dynamic shared memory by name, in order of use
        self._views = views
        self._weights = weights
        self._changed = threading.Condition()
        self._pieces = self._cut()
        self._left: dict[int, int] = {}  # unfinished pieces per weight
        self._n_begun = 0  # weights with all pieces begun
        self._n_loaded = 0  # complete weights at the front of the order
        self._awaited: int | None = None  # a weight that must be complete before another piece is begun
        self._error: BaseException | None = None
        self._is_ended = False
        self._threads: set[threading.Thread] = set()  # threads with work left
        self._started: list[threading.Thread] = []  # all started threads, including ones about to end
        self.n_bytes = sum(weight.n_bytes for weight in weights)

    @property
    def n_missing(self) -> int:
        """Bytes of the weights that are not on the device yet."""
        return sum(weight.n_bytes for weight in self._weights[self._n_loaded :])

    def start(self) -> None:
        """Start the threads, unless all weights are loaded or the threads are already running."""
        with self._changed:
            if self._threads or self._n_loaded == len(self._weights) or self._error is not None:
                return
            self._is_ended = False
            names = [f"woolly-upload-{i}" for i in range(min(_MAX_THREADS, default_threads()))]
            threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
            threads.append(threading.Thread(target=self._prepare, name="woolly-upload-kernels", daemon=True))
            self._started = [thread for thread in self._started if thread.is_alive()]
            # Start threads with the lock held: `end` joins only started threads, and no thread may end before it is
            # counted.
            for thread in threads:
                try:
                    thread.start()
                except RuntimeError:  # the thread limit of the system is reached
                    if not self._threads:
                        raise
                    break
                self._threads.add(thread)
                self._started.append(thread)

    def end(self) -> None:
        """Stop the threads after their current pieces. Loaded weights stay loaded, and `wait` resumes with the rest."""
        with self._changed:
            threads, self._is_ended = list(self._started), True
        if threading.current_thread() in threads:
            return  # called by the garbage collector on a loader thread, which cannot join itself
        for thread in threads:
            thread.join()

    def wait(self, n: int, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Block until the first n weights are loaded. Re-raise an error of the loader.

        Raises CancelledRun if the caller was cancelled (`wake` triggers the check). Loading continues.
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
        """Wake waiting callers, so that they check for cancellation."""
        with self._changed:
            self._changed.notify_all()

    def _cut(self) -> Iterator[_Piece | None]:
        """Yield all pieces in order of use, and None after the last piece of each weight."""
        for number, weight in enumerate(self._weights):
            if isinstance(weight, Array):
                yield _Piece(number, weight)
            else:
                # All parts have one shape and are packed into the same blocks, so one thread packs them in order.
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
            pass  # the launch raises the error again
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._changed:
            self._threads.discard(threading.current_thread())
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            device = self._device.new_stream()
            try:
                self._fill_all(device)
            finally:
                device.close()
        except BaseException as error:  # the run that needs the weight raises it again
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
                        # Reset first: if `allocate` fails, the freed buffer may belong to another thread already.
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
            with suppress(DeviceError):  # nothing to free on a lost device
                device.wait()  # copies may be in flight after an error
                if staged is not None:
                    device.free(staged)

    def _reach(self, device: Device, mark: int, piece: _Piece) -> None:
        device.reach(mark)
        self._finish(piece)

    def _rows(self, part: TensorPart) -> tuple[int, int, int]:
        """Return the rows of the tensor, bytes per row and rows per piece."""
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
