"""PipelineProgram: a plan split between layers (pipeline parallelism), with each part in a separate process."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from woolly.errors import PlanError, RequestError, StageError
from woolly.gguf import Tensor
from woolly.plan import Plan
from woolly.plan.passes import balance_layers, merge_parts, slice_layers
from woolly.plan.serialize import plan_digest
from woolly.runtime.arithmetic_version import ARITHMETIC_VERSION
from woolly.runtime.batch import Batch
from woolly.runtime.options import Options
from woolly.runtime.pipeline.stage_client import StageClient
from woolly.runtime.program import About, CancelledRun, LostState, WeightStats, checked_range
from woolly.runtime.stage_addresses import Stages
from woolly.runtime.state import State
from woolly.wire import LostConnection, WireMessage

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Result = TypeVar("Result")

_AGAIN = 0.25  # seconds between attempts to reach a lost stage


class PipelineState:
    """Pages and slots that the stages store under the same state number."""

    is_portable = False  # a stage may be lost while a page is copied

    def __init__(self, program: PipelineProgram, n_pages: int, n_slots: int, window_pages: Sequence[int]) -> None:
        self.number = next(program.numbers)
        self.n_pages = n_pages
        self.n_slots = n_slots
        self.wanted = {
            "state": self.number,
            "n_pages": n_pages,
            "n_slots": n_slots,
            "window_pages": [int(n) for n in window_pages],
        }
        self.generation = 0
        self._program = program
        self.sizes: list[tuple[list[int], int, int]] = []  # per stage: page bytes by table, slot bytes, total bytes
        weakref.finalize(self, program.dropped.append, self.number).atexit = False

    @property
    def page_bytes(self) -> int:
        """Size of one page, over all stages."""
        return sum(self.page_sizes)

    @property
    def page_sizes(self) -> tuple[int, ...]:
        """Size of one page by table, over all stages."""
        return tuple(map(sum, zip(*(pages for pages, _, _ in self.sizes), strict=True)))

    @property
    def slot_bytes(self) -> int:
        """Size of one slot, over all stages."""
        return sum(slot for _, slot, _ in self.sizes)

    @property
    def n_bytes(self) -> int:
        """Size of all pages and slots, used or not."""
        return sum(whole for _, _, whole in self.sizes)

    def read_page(self, page: int, table: int = 0) -> Bytes:
        """Return a copy of a page of one table, concatenated over the stages."""
        return self._program.copy(self, {"number": page, "table": table})

    def write_page(self, page: int, data: Bytes, table: int = 0) -> None:
        """Overwrite a page of one table with a copy."""
        what = {"number": page, "table": table}
        self._program.paste(self, what, data, [pages[table] for pages, _, _ in self.sizes])

    def read_slot(self, slot: int) -> Bytes:
        """Return a copy of a slot."""
        return self._program.copy(self, {"number": slot})

    def write_slot(self, slot: int, data: Bytes) -> None:
        """Overwrite a slot with a copy."""
        self._program.paste(self, {"number": slot}, data, [size for _, size, _ in self.sizes])


class PipelineProgram:
    """Plan with its parts in stages.

    If a stage is lost, the program waits for it to return. All states are then empty, and raise LostState once.
    """

    draft = None  # a draft would need the values of the last stage

    def __init__(self, plan: Plan, stages: Stages, backend: str, options: Options) -> None:
        self.plan = plan
        self.max_rows = options.rows()
        self.numbers = itertools.count()  # state numbers
        self.dropped: list[int] = []  # numbers of states that were garbage-collected
        self._stages = stages
        self._states: weakref.WeakValueDictionary[int, PipelineState] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        self._cancelled = threading.Event()
        self._generation = 0  # number of lost stages so far
        self._carried: Float32 | None = None  # result of the last run, if it ended between two stages
        instance = secrets.token_hex(16)
        self._places = [StageClient(addresses, stages.token, instance) for addresses in stages.places]
        try:
            for place in self._places:
                self._keep_trying(partial(place.dial, self._go_on))
            layers = balance_layers(plan, [place.memory for place in self._places])
            self._open: list[dict[str, Any]] = [
                {
                    "arithmetic": ARITHMETIC_VERSION,
                    "model": stages.model,
                    "ctx": stages.ctx,
                    "layers": [first, last],
                    "plan": plan_digest(slice_layers(plan, first, last)),
                    "backend": backend,
                    "kv_type": options.kv_type,
                    "level": options.level,
                    "max_rows": options.rows(),
                }
                for first, last in layers
            ]
            for place, fields in zip(self._places, self._open, strict=True):
                self._warn_if_small(place, slice_layers(plan, *fields["layers"]))
                self._keep_trying(partial(self._connect, place, fields))
        except BaseException:
            self.close()
            raise
        self.running_plan = merge_parts(plan, [place.steps for place in self._places])
        ends = list(itertools.accumulate(len(p.steps) - bool(i) for i, p in enumerate(self._places)))
        self._ranges = list(zip([0, *ends], ends, strict=False))  # step range of the running plan, by place

    @property
    def about(self) -> About:
        """Combined `About` of the stages, with all levels and with the total threads and memory."""
        abouts = [place.about for place in self._places]
        levels = sorted({about.level for about in abouts if about.level is not None})
        return replace(
            abouts[0],
            level="+".join(levels) or None,
            threads=sum(about.threads for about in abouts),
            arena_bytes=sum(about.arena_bytes for about in abouts),
            arithmetic=abouts[0].arithmetic if len({about.bits for about in abouts}) == 1 else "",
        )

    @property
    def layers(self) -> list[tuple[str, int, int]]:
        """Return (stage name, first layer, last layer) of each stage."""
        return [(str(place), *fields["layers"]) for place, fields in zip(self._places, self._open, strict=True)]

    def load_weights(self) -> None:
        """Do nothing, because each stage loads its weights when it compiles its part."""

    def close(self) -> None:
        """Close the connections, so that the stages can serve other clients."""
        with self._lock:
            for place in self._places:
                place.drop()

    def new_state(self, n_pages: int, n_slots: int = 0, window_pages: Sequence[int] = ()) -> PipelineState:
        """Return an empty cache in all stages."""
        state = PipelineState(self, n_pages, n_slots, window_pages)

        def make() -> list[tuple[list[int], int, int]]:
            return [self._make_state(place, state) for place in self._places]

        with self._lock:
            state.sizes = self._in_stages(make)
            state.generation = self._generation
            self._states[state.number] = state
        return state

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> Float32:
        """Run steps in their stages. Raises LostState if a stage lost the contents of the state."""
        if not isinstance(state, PipelineState) or state.number not in self._states:
            raise PlanError("the state belongs to another program; create one with new_state")
        first, last = checked_range(first, last, len(self.running_plan.steps))
        with self._lock:
            self._cancelled.clear()
            self._restore()
            self._check(state)
            value, self._carried = self._carried, None
            try:
                for place, (begin, end) in zip(self._places, self._ranges, strict=True):
                    at, until = max(first, begin), min(last, end)
                    if at < until:
                        value = self._run_part(place, batch, state, value, (begin, at, until))
            except LostConnection:
                self._restore()
                self._check(state)
                raise  # the connection was lost, so one of the two has raised
            assert value is not None
            if any(last == end for _, end in self._ranges[:-1]):
                self._carried = value
            return value

    def cancel(self) -> None:
        """Stop a run in progress within about a tenth of a second. Any thread may call it."""
        self._cancelled.set()

    @contextmanager
    def timed(self) -> Iterator[list[int]]:
        """Time every run in the block. When it ends, the list has nanoseconds per step, without the connections."""
        times: list[int] = []
        self._ask_all(WireMessage("time", {"on": True}))
        try:
            yield times
        finally:
            for i, reply in enumerate(self._ask_all(WireMessage("time", {"on": False}))):
                times += reply.fields["times"][1 if i else 0 :]

    def weight_stats(self) -> WeightStats:
        """Return the sums of hits and misses of the prepared weights over all stages, as of the last run."""
        stats = [place.weights for place in self._places]
        return WeightStats(*(sum(values) for values in zip(*(vars(one).values() for one in stats), strict=True)))

    def copy(self, state: PipelineState, what: Mapping[str, object]) -> Bytes:
        """Return the bytes of a page or slot."""
        fields = {"state": state.number, **what}
        parts = [reply.arrays["bytes"] for reply in self._ask_all(WireMessage("read", fields), state)]
        return np.concatenate(parts)

    def paste(self, state: PipelineState, what: Mapping[str, object], data: Bytes, sizes: Sequence[int]) -> None:
        """Overwrite a page or slot."""
        if len(data) != sum(sizes):
            raise ValueError("the bytes are not as many as the cache keeps there")
        fields = {"state": state.number, **what}
        ends = list(itertools.accumulate(sizes))
        with self._lock:
            self._restore()
            self._check(state)
            try:
                for place, end, size in zip(self._places, ends, sizes, strict=True):
                    place.ask(WireMessage("write", fields, {"bytes": data[end - size : end]}), self._go_on)
            except LostConnection:
                self._restore()
                self._check(state)
                raise

    def _run_part(
        self, place: StageClient, batch: Batch, state: PipelineState, value: Float32 | None, steps: tuple[int, int, int]
    ) -> Float32:
        """Run steps `at` to `until` of the running plan in the part that begins at step `begin`."""
        begin, at, until = steps
        if begin and at == begin:
            if value is None:
                raise PlanError(f"step {at} needs values that no earlier run computed; start at an earlier step")
            # The part has one more step at its beginning, which reads the hidden states.
            batch, local = replace(batch, hidden=value, is_hidden_normed=True), 0
        else:
            local = at - begin + bool(begin)
        fields = {
            "state": state.number,
            "first": local,
            "last": until - begin + bool(begin),
            "is_hidden_normed": batch.is_hidden_normed,
        }
        if self._cancelled.is_set():
            raise CancelledRun("the computation was cancelled")
        return place.run(fields, batch.arrays(), self._cancelled.is_set)

    def _ask_all(self, message: WireMessage, state: PipelineState | None = None) -> list[WireMessage]:
        def ask() -> list[WireMessage]:
            if state is not None:
                self._check(state)
            return [place.ask(message, self._go_on) for place in self._places]

        with self._lock:
            return self._in_stages(ask)

    def _in_stages(self, ask: Callable[[], Result]) -> Result:
        """Return the result of a function that calls all stages, called again if a stage is lost meanwhile."""
        while True:
            self._cancelled.clear()
            self._restore()
            with suppress(LostConnection):
                return ask()

    def _check(self, state: PipelineState) -> None:
        """Raise LostState if a stage was lost since the state was last used."""
        if state.generation != self._generation:
            state.generation = self._generation
            self._carried = None
            raise LostState("a stage was lost, together with its pages")

    def _restore(self) -> None:
        """Reconnect lost stages, recreate their states, and free the states that were garbage-collected."""
        for place, fields in zip(self._places, self._open, strict=True):
            if not place.is_connected:
                self._keep_trying(partial(self._connect, place, fields), is_lost=True)
                self._generation += 1
        while self.dropped:
            number = self.dropped.pop()
            for place in self._places:
                with suppress(LostConnection):
                    place.say(WireMessage("free", {"state": number}))

    def _connect(self, place: StageClient, fields: Mapping[str, object]) -> None:
        """Connect if needed, open the part, and create the program's states in it."""
        try:
            if not place.is_connected:
                place.dial(self._go_on)
            place.open(fields, self._go_on)
            for state in list(self._states.values()):
                self._make_state(place, state)
        except LostConnection as error:
            raise StageError(f"{place} cannot be reached: {error}") from None
        except BaseException:
            place.drop()
            raise

    def _make_state(self, place: StageClient, state: PipelineState) -> tuple[list[int], int, int]:
        reply = place.ask(WireMessage("state", state.wanted), self._go_on)
        pages, slot, whole = reply.fields["sizes"]
        return [int(page) for page in pages], int(slot), int(whole)

    def _keep_trying(self, attempt: Callable[[], None], is_lost: bool = False) -> None:
        """Repeat a failed attempt until the timeout. Do not retry if the first attempt fails with a permanent error."""
        end = time.monotonic() + self._stages.patience
        while True:
            try:
                return attempt()
            except StageError as error:
                if time.monotonic() > end or (error.code == "refused" and not is_lost):
                    raise
            if self._cancelled.wait(_AGAIN) and is_lost:
                raise CancelledRun("the computation was cancelled while it waited for a stage")

    def _go_on(self) -> None:
        """Continue waiting for a reply. Timeouts of stages are detected elsewhere."""

    def _warn_if_small(self, place: StageClient, part: Plan) -> None:
        n_bytes = sum(weight.n_bytes for weight in part.weights.values())
        if n_bytes > place.memory:
            warnings.warn(
                f"{place} gets {n_bytes / 1e9:.1f} GB of weights, but has {place.memory / 1e9:.1f} GB of memory left",
                stacklevel=2,
            )


class PipelineBackend:
    """Backend whose stages compile the parts of a plan on their machines."""

    levels = ()
    is_gpu = False  # the devices belong to the stages

    def __init__(self, name: str, stages: Stages) -> None:
        """`name` is the backend that every stage uses."""
        self.name = name
        self._stages = stages

    def is_available(self) -> bool:
        """True, because the stages report errors themselves."""
        return True

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> PipelineProgram:
        """Connect to all stages. `tensors` is not read, because each stage has a copy of the file."""
        if options.gpu_layers is not None:
            raise RequestError("stages place their layers on GPUs themselves; remove gpu_layers", field="gpu_layers")
        if plan.result != "logits":
            raise RequestError(
                f"only text-generation models can be split over stages; this one computes {plan.result}", field="stages"
            )
        if plan.draft is not None:
            raise RequestError("speculation 'mtp' reads values that stay in the last stage", field="speculation")
        return PipelineProgram(plan, self._stages, self.name, options)
