"""BatchSlot: device memory of the current batch, uploaded in one copy."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly.plan import Plan
from woolly.runtime.batch import Batch
from woolly.runtime.gpu.batch_checks import MAX_CONTEXT, StateAddresses, max_position
from woolly.runtime.gpu.device import Address, Device
from woolly.runtime.rope_tables import RopeTables

# struct Batch of native/cuda/primitives/common.cuh.
_COUNTS = (
    *("n_rows", "n_sequences", "n_output", "max_pages"),
    *("n_snapshots", "n_adapters", "is_hidden_normed", "max_length"),
)
_POINTERS = (
    *("tokens", "positions", "sequences", "offsets", "output_rows", "slots_in", "slots_out", "snapshots"),
    *("adapters", "hidden", "cosines", "sines", "slots", "entries"),
)
# Fields for encoders and injected embeddings: ImageBatch of native/gpu/primitives/images.slang.
_MULTIMODAL = ("rope_rows", "attn_ranges", "inputs_embeds", "embeds_at", "gather_rows", "gather_weights")
BATCH = np.dtype(
    [
        *((name, np.int32) for name in _COUNTS),
        *((name, np.uint64) for name in _POINTERS),
        ("rope_width", np.int32),
        ("pad", np.int32),
        *((name, np.uint64) for name in _MULTIMODAL),
        ("embeds_width", np.int32),
        ("n_gather", np.int32),
    ]
)

_ALIGNMENT = 16
_TABLE = "pages of"  # a page table: of full attention (None) or of a sliding window
_ARRAYS = (*_POINTERS[:10], *_MULTIMODAL[1:])
_ROPE = ("cosines", "sines", "rope_rows")  # for batches with rope positions
_PICKS = "picks"  # selects the tokens of the batch from the last ranking
_EMPTY, _BYTES = np.zeros(0, np.float32), np.zeros(0, np.uint8)
_SIDES = 3  # host copies: one in flight, one being filled, and possibly a dropped run between them
# Bytes for the arrays of most batches; larger ones get a separate allocation.
_BODY = 1 << 18


class BatchSlot:
    """Device memory for one batch. The address is fixed, because captured graphs refer to it."""

    def __init__(self, device: Device, tables: RopeTables) -> None:
        self._device = device
        self._rope_tables = tables
        self.address = device.allocate(BATCH.itemsize + _ALIGNMENT + _BODY)
        self._body = self.address + -(-BATCH.itemsize // _ALIGNMENT) * _ALIGNMENT
        self._large: Address | None = None
        self._large_bytes = 0
        self._tables: tuple[Address, Address] | None = None
        self._n_positions = 0
        self._rope_rows: tuple[Batch, Sequence[npt.NDArray[Any]]] | None = None
        n_bytes = int(self._body) - int(self.address) + _BODY
        self._pinned = [device.pinned(n_bytes) for _ in range(_SIDES)]
        # Sizes of the pinned buffers for arrays that do not fit behind the struct. They grow to the largest batch of
        # images.
        self._roomy = [_BYTES] * _SIDES
        self._layouts: list[_Layout | None] = [None] * _SIDES  # layout of the last batch on each side
        self._side = 0

    def fill(
        self, batch: Batch, state: StateAddresses, plan: Plan, picks: npt.NDArray[np.void] | None = None
    ) -> Address | None:
        """Queue the upload of a batch and its `picks`, and return the device address of the picks, or None.

        The run queued three batches earlier must be done.
        """
        longest = max_position(batch.positions) + 1
        tables = self._device_tables(longest)
        rope_rows = self._rope_rows_of(batch)
        shapes = (batch.tokens.shape, batch.offsets.shape, batch.output_rows.shape, batch.pages.shape)
        more = (batch.slots_in, batch.slots_out, batch.snapshots, batch.window_pages, batch.adapters, batch.hidden)
        seen = (batch.attn_ranges, batch.inputs_embeds, batch.gather_rows, *rope_rows)
        sizes = (None if array is None else array.shape for array in (*more, *seen, picks))
        key = (tables, batch.is_hidden_normed, *shapes, *sizes)
        self._side = side = (self._side + 1) % _SIDES
        kept = self._layouts[side]
        # Decode steps have the same shapes; only array contents change.
        if kept is None or kept.key != key or kept.plan is not plan or kept.state() is not state:
            self._layouts[side] = None  # may be overwritten before the new layout is complete
            kept = self._layouts[side] = self._lay_out(key, batch, state, plan, picks, rope_rows)
        for name, window, view in kept.views:
            view[...] = _array(batch, name, window, rope_rows)
        if picks is not None:
            kept.picks[...] = picks
        kept.longest[0] = longest
        self._device.send(self.address, kept.head)
        if kept.base != self._body:
            self._device.send(kept.base, kept.body)
        return kept.picks_at

    def _lay_out(
        self,
        key: tuple[Any, ...],
        batch: Batch,
        state: StateAddresses,
        plan: Plan,
        picks: npt.NDArray[np.void] | None,
        rope_rows: Sequence[npt.NDArray[Any]],
    ) -> _Layout:
        """Lay out arrays of these shapes behind struct Batch, and set the pointers in it."""
        tables_of = (None, *range(len(plan.windows)))
        own = (*_ARRAYS, *(_ROPE if rope_rows else ()))
        sources = [*((name, None) for name in own), *((_TABLE, window) for window in tables_of)]
        names = {source: source[0] if source[0] != _TABLE else f"{_TABLE} {source[1]}" for source in sources}
        arrays = {names[source]: _array(batch, *source, rope_rows) for source in sources}
        slots, n_entries = state.slots(), len(plan.state) * 32
        at, n_bytes = {}, 0
        # Picks come first: their address is a kernel argument, and argument lists are cached.
        sizes = {_PICKS: 0 if picks is None else picks.nbytes}
        sizes |= {name: array.nbytes for name, array in arrays.items()}
        sizes |= {"slots": slots.nbytes, "entries": n_entries}
        for name, size in sizes.items():
            at[name] = n_bytes
            n_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        base = self._room(n_bytes)
        start = int(self._body) - int(self.address)
        is_small = base == self._body
        head = self._pinned[self._side][: start + (n_bytes if is_small else 0)]
        head[:] = 0
        body = head[start:] if is_small else self._roomy_body(n_bytes)

        def view(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return body[at[name] : at[name] + array.nbytes].view(array.dtype).reshape(array.shape)

        tables = [base + place for name, place in at.items() if name.startswith(_TABLE)]
        entries = state.entries(tables).reshape(-1).view(np.uint8)
        view("slots", slots)[:] = slots
        view("entries", entries)[:] = entries
        struct = head[: BATCH.itemsize].view(BATCH)
        struct["n_rows"], struct["n_sequences"] = batch.n_rows, batch.n_sequences
        struct["n_output"], struct["max_pages"] = len(batch.output_rows), batch.pages.shape[1]
        struct["n_snapshots"] = len(batch.snapshots)
        struct["n_adapters"] = 0 if batch.adapters is None else batch.adapters.shape[1]
        struct["is_hidden_normed"] = batch.is_hidden_normed
        (struct["cosines"], struct["sines"]), struct["rope_width"] = key[0], self._rope_tables.cosines.shape[1]
        struct["embeds_width"] = 0 if batch.inputs_embeds is None else batch.inputs_embeds.shape[1]
        struct["n_gather"] = 0 if batch.gather_rows is None else batch.gather_rows.shape[1]
        struct["rope_rows"] = base + at["positions"]
        for name, place in at.items():
            if name in (*_POINTERS, *_MULTIMODAL) and (name not in arrays or arrays[name].size):
                struct[name] = base + place
        views = []
        for source, name in names.items():
            if arrays[name].size:
                views.append((*source, view(name, arrays[name])))
                if name in ("sequences", "offsets") and batch.n_sequences == batch.n_rows:
                    views.pop()[2][...] = arrays[name]  # equal in all batches of these shapes
        picks_at = None if picks is None else base + at[_PICKS]
        room = _EMPTY if picks is None else view(_PICKS, picks)
        return _Layout(key, plan, weakref.ref(state), base, head, body, struct["max_length"], views, picks_at, room)

    def _room(self, n_bytes: int) -> Address:
        if n_bytes <= _BODY:
            return self._body
        if self._large is None or n_bytes > self._large_bytes:
            # Cached layouts refer to the old memory: free it only after the new allocation has succeeded.
            old, self._large = self._large, self._device.allocate(2 * n_bytes)
            self._large_bytes = 2 * n_bytes
            if old is not None:
                self._layouts = [None if one is None or one.base == old else one for one in self._layouts]
                self._device.free(old)
        return self._large

    def _roomy_body(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Return pinned memory of this side, zeroed. Images (megabytes) are then copied only once on the host."""
        if len(self._roomy[self._side]) < n_bytes:
            self._roomy[self._side] = self._device.pinned(n_bytes)
        body = self._roomy[self._side][:n_bytes]
        body[:] = 0
        return body

    def _rope_rows_of(self, batch: Batch) -> Sequence[npt.NDArray[Any]]:
        """Return cosines, sines and the table row of each row, or () if the batch has no rope positions.

        Cached: an encoder runs a batch in several slices, and images of one size share rope positions.
        """
        if batch.rope_positions is None:
            return ()
        if self._rope_rows is None or not _same_rope_positions(self._rope_rows[0], batch):
            cosines, sines, rows = self._rope_tables.tables(batch, MAX_CONTEXT)
            self._rope_rows = batch, () if rows is None else (cosines, sines, rows)
        return self._rope_rows[1]

    def _device_tables(self, n: int) -> tuple[Address, Address]:
        self._rope_tables.extend(n)
        if self._tables is None or len(self._rope_tables.cosines) > self._n_positions:
            old, self._tables = self._tables or (), None
            for table in old:
                self._device.free(table)
            cosines, sines = (
                self._device.allocate(a.nbytes) for a in (self._rope_tables.cosines, self._rope_tables.sines)
            )
            self._device.upload(cosines, self._rope_tables.cosines)
            self._device.upload(sines, self._rope_tables.sines)
            self._tables, self._n_positions = (cosines, sines), len(self._rope_tables.cosines)
        return self._tables


@dataclass(frozen=True)
class _Layout:
    """Layout of a batch in pinned host memory."""

    key: tuple[Any, ...]  # shapes and table addresses; equal keys share a layout
    plan: Plan
    state: weakref.ref[StateAddresses]
    base: Address  # device address of the arrays
    head: npt.NDArray[np.uint8]  # the struct, followed by the arrays if they fit
    body: npt.NDArray[np.uint8]  # the arrays
    longest: Any  # `max_length` in the struct
    views: list[tuple[str, int | None, npt.NDArray[Any]]]  # name, window (of a page table) and view of each array
    picks_at: Address | None
    picks: npt.NDArray[Any]


def _same_rope_positions(one: Batch, other: Batch) -> bool:
    """True if two batches have the same rope positions."""
    pairs = ((one.rope_positions, other.rope_positions), (one.positions, other.positions))
    return one is other or all(a is not None and b is not None and np.array_equal(a, b) for a, b in pairs)


def _array(batch: Batch, name: str, window: int | None, rope_rows: Sequence[npt.NDArray[Any]] = ()) -> npt.NDArray[Any]:
    """Return the array of a batch for a field of struct Batch, or an empty array if it is absent."""
    if name == _TABLE:
        return batch.table(window)
    if name in _ROPE:
        return rope_rows[_ROPE.index(name)]
    if name == "embeds_at":
        return _embeds_at(batch)
    if name == "sequences":
        numbers = np.arange(batch.n_sequences, dtype=np.int32)
        return numbers if batch.n_sequences == batch.n_rows else np.repeat(numbers, np.diff(batch.offsets))
    array: npt.NDArray[Any] | None = getattr(batch, name)
    if array is None:
        return _EMPTY
    return np.asarray(array, np.float32) if name in ("adapters", "hidden", "inputs_embeds", "gather_weights") else array


def _embeds_at(batch: Batch) -> npt.NDArray[Any]:
    """Return the index into the embeddings of each row, -1 for token rows, or an empty array without embeddings."""
    if batch.embeds_rows is None or not len(batch.embeds_rows):
        return _EMPTY
    at = np.full(batch.n_rows, -1, np.int32)
    at[batch.embeds_rows] = np.arange(len(batch.embeds_rows), dtype=np.int32)
    return at


def bucket(n: int) -> int:
    """Round up to a power of two: batches in a bucket share a graph."""
    return 0 if n == 0 else 1 << (n - 1).bit_length()
