"""Distribution of the rows of a step over prompts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from woolly.engine.request import Request
from woolly.engine.step.scheduler_output import Span


def share_rows(rows: int, filling: Sequence[Request], most: int) -> list[Span]:
    """Distribute the rows of a step over prompts, by priority.

    Half of the rows goes to the prompt that came first, the other half to the prompts with the fewest tokens left. A
    bidirectional image range, which cannot be split, may exceed `rows` up to `most`.
    """
    spans: list[Span] = []
    for _, group in itertools.groupby(filling, key=lambda request: request.priority):
        first, *others = group
        shares = {first: _fit(first, min(first.n_open, (rows + 1) // 2 if others else rows), most)}
        left = rows - shares[first]  # negative after an image range beyond `rows`
        passed = False  # True if this step completes a prompt that is shorter than the first
        for request in sorted((first, *others), key=lambda request: request.n_missing):
            if left <= 0 or (request is first and passed):
                continue
            had = shares.get(request, 0)
            shares[request] = _fit(request, min(request.n_open, had + left), had + left + most - rows)
            passed = passed or shares[request] == request.n_missing
            left -= shares[request] - had
        spans += [Span(request, n) for request, n in shares.items() if n > 0]
        rows, most = max(left, 0), most - rows + left
    return spans


def _fit(request: Request, n: int, most: int) -> int:
    """Return about n rows of a request, at most `most`, without splitting bidirectional image ranges."""
    if request.multimodal is None:
        return n
    first = request.n_computed
    end = request.multimodal.computable_end(first, first + n)
    whole = request.multimodal.bidirectional_end(first)
    return whole - first if end == first < whole <= first + most and n else end - first
