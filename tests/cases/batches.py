"""A batch that fits a tiny model, and changes that make it one that no backend may compute."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cases.tiny import N_VOCAB
from woolly.runtime import Batch

TWO = Batch.of([([5, 9, 2, 40], 0, [2]), ([8, 1], 0, [1])])  # for a cache of 4 pages, at most 8 rows at once
MAX_ROWS, N_PAGES = 8, 4


def ints(*values):
    """An array of a batch."""
    return np.array(values, np.int32)


BAD = (
    ({"tokens": ints(5, 9, 2, -1, 8, 1)}, "token -1 is outside the vocabulary of 320"),
    ({"tokens": ints(N_VOCAB, 9, 2, 4, 8, 1)}, "token 320 is outside the vocabulary of 320"),
    ({"offsets": ints(1, 4, 6)}, "offsets do not cover the rows"),
    ({"offsets": ints(0, 4, 5)}, "offsets do not cover the rows"),
    ({"offsets": ints(0, 4, 7)}, "offsets do not cover the rows"),
    ({"offsets": ints(0, 2**31 - 1, 6)}, "offsets do not cover the rows"),
    ({"offsets": ints(0, -5, 6)}, "a sequence without rows"),
    ({"offsets": ints(0, 0, 6)}, "a sequence without rows"),
    ({"offsets": ints(0, 5, 6)}, "not consecutive"),
    ({"positions": ints(0, 1, 3, 4, 0, 1)}, "not consecutive"),
    ({"positions": ints(0, 1, 2, 3, 2**31 - 1, -(2**31))}, "not consecutive"),
    ({"positions": ints(0, 1, 2, 3, -1, 0)}, "position 0 is outside the context"),
    ({"positions": ints(0, 1, 2, 3, 2**20 - 1, 2**20)}, "position 1048576 is outside the context of 1048576"),
    ({"positions": ints(0, 1, 2, 3, 31, 32)}, "too few pages"),
    ({"pages": ints([2], [4])}, "page 4 is outside the cache"),
    ({"pages": ints([-1], [1])}, "page -1 is outside the cache"),
    ({"output_rows": ints(3, 6)}, "a row outside the batch"),
    ({"output_rows": ints(-1)}, "a row outside the batch"),
    ({"output_rows": ints(*[0] * 9)}, "more logits wanted than rows fit"),
    ({"positions": ints(0, 1, 2)}, "do not fit together"),
    ({"pages": ints([2])}, "do not fit together"),
    ({"offsets": ints(0)}, "do not fit together"),
    ({"adapters": np.ones((1, 2), np.float32)}, "the scales of adapters do not fit the batch"),
    ({"hidden": np.ones((1, 2), np.float32)}, "the hidden states do not fit the batch"),
    ({"tokens": ints(*[0] * 9), "positions": ints(*range(9))}, "a batch of 9 rows, where 1 to 8 fit"),
)

each_bad_batch = pytest.mark.parametrize(("changes", "message"), BAD)
