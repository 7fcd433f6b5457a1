"""Log-probabilities in OpenAI's two formats and in vLLM's format."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from woolly.sampling import TokenLogprob
from woolly.tokens import StreamDetokenizer, Tokenizer

_LOWEST = -9999.0  # OpenAI's value for impossible tokens; JSON has no infinity


@dataclass(frozen=True)
class PlacedLogprob:
    """A token with the offset of its text in characters."""

    token: int
    logprob: float | None  # None for the first token
    top: tuple[tuple[int, float], ...]
    offset: int


class LogprobTrack:
    """Releases the tokens of an answer together with their text.

    A token waits while its text is held back. Tokens without shown text, such as stop strings and the end token, are
    only released by `rest`.
    """

    def __init__(self, tokenizer: Tokenizer, offset: int = 0, shown: frozenset[int] = frozenset()) -> None:
        """`offset` is the start of the answer in the client's text; `shown` is described in StreamDetokenizer."""
        self._detokenizer = StreamDetokenizer(tokenizer, strip_prefix=False, shown=shown)
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()  # (offset of the first character, token)
        self._n_made = 0  # characters of the tokens
        self._n_shown = 0
        self._offset = offset

    def push(self, text: str, logprobs: Sequence[TokenLogprob]) -> list[PlacedLogprob]:
        """Return the tokens whose text is now shown."""
        for logprob in logprobs:
            self._waiting.append((self._n_made, logprob))
            self._n_made += len(self._detokenizer.push(logprob.token))
        self._n_shown += len(text)
        given = []
        while self._waiting and self._waiting[0][0] < self._n_shown:
            given.append(self._first())
        return given

    def rest(self) -> list[PlacedLogprob]:
        """Return the tokens without shown text."""
        return [self._first() for _ in range(len(self._waiting))]

    def _first(self) -> PlacedLogprob:
        at, one = self._waiting.popleft()
        return PlacedLogprob(one.token, one.logprob, one.top, self._offset + at)


def place_prompt(
    tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None], *, skips_first: bool
) -> list[PlacedLogprob]:
    """Return the tokens of a prompt; `skips_first` excludes a BOS token that is not part of the text."""
    detokenizer = StreamDetokenizer(tokenizer, skip_special=False)
    placed, at = [], 0
    for i, (token, one) in enumerate(zip(ids, logprobs, strict=True)):
        placed.append(PlacedLogprob(token, None if one is None else one.logprob, () if one is None else one.top, at))
        shown = detokenizer.push(token)
        at += 0 if i == 0 and skips_first else len(shown)
    return placed


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[PlacedLogprob], *, as_ids: bool = False) -> dict[str, Any]:
    """Return the format of chat completions, with the exact bytes of each token.

    `as_ids` replaces the text of each token by its id.
    """

    def one(token: int, logprob: float | None) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        return {
            "token": f"token_id:{token}" if as_ids else _text(data, ""),
            "logprob": _number(logprob),
            "bytes": list(data),
        }

    content = [
        one(token.token, token.logprob) | {"top_logprobs": [one(*alternative) for alternative in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[PlacedLogprob], *, as_ids: bool = False
) -> dict[str, Any]:
    """Return the format of text completions: four lists. The alternatives always include the chosen token."""

    def text(token: int) -> str:
        return f"token_id:{token}" if as_ids else _text(tokenizer.token_bytes(token), "bytes:")

    def alternatives(token: PlacedLogprob) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        found: dict[str, float] = {}
        for other, logprob in (*token.top, (token.token, token.logprob)):
            found.setdefault(text(other), _number(logprob))
        return found

    return {
        "tokens": [text(token.token) for token in tokens],
        "token_logprobs": [None if token.logprob is None else _number(token.logprob) for token in tokens],
        "top_logprobs": [alternatives(token) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def prompt_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob]) -> list[dict[str, Any] | None]:
    """Return vLLM's format: by token id, the top tokens and the prompt token itself; null for the first token.

    The rank is the position among the top tokens, or null for a token that is not among them.
    """

    def one(token: int, logprob: float, rank: int | None) -> dict[str, Any]:
        return {"logprob": _number(logprob), "rank": rank, "decoded_token": _text(tokenizer.token_bytes(token), "")}

    found: list[dict[str, Any] | None] = [None]
    for entry in tokens:
        ranked: dict[int, tuple[float, int | None]] = {
            token: (logprob, rank) for rank, (token, logprob) in enumerate(entry.top, 1)
        }
        ranked.setdefault(entry.token, (entry.logprob, None))
        found.append({str(token): one(token, *about) for token, about in ranked.items()})
    return found


def _text(data: bytes, prefix: str) -> str:
    """Return a token as text, or as bytes in OpenAI's format if it is not valid UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in data)


def _number(logprob: float | None) -> float:
    return _LOWEST if logprob is None else max(_LOWEST, logprob)
