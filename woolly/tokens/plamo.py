"""PLaMo vocabularies (`plamo2`): segmentation with the highest sum of scores."""

from __future__ import annotations

import math

from woolly.errors import TokenizerError
from woolly.tokens.vocabulary import BYTE_NAME, TokenType, Vocabulary

_UNKNOWN = 10_000_000  # cost of a character without a piece; higher than any piece's
_MAX_COST = 20_000_000  # pieces with this cost or more are not used
_NO_PIECES = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)
_FIRST = 3  # length of the prefix that indexes piece lengths
_MARK = "\ufeff"  # byte order mark at the start of a text


class PlamoEncoder:
    """Viterbi search from the end of the text. On ties, the longer first piece wins.

    Costs are integers in 1/10,000 of a score, so sums are exact. A character without a piece becomes the tokens of its
    bytes.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces: dict[str, tuple[int, int]] = {}  # id and cost
        bytes_of: dict[int, int] = {}
        scores = vocabulary.scores().tolist()
        for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types.tolist(), strict=True)):
            if kind == TokenType.BYTE:
                if name := BYTE_NAME.fullmatch(text):
                    bytes_of[int(name[1], 16)] = index
                continue
            cost = -_rounded(scores[index] * 1e4)
            # Skip control tokens, which are split off before encoding, and unused tokens that converters added as
            # padding.
            if kind not in _NO_PIECES and cost < _MAX_COST:
                self._pieces[text] = index, cost
        if missing := [byte for byte in range(256) if byte not in bytes_of]:
            raise TokenizerError(f"the vocabulary has no token for the byte 0x{missing[0]:02X}")
        self._bytes = [bytes_of[byte] for byte in range(256)]
        # Piece lengths by their first three characters; shorter pieces are keys themselves. With keys of one character,
        # most tried lengths would belong to other pieces.
        lengths: dict[str, set[int]] = {}
        for text in self._pieces:
            lengths.setdefault(text[:_FIRST], set()).add(len(text))
        self._lengths = {first: sorted(found) for first, found in lengths.items()}

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens."""
        text = text.removeprefix(_MARK)
        n = len(text)
        costs = [0] * (n + 1)  # cost from each character to the end
        steps: list[tuple[int, int]] = [(1, -1)] * n  # length and id of the best piece at each character; -1: no piece
        for at in range(n - 1, -1, -1):
            best = costs[at + 1] + _UNKNOWN
            for first in range(1, min(_FIRST, n - at) + 1):
                for length in self._lengths.get(text[at : at + first], ()):
                    found = self._pieces.get(text[at : at + length]) if at + length <= n else None
                    if found is not None and costs[at + length] + found[1] <= best:
                        best, steps[at] = costs[at + length] + found[1], (length, found[0])
            costs[at] = best
        out, at = [], 0
        while at < n:
            length, index = steps[at]
            out += [self._bytes[byte] for byte in text[at].encode()] if index < 0 else [index]
            at += length
        return out


def _rounded(x: float) -> int:
    """Round to the nearest integer, half away from zero."""
    return math.floor(x + 0.5) if x >= 0 else -math.floor(0.5 - x)
