"""KL divergence of a model with some quantized weights from the original.

Only computes layers from the first changed layer on, because the original's hidden states at range boundaries are
cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from woolly.engine.input_processor import check_next_token
from woolly.engine.loading.context_length import context_limit
from woolly.errors import RequestError
from woolly.gguf import GGUFFile, MemoryMap, Tensor
from woolly.measure.bit_allocation.groups import Types
from woolly.measure.perplexity import log_total
from woolly.measure.slot_rotation import SlotRotation
from woolly.models import trace
from woolly.plan import Plan, Weight
from woolly.plan.passes import layer_split_points, slice_layers
from woolly.quant import GGMLType
from woolly.quantize import ImportanceMatrix
from woolly.quantize.recipe import Change
from woolly.quantize.write_gguf import encode_slab
from woolly.runtime import Batch, Options, Program, get_backend, pages_for

Float32 = npt.NDArray[np.float32]
# Cache size for encoded weights.
_KEPT = 1 << 30


@dataclass(frozen=True)
class Loss:
    """KL divergence and perplexity of a file, compared with the original."""

    kl: float  # mean over the scored tokens, in nats
    same_top: float  # share of tokens with the same top token


@dataclass
class _Window:
    batch: Batch
    logits: Float32  # logits of the original's scored rows
    totals: npt.NDArray[np.float64]
    hidden: dict[int, Float32]  # layer to input rows


class KlMeter:
    """Measures losses against the original model, whose logits on windows of a text are cached."""

    def __init__(
        self,
        file: GGUFFile,
        windows: Sequence[Sequence[int]],
        *,
        threads: int,
        backend: str = "cpu",
        imatrix: ImportanceMatrix | None = None,
    ) -> None:
        self._file = file
        self._ctx = len(windows[0])
        self._plan = trace(file, "logits", None, self._ctx)
        check_next_token(self._plan)
        limit = context_limit(file, self._plan)
        if not 8 <= self._ctx <= limit:
            raise RequestError(f"ctx is {self._ctx}; expected an integer from 8 to {limit}", field="ctx")
        self._options = Options(threads=threads, max_rows=self._ctx)
        self._threads = threads
        self._backend = get_backend(backend)
        self._imatrix = imatrix
        self._encoded: dict[tuple[str, GGMLType], Tensor] = {}
        self._rests: dict[int, Program] = {}  # first layer to program
        self._pages = range(pages_for(self._ctx))
        self._slots = SlotRotation(self._plan)
        self._layers = [] if self._slots.n_slots else sorted(layer_split_points(self._plan))
        program = self._backend.compile(self._plan, file.tensors, self._options)
        try:
            self._windows = [self._observe(program, window) for window in windows]
        finally:
            program.close()

    def measure(self, types: Types) -> Loss:
        """Measure the loss with these types. Other weights are unchanged."""
        changed = {name: type for name, type in types.items() if type is not self._file.tensors[name].type}
        if not changed:
            return Loss(0.0, 1.0)
        first, then = self._first_layer(changed), self._layer_after(changed)
        last = self._n_layers - 1 if then is None else then - 1
        plan = self._plan if first is None and then is None else slice_layers(self._plan, first or 0, last)
        plan = _retyped(plan, changed)
        tensors = {**self._file.tensors, **{name: self._encode(name, type) for name, type in changed.items()}}
        if then is None:
            self.close()  # free the previous program first, because both may not fit into memory
        rest = None if then is None else self._rest(then)
        program = self._backend.compile(plan, tensors, self._options)
        try:
            state = program.new_state(len(self._pages), self._slots.n_slots)
            losses, tops = [], []
            for window in self._windows:
                batch = window.batch
                if first is not None:
                    batch = replace(batch, hidden=window.hidden[first], is_hidden_normed=True)
                rows = program.run(batch, state)
                if rest is not None:
                    batch = replace(window.batch, hidden=rows.copy(), is_hidden_normed=True)
                    rows = rest.run(batch, rest.new_state(len(self._pages), self._slots.n_slots))
                kl, same = _compare(rows, window)
                losses.append(kl)
                tops.append(same)
        finally:
            program.close()
        return Loss(float(np.concatenate(losses).mean()), float(np.concatenate(tops).mean()))

    def close(self) -> None:
        """Free the prepared layers. They are prepared again when needed."""
        rests, self._rests = self._rests, {}
        for program in rests.values():
            program.close()

    @property
    def _n_layers(self) -> int:
        return 1 + max(int(layer.rpartition(".")[2]) for layer in self._plan.layers if layer)

    def _first_layer(self, changed: Types) -> int | None:
        """Return the last boundary before all changes, or None to compute from the start of the model."""
        layers = []
        for name in changed:
            where, _, rest = name.partition(".")
            layers.append(int(rest.partition(".")[0]) if where == "blk" else self._n_layers - 1)
            # The token embedding is read at the start, and again at the end if it is tied.
            if where not in ("blk", "output"):
                return None
        known = [layer for layer in self._layers if layer <= min(layers) and layer > 0]
        return known[-1] if known else None

    def _layer_after(self, changed: Types) -> int | None:
        """Return the first boundary after all changes.

        Return None if there is no such boundary, or if weights after the layers change, too. This includes a tied
        embedding.
        """
        if any(not name.startswith("blk.") for name in changed):
            return None
        last = max(int(name.split(".")[1]) for name in changed)
        return next((layer for layer in self._layers if layer > last), None)

    def _rest(self, first: int) -> Program:
        """Return the original from a layer on. It is cached: preparing weights takes a sixth of the time (SmolLM2)."""
        if first not in self._rests:
            self.close()  # keep only one program to limit memory
            plan = slice_layers(self._plan, first, self._n_layers - 1)
            self._rests = {first: self._backend.compile(plan, self._file.tensors, self._options)}
        return self._rests[first]

    def _observe(self, program: Program, window: Sequence[int]) -> _Window:
        """Compute the original's logits of the second half of a window, and its hidden states."""
        n = len(window)
        scored = list(range(n // 2, n - 1))
        batch = Batch.of([(list(window), 0, self._pages)], scored, slots=self._slots.next([0], 0))
        state = program.new_state(len(self._pages), self._slots.n_slots)
        hidden: dict[int, Float32] = {}
        running, done = program.running_plan, 0
        for layer, at in layer_split_points(running).items() if self._layers else ():
            made = {value for step in running.steps[:at] for value in step.outputs}
            needed = {value for step in running.steps[at:] for value in step.inputs} & made
            if layer not in self._layers or not layer or needed != {running.steps[at - 1].outputs[-1]}:
                continue
            hidden[layer] = program.run(batch, state, done, at).copy()
            done = at
        logits = program.run(batch, state, done).copy()
        self._layers = [layer for layer in self._layers if layer in hidden]
        return _Window(batch, logits, log_total(logits), hidden)

    def _encode(self, name: str, type: GGMLType) -> Tensor:
        key = (name, type)
        if key not in self._encoded:
            tensor = self._file.tensors[name]
            while self._encoded and sum(kept.n_bytes for kept in self._encoded.values()) > _KEPT:
                del self._encoded[next(iter(self._encoded))]
            importance = None if self._imatrix is None else self._imatrix.columns_of(tensor)
            matrices = tensor.data.reshape(1 if importance is None else len(importance), -1, tensor.data.shape[-1])
            parts = [
                encode_slab(
                    Change(tensor, type), matrix, self._threads, None if importance is None else importance[i], 0
                )
                for i, matrix in enumerate(matrices)
            ]
            self._encoded[key] = Tensor(name, type, tensor.shape, 0, MemoryMap(name, np.concatenate(parts)))
        return self._encoded[key]


def _retyped(plan: Plan, types: Types) -> Plan:
    """Return the plan with other weight types."""

    def of(weight: Weight) -> Weight:
        return replace(weight, type=types.get(weight.tensor, weight.type))

    return replace(plan, steps=tuple(replace(step, weights=tuple(map(of, step.weights))) for step in plan.steps))


def _compare(rows: Float32, window: _Window) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    totals = log_total(rows)
    shares = np.exp(window.logits - window.totals.astype(np.float32)[:, None])
    # KL is the mean of log p - log q under p. The normalizers are added outside of the sum.
    kl = np.einsum("ij,ij->i", shares, window.logits - rows, dtype=np.float64) - window.totals + totals
    return np.maximum(kl, 0), rows.argmax(axis=1) == window.logits.argmax(axis=1)
