"""The Batch: one step's inputs. Tokens of all sequences lie flat, one after another, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from woolly.runtime.state import PAGE_SIZE, pages_for

__all__ = ["Batch"]

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """Rows of one or more sequences, each a run of consecutive positions."""

    tokens: Int32  # [n_rows]
    positions: Int32  # [n_rows]
    offsets: Int32  # [n_sequences + 1]; rows of sequence s are offsets[s] to offsets[s + 1]
    pages: Int32  # [n_sequences, max pages]; page table of each sequence, -1 where it has no page
    output_rows: Int32  # [n_output]; rows whose logits are wanted, ascending

    @property
    def n_rows(self) -> int:
        """Tokens in the batch."""
        return len(self.tokens)

    @property
    def n_sequences(self) -> int:
        """Sequences in the batch."""
        return len(self.offsets) - 1

    @classmethod
    def of(
        cls,
        sequences: Sequence[tuple[Sequence[int], int, Sequence[int]]],
        output_rows: Sequence[int] | None = None,
    ) -> Batch:
        """A batch of (tokens, first position, pages) triples; logits of each one's last row unless told otherwise."""
        lengths = [len(tokens) for tokens, _, _ in sequences]
        if not lengths or min(lengths) == 0:
            raise ValueError("a batch needs at least one sequence, and each at least one token")
        for tokens, first, pages in sequences:
            if pages_for(first + len(tokens)) > len(pages):
                raise ValueError(
                    f"{len(pages)} pages of {PAGE_SIZE} cannot hold {first + len(tokens)} tokens of one sequence"
                )
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        table = np.full((len(sequences), max(len(pages) for _, _, pages in sequences)), -1, np.int32)
        for row, (_, _, pages) in zip(table, sequences, strict=True):
            row[: len(pages)] = pages
        return cls(
            tokens=np.concatenate([np.asarray(tokens, np.int32) for tokens, _, _ in sequences]),
            positions=np.concatenate(
                [np.arange(first, first + len(tokens), dtype=np.int32) for tokens, first, _ in sequences]
            ),
            offsets=offsets,
            pages=table,
            output_rows=offsets[1:] - 1 if output_rows is None else np.asarray(output_rows, np.int32),
        )
