"""Validation of a replica's replies. After an invalid reply, the front uses another replica."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from woolly.cache.prefix import PrefixReport
from woolly.cluster.serialization import read_error, read_logprobs
from woolly.engine.request import FinishReason
from woolly.llm.bit_identity import Identity
from woolly.sampling.logprobs import TokenLogprob
from woolly.wire import BadMessage, WireMessage

Float32 = npt.NDArray[np.float32]

_REASONS = ("stop", "length", "cancelled", "error")
_MAX_COUNT = 1 << 53  # maximum of a count


@dataclass(frozen=True)
class AnswerEnd:
    """End of an answer."""

    reason: FinishReason
    stop: str | int | None
    n_drafted: int
    n_accepted: int
    n_shifts: int
    prompt_logprobs: list[TokenLogprob]
    error: Exception | None


@dataclass(frozen=True)
class StepReply:
    """Tokens and text that a step adds to an answer."""

    tokens: list[int]
    text: str
    logprobs: list[TokenLogprob]
    n_computed: int
    prefix: PrefixReport | None
    end: AnswerEnd | None


@dataclass(frozen=True)
class Hello:
    """First message of a replica, sent when its model is loaded."""

    protocol: int
    identity: Identity | None  # None if the protocol differs
    n_pages: int
    time: float
    about: Mapping[str, str | int]  # pid, host, version, device, level, threads


@dataclass(frozen=True)
class VectorRows:
    """Embeddings or scores of texts."""

    rows: Float32
    tables: dict[int, Float32]
    error: Exception | None = None


def read_step(message: WireMessage, n_vocab: int) -> StepReply:
    """Return a step. Raise BadMessage for a token outside the vocabulary, an invalid count or an unknown value."""
    fields = message.fields
    text, prefix, end = fields.get("text", ""), fields.get("prefix"), fields.get("end")
    _check(isinstance(text, str), "text")
    _check(prefix is None or isinstance(prefix, dict), "prefix")
    _check(end is None or isinstance(end, dict), "end")
    return StepReply(
        [_token(token, n_vocab) for token in _list(fields.get("tokens", []))],
        text,
        _logprobs(fields.get("logprobs", []), n_vocab),
        _count(fields.get("computed", 0)),
        None if prefix is None else _prefix(prefix),
        None if end is None else _end(end, n_vocab),
    )


def read_reasoning_end(message: WireMessage, most: int | None) -> int | None:
    """Return the token count at which the reasoning ended, or None without reasoning.

    Raise BadMessage if the count is invalid.
    """
    if (at := message.fields.get("at")) is None:
        return None
    n = _count(at)
    _check(most is None or n <= most, f"end of reasoning after {n} of {most} tokens")
    return n


def read_progress(message: WireMessage, n_texts: int) -> int:
    """Return the number of finished texts. Raise BadMessage if the number exceeds the number of texts."""
    n_done = _count(message.fields.get("done"))
    _check(n_done <= n_texts, f"progress of {n_done} of {n_texts} texts")
    return n_done


def read_rows(message: WireMessage, texts: Sequence[Sequence[int]], width: int, has_tables: bool) -> VectorRows:
    """Return the rows of texts, and all rows per text if not pooled. Raise BadMessage for mismatched shapes."""
    if "error" in message.fields:
        return VectorRows(np.zeros((0, width), np.float32), {}, _error(message.fields["error"]))
    arrays = dict(message.arrays)
    rows = _table(arrays.pop("rows", None), len(texts), width)
    tables: dict[int, Float32] = {}
    for name, table in arrays.items():
        _check(name.isdecimal() and int(name) < len(texts), f"table {name[:20]!r} for {len(texts)} texts")
        tables[int(name)] = _table(table, len(texts[int(name)]), width)
    _check(len(tables) == (len(texts) if has_tables else 0), f"number of tables, {len(tables)} for {len(texts)} texts")
    return VectorRows(rows, tables)


def read_hello(message: WireMessage, protocol: int) -> Hello:
    """Return the first message of a replica, or only the protocol version if it differs."""
    fields = message.fields
    if (theirs := _count(fields.get("protocol"))) != protocol:
        return Hello(theirs, None, 0, 0.0, {})
    texts = {name: fields.get(name) for name in ("host", "version", "device", "level")}
    _check(all(isinstance(value, str) for value in texts.values()), "host, version, device or level")
    numbers = {name: _count(fields.get(name)) for name in ("pid", "threads", "n_pages", "n_parallel")}
    _check(numbers["n_pages"] > 0, "number of pages")
    _check(numbers["n_parallel"] > 0, "number of concurrent answers")
    identity = fields.get("identity")
    _check(isinstance(identity, dict), "identity")
    try:
        known = Identity(**cast(dict[str, Any], identity))
    except TypeError:
        raise BadMessage("invalid identity") from None
    counts = {name: numbers[name] for name in ("pid", "threads", "n_parallel")}
    about: dict[str, str | int] = {**cast(dict[str, str], texts), **counts}
    return Hello(theirs, known, numbers["n_pages"], _number(fields.get("time")), about)


def read_metrics(message: WireMessage) -> tuple[dict[str, float], float]:
    """Return the metrics of a pong, and the time of the replica's clock."""
    figures = message.fields.get("figures")
    _check(isinstance(figures, dict), "metrics")
    numbers = {str(name): _number(value) for name, value in cast(dict[str, Any], figures).items()}
    _check(all(0 <= value <= _MAX_COUNT for value in numbers.values()), "negative metrics")
    return numbers, _number(message.fields.get("time"))


def _end(end: Mapping[str, Any], n_vocab: int) -> AnswerEnd:
    reason, stop = end.get("reason"), end.get("stop")
    _check(reason in _REASONS, f"finish reason {str(reason)[:20]!r}")
    _check(stop is None or type(stop) in (str, int), "stop reason")
    return AnswerEnd(
        cast(FinishReason, reason),
        stop,
        _count(end.get("drafted", 0)),
        _count(end.get("accepted", 0)),
        _count(end.get("shifts", 0)),
        _logprobs(end.get("prompt_logprobs", []), n_vocab),
        _error(end["error"]) if "error" in end else None,
    )


def _prefix(prefix: Mapping[str, Any]) -> PrefixReport:
    reason = prefix.get("reason")
    _check(reason is None or isinstance(reason, str), "reason of a prefix")
    return PrefixReport(_count(prefix.get("hit_tokens")), _count(prefix.get("miss_tokens")), reason)


def _logprobs(written: Any, n_vocab: int) -> list[TokenLogprob]:
    try:
        found = read_logprobs(_list(written))
    except (TypeError, ValueError):
        raise BadMessage("invalid log-probabilities") from None
    for one in found:
        for token, logprob in ((one.token, one.logprob), *one.top):
            _token(token, n_vocab)
            _check(type(logprob) in (int, float) and logprob <= 1e-3, "log-probability above zero")
    return found


def _error(written: Any) -> Exception:
    _check(isinstance(written, dict) and {"kind", "message"} <= written.keys(), "error")
    try:
        return read_error(written)
    except TypeError:
        raise BadMessage("invalid error") from None


def _table(array: npt.NDArray[Any] | None, n_rows: int, width: int) -> Float32:
    """Return a writable copy of an array with the given shape; arrays of messages may be read-only."""
    if array is None or array.dtype.kind != "f" or array.shape != (n_rows, width):
        shape = "no array" if array is None else f"{array.dtype} {array.shape}"
        raise BadMessage(f"invalid rows: got {shape}, expected {n_rows} rows of width {width}")
    return array.astype(np.float32)


def _list(value: Any) -> list[Any]:
    _check(isinstance(value, list), "list")
    return cast(list[Any], value)


def _token(token: Any, n_vocab: int) -> int:
    _check(type(token) is int and 0 <= token < n_vocab, f"token {str(token)[:20]} in a vocabulary of {n_vocab}")
    return cast(int, token)


def _count(value: Any) -> int:
    _check(type(value) is int and 0 <= value <= _MAX_COUNT, f"count {str(value)[:20]}")
    return cast(int, value)


def _number(value: Any) -> float:
    _check(type(value) in (int, float) and math.isfinite(value), f"number {str(value)[:20]}")
    return cast(float, value)


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise BadMessage(f"invalid {what}")
