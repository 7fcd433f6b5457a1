"""LogitBias: logit biases and banned tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.sampling.params import SamplingParams
    from woolly.tokens import Tokenizer

_MAX_BIAS = 3e38


class LogitBias:
    """Token biases of logit_bias, ignore_eos and min_tokens."""

    def __init__(self, params: SamplingParams, tokenizer: Tokenizer | None) -> None:
        ends = frozenset() if tokenizer is None else tokenizer.stop_ids
        biases: dict[int, float] = {}
        for key, value in params.logit_bias.items():
            for token in _tokens(key, tokenizer):
                biases[token] = biases.get(token, 0.0) + value
        if params.ignore_eos:
            biases.update(dict.fromkeys(ends, -np.inf))
        n_vocab = None if tokenizer is None else tokenizer.n_vocab
        for name, tokens in (("logit_bias", biases), ("stop_token_ids", params.stop_token_ids)):
            for token in tokens:
                if n_vocab is not None and token >= n_vocab:
                    raise RequestError(
                        f"token {token} of {name} is not in the vocabulary; expected an id from 0 to {n_vocab - 1}",
                        field=name,
                    )
        biases = dict(sorted(biases.items()))
        self._ids = np.array(list(biases), np.intp)
        sums = np.array(list(biases.values()), np.float64)
        self._values = np.where(np.isfinite(sums), np.clip(sums, -_MAX_BIAS, _MAX_BIAS), sums).astype(np.float32)
        self._ends = np.array(sorted(ends | set(params.stop_token_ids)), np.intp)
        self._min_tokens = params.min_tokens
        self._tokens, self._banned = frozenset(biases), frozenset(self._ends.tolist())

    def acts(self, n_output: int) -> bool:
        """True if `apply` changes the row after n_output answer tokens."""
        return bool(self._tokens) or n_output < self._min_tokens

    @property
    def n_lowered(self) -> int | None:
        """Maximum number of tokens that become less likely; None if some become more likely."""
        if (self._values > 0.0).any():
            return None
        return len(self._ids) + (len(self._ends) if self._min_tokens else 0)

    def lowered(self, n_output: int) -> frozenset[int]:
        """Tokens that `apply` changes."""
        return self._tokens | self._banned if n_output < self._min_tokens else self._tokens

    def spares(self, ids: npt.NDArray[np.int32], n_output: int) -> bool:
        """True if `apply_to` leaves these tokens unchanged."""
        if not self.acts(n_output):
            return True
        listed = ids.tolist()
        return self._tokens.isdisjoint(listed) and (n_output >= self._min_tokens or self._banned.isdisjoint(listed))

    def apply_to(self, ids: npt.NDArray[np.int32], logits: npt.NDArray[np.float32], n_output: int) -> None:
        """Change the logits of some tokens, like `apply`."""
        places, which = find(ids, self._ids)
        logits[places] += self._values[which]
        if n_output < self._min_tokens:
            logits[find(ids, self._ends)[0]] = -np.inf

    def apply(self, row: npt.NDArray[np.float32], n_output: int) -> None:
        """Change a row in place."""
        row[self._ids] += self._values
        if n_output < self._min_tokens:
            row[self._ends] = -np.inf


def find(
    ids: npt.NDArray[np.int32], tokens: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the indices of ids that are in the sorted tokens, and the token index for each."""
    if not len(tokens):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    which = np.minimum(np.searchsorted(tokens, ids), len(tokens) - 1)
    places = np.flatnonzero(tokens[which] == ids)
    return places, which[places]


def _tokens(key: int | str, tokenizer: Tokenizer | None) -> list[int]:
    if isinstance(key, int):
        return [key]
    if tokenizer is None:
        raise RequestError(
            f"logit_bias has the string {key!r}, but there is no tokenizer; use token ids", field="logit_bias"
        )
    return tokenizer.encode(key, add_special=False, parse_special=False)
