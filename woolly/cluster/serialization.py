"""Serialization of requests and errors between a front and its replicas; see replica.py for the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from woolly import errors
from woolly.errors import RequestError, WoollyError
from woolly.sampling import SamplingParams
from woolly.sampling.logprobs import TokenLogprob
from woolly.sampling.reasoning_budget import ReasoningMarkers

PROTOCOL = 5  # incremented when a message changes; replicas with another version are rejected

_DEFAULTS = SamplingParams()
_PAIRS = ("logit_bias", "adapters")  # mappings whose keys may be numbers, which JSON does not allow


def write_params(params: SamplingParams, seed: int) -> dict[str, Any]:
    """Return the parameters that differ from the defaults, for one answer with this seed."""
    written: dict[str, Any] = {}
    for one in fields(params):
        value = getattr(params, one.name)
        if one.name not in ("n", "seed") and value != getattr(_DEFAULTS, one.name):
            written[one.name] = list(value.items()) if one.name in _PAIRS else value
    return {**written, "seed": seed}


def read_params(written: Mapping[str, Any]) -> SamplingParams:
    """Parse the parameters of `write_params`."""
    values: dict[str, Any] = {}
    for name, value in written.items():
        if name in _PAIRS:
            values[name] = dict(value)
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    return SamplingParams(**values)


def write_marks(marks: ReasoningMarkers | None) -> dict[str, Any] | None:
    """Return the reasoning markers as JSON values."""
    return None if marks is None else asdict(marks)


def read_marks(written: Mapping[str, Any] | None) -> ReasoningMarkers | None:
    """Parse the markers of `write_marks`."""
    return None if written is None else ReasoningMarkers(**{**written, "shown": tuple(written["shown"])})


def write_logprobs(logprobs: Sequence[TokenLogprob]) -> list[Any]:
    """Return log-probabilities as lists, without texts, which the reader looks up in the vocabulary."""
    return [[one.token, one.logprob, one.top] for one in logprobs]


def read_logprobs(written: Sequence[Any]) -> list[TokenLogprob]:
    """Parse the log-probabilities of `write_logprobs`."""
    return [TokenLogprob(token, logprob, tuple((id, number) for id, number in top)) for token, logprob, top in written]


def write_error(error: BaseException) -> dict[str, Any]:
    """Return an error with its machine-readable fields."""
    names = ("code", "field", "limit", "given", "names")
    extra = {name: getattr(error, name) for name in names if getattr(error, name, None) is not None}
    return {"kind": type(error).__name__, "message": str(error), **extra}


def read_error(written: Mapping[str, Any]) -> Exception:
    """Parse the error of `write_error`; raise RuntimeError for errors that are not Woolly's."""
    kind = getattr(errors, str(written["kind"]), None)
    message = str(written["message"])
    extra = {name: value for name, value in written.items() if name not in ("kind", "message")}
    if not (isinstance(kind, type) and issubclass(kind, WoollyError)):
        return RuntimeError(f"a replica failed: {written['kind']}: {message}")
    if not issubclass(kind, RequestError):
        extra = {name: value for name, value in extra.items() if name == "code"}
    error: Exception = kind(message, **extra)
    return error
