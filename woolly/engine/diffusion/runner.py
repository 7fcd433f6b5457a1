"""DiffusionRunner: denoises the answers of several requests, one batch between two engine steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.engine.diffusion.canvas import Canvas
from woolly.engine.diffusion.settings import read_settings
from woolly.runtime import Batch, CancelledRun, LostState, Program, State, pages_for

if TYPE_CHECKING:
    from woolly.engine.request import Request
    from woolly.plan import MaskedDiffusion

Float32 = npt.NDArray[np.float32]

_MAX_ROWS = 512  # rows of a batch of several requests; more would not be faster


class DiffusionRunner:
    """Runs requests round-robin. Only the engine thread may call it.

    Attention is bidirectional, so nothing is cached: a step computes all tokens of a request in one batch, in pages of
    the engine's state, which no other request uses.
    """

    def __init__(
        self,
        program: Program,
        state: State,
        model: MaskedDiffusion,
        *,
        n_pages: int,
        check_file: Callable[[], None] | None = None,
    ) -> None:
        """`n_pages` is the size of the state."""
        self._program = program
        self._state = state
        self._model = model
        self._n_pages = n_pages
        self._check_file = check_file
        self._waiting: deque[tuple[Request, Canvas]] = deque()
        self._computing: Sequence[Request] = ()
        self._is_aborted = False
        self.n_steps = 0

    @property
    def requests(self) -> list[Request]:
        """Unfinished requests."""
        return [request for request, _ in self._waiting if request.finish_reason is None]

    @property
    def is_idle(self) -> bool:
        """True if there are no requests."""
        return not self.requests

    def add(self, request: Request) -> None:
        """Queue a request."""
        assert request.max_tokens is not None
        settings = read_settings(request.params, request.max_tokens, self._model, request.sampler.seed)
        request.begun = request.queued = time.monotonic()
        self._waiting.append((request, Canvas(request.prompt, request.max_tokens, self._model, settings)))

    def swap(self, program: Program) -> None:
        """Switch to another program of the same model."""
        self._program = program

    def abandon(self) -> None:
        """Stop the current run if all of its requests are cancelled. Any thread may call it."""
        computing = self._computing
        if computing and all(request.is_unwanted for request in computing):
            self._program.cancel()

    def abort(self) -> None:
        """Prevent later runs; the engine stops the current run. Any thread may call it."""
        self._is_aborted = True

    def turn(self) -> list[tuple[Request, list[int]]]:
        """Run one denoising step of the next requests. Return the tokens of finished blocks."""
        self._waiting = deque(pair for pair in self._waiting if pair[0].finish_reason is None)
        packed = self._pack()
        if not packed:
            return []
        self._computing = [request for request, _ in packed]
        try:
            logits = self._rows([canvas.tokens for _, canvas in packed], packed)
            guided = [pair for pair in packed if _scale(pair[0])]
            free = self._rows([canvas.without_prompt() for _, canvas in guided], guided) if guided else {}
        finally:
            self._computing = ()
        if logits is None or free is None:
            return []
        self.n_steps += 1
        finished: list[tuple[Request, list[int]]] = []
        for request, canvas in packed:
            rows = logits[request]
            if request in free:  # classifier-free guidance
                rows = free[request] + np.float32(_scale(request) + 1) * (rows - free[request])
            if tokens := canvas.fill(rows):
                finished.append((request, tokens))
        self._waiting.rotate(-len(packed))
        return finished

    def _pack(self) -> list[tuple[Request, Canvas]]:
        """Return the requests of the next batch: at least one."""
        packed: list[tuple[Request, Canvas]] = []
        n_rows = n_pages = 0
        for request, canvas in self._waiting:
            n_rows, n_pages = n_rows + len(canvas.tokens), n_pages + pages_for(len(canvas.tokens))
            if packed and (n_rows > _MAX_ROWS or n_pages > self._n_pages):
                break
            packed.append((request, canvas))
        return packed

    def _rows(
        self, tokens: Sequence[npt.NDArray[np.int32]], packed: Sequence[tuple[Request, Canvas]]
    ) -> dict[Request, Float32] | None:
        """Return the logits that each request needs, or None if the run was cancelled."""
        sequences, outputs, ends, first, n_pages = [], [], [0], 0, 0
        for ids, (_, canvas) in zip(tokens, packed, strict=True):
            pages = range(n_pages, n_pages + pages_for(len(ids)))
            sequences.append((ids.tolist(), 0, pages))
            outputs += (canvas.rows() + first).tolist()
            ends.append(len(outputs))
            first, n_pages = first + len(ids), pages.stop
        batch = Batch.of(sequences, outputs)
        if packed[0][0].adapters:
            batch = replace(batch, adapters=np.array([request.adapters for request, _ in packed], np.float32))
        logits = self._run(batch)
        if logits is None:
            return None
        return {request: logits[ends[i] : ends[i + 1]] for i, (request, _) in enumerate(packed)}

    def _run(self, batch: Batch) -> Float32 | None:
        while not (self._is_aborted or all(request.is_unwanted for request in self._computing)):
            try:
                if self._check_file is not None:
                    self._check_file()
                logits: Float32 = self._program.run(batch, self._state).copy()
                if self._check_file is not None:
                    self._check_file()
                return logits
            except (CancelledRun, LostState):
                pass  # a late cancel() of the previous run, or lost memory: nothing is kept between steps
        return None


def _scale(request: Request) -> float:
    return request.params.diffusion_cfg_scale
