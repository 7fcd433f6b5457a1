"""DFlashProposer: a draft head that predicts a block of masked tokens in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from woolly.engine.drafts.greedy_tokens import greedy_tokens
from woolly.engine.drafts.mtp import MtpProposer, Rows
from woolly.runtime import Batch, CancelledRun, Program

if TYPE_CHECKING:
    from woolly.engine.request import Request


class DFlashProposer(MtpProposer):
    """Proposes a block per run from K and V of the model's hidden states.

    A block consists of the last context token, which the model has not processed, and mask tokens. Rows of a block
    attend to each other. The model later overwrites their K and V.
    """

    def swap(self, program: Program) -> None:
        """Switch to a program. Its draft steps before the first `embed` store K and V of the hidden states."""
        super().swap(program)
        steps = self._draft.running_plan.steps
        self._n_stored = next(i for i, step in enumerate(steps) if step.op == "embed")
        own = program.plan.draft
        assert own is not None and own.mask is not None
        self._mask, self._max_masks = own.mask, own.n_masks

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Store the pending hidden states, then predict a block for each request with enough free rows, in one run."""
        guesses: list[list[int]] = [[] for _ in wanted]
        unread: list[Rows] = []
        blocks: list[tuple[int, Sequence[int], int]] = []  # index into `wanted`, tokens, first position
        left = self._max_rows
        for i, (request, n) in enumerate(wanted):
            n_masks, last = min(n, self._max_masks), len(request.context) - 1
            waiting = self._take(request)
            n_waiting = 0 if waiting is None else last - waiting.first
            if waiting is None or not 0 < n_waiting <= len(waiting.hidden):
                continue
            after = request.context[waiting.first + 1 :]
            unread.append((after, waiting.first, request.pages, waiting.hidden[:n_waiting]))
            if 1 <= n_masks < left:
                left -= n_masks + 1
                blocks.append((i, [request.context[-1], *[self._mask] * n_masks], last))
        self._store(unread)
        if not blocks:
            return guesses
        try:
            chosen = greedy_tokens(self._draft, self._block(blocks, wanted), self._pages, self._n_stored)
        except CancelledRun:
            return guesses
        at = 0
        for i, tokens, _ in blocks:
            guesses[i] = chosen[at : at + len(tokens) - 1]
            at += len(tokens) - 1
            if self._ids is not None:
                guesses[i] = self._ids[guesses[i]].tolist()
        return guesses

    def _block(self, blocks: Sequence[tuple[int, Sequence[int], int]], wanted: Sequence[tuple[Request, int]]) -> Batch:
        """Return the batch of all blocks, with full attention within each block and logits for the mask tokens."""
        attn_ranges = [(first, first + len(tokens)) for _, tokens, first in blocks for _ in tokens]
        batch = Batch.of([(tokens, first, wanted[i][0].pages) for i, tokens, first in blocks], ())
        masks = np.flatnonzero(~np.isin(np.arange(batch.n_rows), batch.offsets)).astype(np.int32)
        return replace(batch, output_rows=masks, attn_ranges=np.array(attn_ranges, np.int32))
