"""Batch: inputs of one step. Rows of all sequences are concatenated without padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly.runtime.state import PAGE_SIZE, pages_for

Int32 = npt.NDArray[np.int32]
# Default for plans without slots.
_NO_SLOTS = np.zeros(0, np.int32)
_NO_SNAPSHOTS = np.zeros((0, 2), np.int32)


@dataclass(frozen=True)
class Batch:
    """Rows of one or more sequences, each a range of consecutive positions."""

    tokens: Int32  # [n_rows]
    positions: Int32  # [n_rows]
    offsets: Int32  # [n_sequences + 1]; rows of sequence s are offsets[s] to offsets[s + 1]
    pages: Int32  # [n_sequences, max pages]; page table of each sequence, padded with -1
    output_rows: Int32  # [n_output]; rows whose logits are needed, ascending
    # Slots, for plans with recurrent state. A run never writes a slot that it reads, so a batch can be run again.
    slots_in: Int32 = field(default_factory=_NO_SLOTS.copy)  # [n_sequences]; slot of the initial state, -1: zeros
    slots_out: Int32 = field(default_factory=_NO_SLOTS.copy)  # [n_sequences]; slot of the final state
    snapshots: Int32 = field(
        default_factory=_NO_SNAPSHOTS.copy
    )  # [n, 2]; (row, slot): also store the state after that row
    # [n_windows, n_sequences, max pages]: like `pages`, for each of `Plan.windows`; -1 for pages that no row attends
    # to.
    window_pages: Int32 | None = None  # None: `pages`, for states that allocate all pages for every window

    # [n_sequences, n_adapters] float32: scale of each adapter.
    adapters: npt.NDArray[np.float32] | None = None  # None: 1 for each

    # [n_rows, width] float32: hidden state before each token for drafts, patches for encoders.
    hidden: npt.NDArray[np.float32] | None = None
    is_hidden_normed: bool = False  # whether a draft computed it; the hidden state of the model is not normed yet

    # Injected embeddings: [n, width] float32, and the batch row of each, ascending.
    inputs_embeds: npt.NDArray[np.float32] | None = None
    embeds_rows: Int32 | None = None
    # [n_axes, n_rows]: rope positions of a row, for ropes with sections. None: the row's position on every axis.
    rope_positions: Int32 | None = None
    # [n_rows, 2]: range of positions (first, end) that a row attends to, including later ones. Neither value decreases
    # from row to row of a sequence. Lets the rows of an image attend to each other, and rows of a decoder begin at
    # `first`, after the rows of the encoder. None: causal attention.
    attn_ranges: Int32 | None = None
    # [n_rows, n]: table rows to add to a row (-1: none), and the factor of each. For towers; for text models with
    # separate weights for image rows, 1 for these rows and 0 for tokens.
    gather_rows: Int32 | None = None
    gather_weights: npt.NDArray[np.float32] | None = None

    @property
    def n_rows(self) -> int:
        """Number of tokens in the batch."""
        return len(self.tokens)

    def table(self, window: int | None) -> Int32:
        """Page tables of the sequences, [n_sequences, max pages]. `window` is an index of `Plan.windows` or None."""
        return self.pages if window is None or self.window_pages is None else self.window_pages[window]

    @property
    def n_sequences(self) -> int:
        """Number of sequences in the batch."""
        return len(self.offsets) - 1

    @classmethod
    def of(
        cls,
        sequences: Sequence[tuple[Sequence[int], int, Sequence[int] | Int32]],
        output_rows: Sequence[int] | None = None,
        *,
        slots: Sequence[tuple[int, int]] | None = None,
        snapshots: Sequence[tuple[int, int]] = (),
    ) -> Batch:
        """Return a batch of (tokens, first position, pages) triples. `output_rows` defaults to the last row of each.

        `slots` has an (in, out) pair per sequence, `snapshots` (row, slot) pairs.
        """
        lengths = [len(tokens) for tokens, _, _ in sequences]
        if not lengths or min(lengths) == 0:
            raise ValueError("a batch needs at least one sequence, and each at least one token")
        for tokens, first, pages in sequences:
            if pages_for(first + len(tokens)) > len(pages):
                raise ValueError(
                    f"{len(pages)} pages of {PAGE_SIZE} cannot hold {first + len(tokens)} tokens of one sequence"
                )
        # Lists, because most batches are short and a NumPy call takes as long as a hundred list elements.
        offsets = list(accumulate(lengths, initial=0))
        table = np.full((len(sequences), max(len(pages) for _, _, pages in sequences)), -1, np.int32)
        for row, (_, _, pages) in zip(table, sequences, strict=True):
            row[: len(pages)] = pages
        if offsets[-1] == len(sequences):
            all_tokens = np.array([tokens[0] for tokens, _, _ in sequences], np.int32)
            positions = np.array([first for _, first, _ in sequences], np.int32)
        else:
            all_tokens = np.concatenate([np.asarray(tokens, np.int32) for tokens, _, _ in sequences])
            positions = np.concatenate(
                [np.arange(first, first + len(tokens), dtype=np.int32) for tokens, first, _ in sequences]
            )
        return cls(
            tokens=all_tokens,
            positions=positions,
            offsets=np.array(offsets, np.int32),
            pages=table,
            output_rows=np.array([end - 1 for end in offsets[1:]] if output_rows is None else output_rows, np.int32),
            slots_in=np.array([one[0] for one in slots], np.int32) if slots else _NO_SLOTS.copy(),
            slots_out=np.array([one[1] for one in slots], np.int32) if slots else _NO_SLOTS.copy(),
            snapshots=np.array(snapshots, np.int32) if len(snapshots) else _NO_SNAPSHOTS.copy(),
        )

    @property
    def is_multimodal(self) -> bool:
        """True if the batch has injected rows, or separate rope positions or attention ranges for its rows."""
        extra = (self.inputs_embeds, self.rope_positions, self.attn_ranges, self.gather_rows)
        return any(array is not None for array in extra)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the batch by name. Together with `is_hidden_normed`, they define the batch."""
        return {f.name: a for f in fields(self) if isinstance(a := getattr(self, f.name), np.ndarray)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], is_hidden_normed: bool = False) -> Batch:
        """Rebuild a batch from the result of `arrays`. Raises ValueError for other arrays."""
        try:
            return cls(**arrays, is_hidden_normed=is_hidden_normed)
        except TypeError:
            raise ValueError(f"arrays named {', '.join(arrays)} are not a batch") from None

    def check_slots(self, n_slots: int) -> None:
        """Raise ValueError unless the slots fit the sequences and a state of `n_slots`."""
        if len(self.slots_in) != self.n_sequences or len(self.slots_out) != self.n_sequences:
            raise ValueError(f"the plan has recurrent state: expected {self.n_sequences} slots to read and to write")
        written = [*self.slots_out.tolist(), *self.snapshots[:, 1].tolist()]
        if any(not 0 <= slot < n_slots for slot in (*written, *(self.slots_in[self.slots_in != -1]).tolist())):
            raise ValueError(f"a slot is outside the state, which has {n_slots}")
        if len(set(written)) != len(written) or set(written) & set(self.slots_in.tolist()):
            raise ValueError("a run cannot write a slot twice or write a slot that it reads")
        if any(not 0 <= row < self.n_rows for row in self.snapshots[:, 0].tolist()):
            raise ValueError("a slot is to be kept of a row outside the batch")
        if ((self.slots_in < 0) != (self.positions[self.offsets[:-1]] == 0)).any():
            raise ValueError("a sequence starts from zeros exactly if its first position is 0")
