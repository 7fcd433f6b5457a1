"""Serialization of requests and errors between a front and its replicas; replica.py has the message kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from woolly import errors
from woolly.errors import RequestError, WoollyError
from woolly.sampling import SamplingParams
from woolly.sampling.logprobs import TokenLogprob
from woolly.sampling.reasoning_budget import ReasoningMarkers

PROTOCOL = 5  # raised when a message changes its meaning; a replica with another one is refused

_DEFAULTS = SamplingParams()
_PAIRS = ("logit_bias", "adapters")  # mappings whose keys may be numbers, which JSON's keys are not


def write_params(params: SamplingParams, seed: int) -> dict[str, Any]:
    """Returns what differs from the defaults, as one answer with this seed."""
    written: dict[str, Any] = {}
    for one in fields(params):
        value = getattr(params, one.name)
        if one.name not in ("n", "seed") and value != getattr(_DEFAULTS, one.name):
            written[one.name] = list(value.items()) if one.name in _PAIRS else value
    return {**written, "seed": seed}


def read_params(written: Mapping[str, Any]) -> SamplingParams:
    """Returns the parameters that `write_params` wrote."""
    values: dict[str, Any] = {}
    for name, value in written.items():
        if name in _PAIRS:
            values[name] = dict(value)
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    return SamplingParams(**values)


def write_marks(marks: ReasoningMarkers | None) -> dict[str, Any] | None:
    """Returns the marks of reasoning as JSON has them."""
    return None if marks is None else asdict(marks)


def read_marks(written: Mapping[str, Any] | None) -> ReasoningMarkers | None:
    """Returns the marks that `write_marks` wrote."""
    return None if written is None else ReasoningMarkers(**{**written, "shown": tuple(written["shown"])})


def write_logprobs(logprobs: Sequence[TokenLogprob]) -> list[Any]:
    """Returns log-probabilities as lists; texts are left out, the reader has the vocabulary."""
    return [[one.token, one.logprob, one.top] for one in logprobs]


def read_logprobs(written: Sequence[Any]) -> list[TokenLogprob]:
    """Returns the log-probabilities that `write_logprobs` wrote."""
    return [TokenLogprob(token, logprob, tuple((id, number) for id, number in top)) for token, logprob, top in written]


def write_error(error: BaseException) -> dict[str, Any]:
    """Returns an error with what programs read of it."""
    names = ("code", "field", "limit", "given", "names")
    extra = {name: getattr(error, name) for name in names if getattr(error, name, None) is not None}
    return {"kind": type(error).__name__, "message": str(error), **extra}


def read_error(written: Mapping[str, Any]) -> Exception:
    """Returns the error that `write_error` wrote; one that is not Woolly's is a RuntimeError."""
    kind = getattr(errors, str(written["kind"]), None)
    message = str(written["message"])
    extra = {name: value for name, value in written.items() if name not in ("kind", "message")}
    if not (isinstance(kind, type) and issubclass(kind, WoollyError)):
        return RuntimeError(f"a replica failed: {written['kind']}: {message}")
    if not issubclass(kind, RequestError):
        extra = {name: value for name, value in extra.items() if name == "code"}
    error: Exception = kind(message, **extra)
    return error
