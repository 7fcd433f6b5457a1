"""EncoderScheduler: runs the vision or audio encoder one slice per engine step, and caches its output."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from woolly.engine.multimodal.encoder_decoder import Source
    from woolly.engine.multimodal.encoder_run import EncoderRun
    from woolly.engine.multimodal.multimodal_input import Key, MultimodalInput, PlaceholderRange
    from woolly.engine.multimodal.tower import Tower
    from woolly.multimodal import EncoderInput

Float32 = npt.NDArray[np.float32]

# Bytes of cached rows: about 100 images of 256 rows and 2,560 columns.
_MAX_BYTES = 256 << 20


class EncoderRequest(Protocol):
    """Interface of a request for the encoder scheduler."""

    @property
    def multimodal(self) -> MultimodalInput | None:
        """Multimodal input of the request."""

    @property
    def n_computed(self) -> int:
        """Number of computed positions, which need no more encoder rows."""

    @property
    def is_unwanted(self) -> bool:
        """True if the client cancelled the request."""


class EncoderScheduler:
    """Encoder of an engine, with pending inputs and an output cache. Only the engine thread may call it."""

    def __init__(
        self,
        tower: Tower | Source,
        check_file: Callable[[], None] | None = None,
        max_bytes: int = _MAX_BYTES,
        work: float | None = None,
    ) -> None:
        """`work` is the number of multiply-adds per slice; a default slice takes about as long as a prefill step."""
        self.tower = tower
        self._check_file = check_file
        self._max_bytes = max_bytes
        self._work = tower.slice_work if work is None else work
        self._kept: OrderedDict[Key, Float32] = OrderedDict()  # in LRU order
        self._n_bytes = 0
        self._run: tuple[dict[Key, int], EncoderRun] | None = None  # row count of each input, and its run
        self._waiting: tuple[EncoderRequest, ...] = ()  # requests whose next input is in the current run
        self._is_aborted = False

    @property
    def n_bytes(self) -> int:
        """Bytes of cached rows."""
        return self._n_bytes

    def attach(self, requests: Iterable[EncoderRequest]) -> None:
        """Attach cached rows to the requests that need them next."""
        for request in requests:
            inputs = request.multimodal
            while inputs is not None and (place := inputs.next_missing(request.n_computed)) is not None:
                rows = self._kept.get(place.key)
                if rows is None:
                    break
                self._kept.move_to_end(place.key)
                inputs.embeddings[place.key] = rows

    def step(self, requests: Iterable[EncoderRequest]) -> None:
        """Advance the first pending input, together with inputs that fit the same slice.

        Inputs that no request needs are dropped.
        """
        running = tuple(requests)
        wanted = self._pending(running)
        if not wanted or self._is_aborted:
            self._run = None
            return
        if self._run is None or not any(key in wanted for key in self._run[0]):
            self._run = self._start(wanted)
        keys, run = self._run
        self._waiting = tuple(one for one in running if _is_next(one, keys))
        try:
            self._check()
            rows = run.advance(self._work)
            self._check()
        except BaseException:
            self._run = None
            raise
        finally:
            self._waiting = ()
        if rows is not None:
            self._run = None
            parts = np.split(rows, np.cumsum(list(keys.values()))[:-1])
            for key, part in reversed(list(zip(keys, parts, strict=True))):  # evict the first input last
                self._keep(key, part.copy() if len(keys) > 1 else part)

    def _start(self, wanted: dict[Key, PlaceholderRange]) -> tuple[dict[Key, int], EncoderRun]:
        """Start a run of the first input, batched with others while the total work fits one slice."""
        (first, place), *others = wanted.items()
        kind, inputs = place.placeholder.source.kind, {first: _piece_of(place)}
        for key, other in others:
            together = inputs | {key: _piece_of(other)}
            if other.placeholder.source.kind != kind:
                continue
            if self.tower.batch_work(list(together.values()), kind) > self._work:
                break
            inputs = together
        counts = {key: self.tower.n_rows(encoder_input, kind) for key, encoder_input in inputs.items()}
        return counts, self.tower.start_batch(list(inputs.values()), kind)

    def abandon(self) -> None:
        """Stop the current slice if all requests that wait for it are cancelled. Thread-safe.

        A slice of a large image can take seconds on a small machine.
        """
        waiting = self._waiting
        if waiting and all(request.is_unwanted for request in waiting):
            self.tower.cancel()

    def abort(self) -> None:
        """Stop the current run and prevent later runs. Thread-safe."""
        self._is_aborted = True
        self.tower.cancel()

    def _pending(self, requests: Iterable[EncoderRequest]) -> dict[Key, PlaceholderRange]:
        """Return the inputs to encode: first the next input of each request, then later inputs."""
        views = ((request.multimodal, request.n_computed) for request in requests)
        missing = [inputs.missing(first) for inputs, first in views if inputs is not None]
        places = [*(own[0] for own in missing if own), *(place for own in missing for place in own[1:])]
        return {place.key: place for place in places if place.key not in self._kept}

    def _keep(self, key: Key, rows: Float32) -> None:
        rows.setflags(write=False)
        self._kept[key] = rows
        self._n_bytes += rows.nbytes
        while self._n_bytes > self._max_bytes and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._n_bytes -= dropped.nbytes

    def _check(self) -> None:
        if self._check_file is not None:
            self._check_file()


def _is_next(request: EncoderRequest, keys: Container[Key]) -> bool:
    """True if the next input of a request is among these inputs."""
    place = None if request.multimodal is None else request.multimodal.next_missing(request.n_computed)
    return place is not None and place.key in keys


def _piece_of(place: PlaceholderRange) -> EncoderInput:
    return place.placeholder.source.inputs[place.placeholder.index]
