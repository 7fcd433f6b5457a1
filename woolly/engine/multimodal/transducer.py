"""TransducerDecoder: a CTC head, or the joint and prediction networks of RNN-T and TDT."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.runtime import Batch, Options, Program, State, get_backend, pages_for

if TYPE_CHECKING:
    from woolly.multimodal.encoder.transducer import DecoderType, TracedTransducer

Float32 = npt.NDArray[np.float32]

_ROWS = 256  # frames per run of the joint network


class TransducerDecoder:
    """Programs of a traced transducer. Thread-safe; runs concurrently with engine steps."""

    def __init__(self, traced: TracedTransducer, joint: Program, predictor: Program | None) -> None:
        self._traced = traced
        self._lock = threading.Lock()
        self._joint, self._predictor = joint, predictor
        self._states: dict[int, State] = {}

    @property
    def kind(self) -> DecoderType:
        """Decoder type."""
        return self._traced.kind

    @property
    def blank(self) -> int:
        """Blank token, the last id of the vocabulary."""
        return self._traced.n_tokens - 1

    @property
    def durations(self) -> tuple[int, ...]:
        """Frames per duration class; empty unless the decoder is TDT."""
        return self._traced.durations

    @property
    def max_symbols(self) -> int:
        """Maximum number of tokens per frame."""
        return self._traced.max_symbols

    def new_state(self) -> Float32:
        """Return the initial LSTM state."""
        return np.zeros(self._traced.n_state, np.float32)

    def predict(self, token: int, state: Float32) -> tuple[Float32, Float32]:
        """Run the prediction network for a token; return its output and the new state."""
        assert self._predictor is not None
        (row,) = self._run(self._predictor, state[None], token)
        n = self._traced.joint.values[0].width
        return row[:n], row[n:]

    def logits(self, rows: Float32) -> Float32:
        """Run the joint network or CTC head; return logits [n, tokens + durations]."""
        parts = [self._run(self._joint, rows[at : at + _ROWS]) for at in range(0, len(rows), _ROWS)]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _run(self, program: Program, rows: Float32, token: int = 0) -> Float32:
        n = len(rows)
        batch = Batch.of([([token] * n, 0, range(pages_for(n)))], range(n))
        batch = replace(batch, hidden=np.ascontiguousarray(rows))
        with self._lock:
            state = self._states.get(id(program))
            if state is None:
                state = self._states[id(program)] = program.new_state(pages_for(_ROWS))
            out: Float32 = program.run(batch, state).copy()
            return out

    def close(self) -> None:
        """Stop loading weights."""
        self._joint.close()
        if self._predictor is not None:
            self._predictor.close()


def open_transducer(traced: TracedTransducer, backend: str, options: Options) -> TransducerDecoder:
    """Compile the decoder for the backend of its encoder."""
    its = Options(threads=options.threads, max_rows=_ROWS)
    programs: list[Program] = []
    try:
        for plan in (traced.joint, traced.predictor):
            if plan is not None:
                programs.append(get_backend(backend).compile(plan, traced.tensors, its))
                programs[-1].load_weights()
    except BaseException:
        for program in programs:
            program.close()
        raise
    return TransducerDecoder(traced, programs[0], programs[1] if len(programs) > 1 else None)
