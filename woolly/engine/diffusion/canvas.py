"""Canvas: the tokens of a prompt and its answer, of which a step fills in masked ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from woolly.engine.diffusion.settings import DiffusionSettings
    from woolly.plan import MaskedDiffusion

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]

_MAX_ROWS = 16  # rows of probabilities in float64 at a time


class Canvas:
    """Denoising of one answer: blocks from left to right, with several steps per block."""

    def __init__(self, prompt: Sequence[int], length: int, model: MaskedDiffusion, settings: DiffusionSettings) -> None:
        """`length` is the number of answer tokens, all masked at the start."""
        self.tokens: Int32 = np.array([*prompt, *[model.mask] * length], np.int32)
        self.n_prompt = len(prompt)
        self._model = model
        self._settings = settings
        self._random = np.random.Generator(np.random.PCG64(settings.seed))
        size = settings.block_length
        self._blocks = [(i, min(i + size, length)) for i in range(0, length, size)]
        self._steps = _shared(settings.steps, len(self._blocks))
        self._block = 0  # index of the current block
        self._step = 0  # next step of the block
        self._n_start = self._blocks[0][1] - self._blocks[0][0]  # masked tokens at the start of the block
        self._skip_empty_steps()

    @property
    def is_done(self) -> bool:
        """True if no token is masked."""
        return self._block == len(self._blocks)

    def rows(self) -> npt.NDArray[np.intp]:
        """Return the rows of the logits that the next step needs, ascending. A prompt has at least one token."""
        rows: npt.NDArray[np.intp] = self._positions() - int(self._model.is_shifted)
        return rows

    def without_prompt(self) -> Int32:
        """Return the tokens with a masked prompt, for classifier-free guidance."""
        out: Int32 = self.tokens.copy()
        out[: self.n_prompt] = self._model.mask
        return out

    def fill(self, logits: Float32) -> list[int]:
        """Fill in tokens from the logits of `rows`. Return the tokens of the block if it is finished, or nothing."""
        at = self._positions()
        n = self._n_now(len(at))
        chosen, confidence = self._candidates(logits)
        picked = self._pick(confidence, n, is_last=self._step == self._steps[self._block] - 1)
        self.tokens[at[picked]] = chosen[picked]
        first, last = self._blocks[self._block]
        self._step += 1
        n_before = self._block
        self._skip_empty_steps()
        if self._block == n_before:
            return []
        return [int(token) for token in self.tokens[self.n_prompt + first : self.n_prompt + last]]

    def _positions(self) -> npt.NDArray[np.intp]:
        first, last = self._blocks[self._block]
        inside = self.tokens[self.n_prompt + first : self.n_prompt + last] == self._model.mask
        found: npt.NDArray[np.intp] = np.flatnonzero(inside) + self.n_prompt + first
        return found

    def _skip_empty_steps(self) -> None:
        """Advance to the next step that fills in tokens; a finished block ends early."""
        while not self.is_done:
            n_masked = len(self._positions())
            if n_masked == 0:
                self._block, self._step = self._block + 1, 0
                if not self.is_done:
                    self._n_start = self._blocks[self._block][1] - self._blocks[self._block][0]
            elif self._n_now(n_masked) == 0:
                self._step += 1
            else:
                return

    def _n_now(self, n_masked: int) -> int:
        """Return the number of tokens that the current step fills in."""
        step, steps, eps = self._step, self._steps[self._block], self._settings.eps
        if step >= steps - 1:
            return n_masked
        if eps is None:
            return min(n_masked, self._n_start // steps + (step < self._n_start % steps))
        now, then = (1 - i / steps * (1 - eps) for i in (step, step + 1))
        return int(n_masked * (1 - then / now))

    def _pick(self, confidence: Float64, n: int, is_last: bool) -> npt.NDArray[np.intp]:
        """Return the indices to fill in: the n highest confidences, ties to the first, or a random choice."""
        if is_last:
            return np.arange(len(confidence))
        if self._settings.algorithm == "origin":
            return np.flatnonzero(self._random.random(len(confidence)) < n / len(confidence))
        if self._settings.alg_temp:  # the n largest with Gumbel noise: a draw without replacement from the softmax
            noise = self._random.gumbel(size=len(confidence))
            confidence = confidence / self._settings.alg_temp + noise
        return np.argsort(-confidence, kind="stable")[:n]

    def _candidates(self, logits: Float32) -> tuple[Int32, Float64]:
        """Return a token for each row, and its confidence."""
        tokens, confidence = np.empty(len(logits), np.int32), np.empty(len(logits))
        for first in range(0, len(logits), _MAX_ROWS):
            part = slice(first, first + _MAX_ROWS)
            rows = logits[part].astype(np.float64)
            rows[:, self._model.mask] = -np.inf  # a filled-in token is never masked again
            shares = self._shares(rows)
            if self._settings.temperature > 0:
                draws = self._random.random((len(rows), 1))
                chosen = np.minimum((np.cumsum(shares, axis=1) <= draws).sum(axis=1), shares.shape[1] - 1)
                # Rounding may leave a draw beyond the sum, where shares are zero.
                chosen = np.where(np.take_along_axis(shares, chosen[:, None], 1)[:, 0] > 0, chosen, rows.argmax(axis=1))
            else:
                chosen = rows.argmax(axis=1)
            tokens[part] = chosen
            confidence[part] = self._confidence(shares, chosen)
        return tokens, confidence

    def _shares(self, rows: Float64) -> Float64:
        """Return the probabilities after top-k, top-p and temperature; a temperature of 0 chooses the likeliest."""
        settings = self._settings
        if settings.temperature == 0:
            return _softmax(rows)
        n = rows.shape[1]
        if 0 < settings.top_k < n:
            least = np.partition(rows, n - settings.top_k, axis=1)[:, n - settings.top_k, None]
            rows = np.where(rows >= least, rows, -np.inf)
        if settings.top_p < 1:
            order = np.argsort(-rows, axis=1, kind="stable")
            sums = np.cumsum(np.take_along_axis(_softmax(rows), order, 1), axis=1)
            drops = np.zeros(rows.shape, bool)
            late = np.concatenate([np.zeros((len(rows), 1), bool), sums[:, :-1] >= settings.top_p], axis=1)
            np.put_along_axis(drops, order, late, 1)
            rows = np.where(drops, -np.inf, rows)
        return _softmax(rows / settings.temperature)

    def _confidence(self, shares: Float64, chosen: npt.NDArray[np.intp]) -> Float64:
        """Return how sure each row is, by the settings' algorithm; higher is surer."""
        match self._settings.algorithm:
            case "entropy":  # negative entropy, as in Dream's code
                out: Float64 = (shares * np.log(shares + 1e-10)).sum(axis=1)
                return out
            case "margin":
                best = np.partition(shares, -2, axis=1)[:, -2:]
                return np.abs(best[:, 1] - best[:, 0])
            case "confidence":
                return np.take_along_axis(shares, chosen[:, None], 1)[:, 0]
        return self._random.random(len(shares))


def _softmax(rows: Float64) -> Float64:
    e = np.exp(rows - rows.max(axis=1, keepdims=True))
    out: Float64 = e / e.sum(axis=1, keepdims=True)
    return out


def _shared(n: int, parts: int) -> list[int]:
    """Split n steps among blocks; every block has at least one."""
    return [max(1, n // parts + (i < n % parts)) for i in range(parts)]
