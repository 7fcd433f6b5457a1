"""Validation of SamplingParams; errors name the field."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from woolly.errors import RequestError
from woolly.sampling.option import Option, options_of
from woolly.sampling.registry import installed_samplers
from woolly.sampling.schema import read_schema

if TYPE_CHECKING:
    from woolly.sampling.params import SamplingParams

_STRUCTURES = ("json_schema", "json_object", "regex", "choice", "lark", "grammar")

MAX_TOKEN_ID = 2**31 - 1
MAX_BREAKERS = 32  # maximum of dry_sequence_breakers, each of which requires a search of the vocabulary
_F32_MAX = 3.4e38  # samplers compute in float32


def check(params: SamplingParams) -> None:
    """Raise RequestError for the first invalid value; otherwise normalize lists and numbers."""
    if params.max_tokens == -1:  # llama.cpp's value for no limit
        object.__setattr__(params, "max_tokens", None)
    if params.reasoning_budget == -1:  # llama.cpp's value for no limit
        object.__setattr__(params, "reasoning_budget", None)
    _check_numbers(params)
    _check_lists(params)
    _check_structure(params)
    _check_chain(params)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        problem = f"is {params.min_tokens}, but max_tokens is only {params.max_tokens}"
        raise _refusal("min_tokens", problem, "max_tokens")


def _check_numbers(params: SamplingParams) -> None:
    for name, row in options_of(type(params)).items():
        value = getattr(params, name)
        if row.kind in (int, float) and not (value is None and row.is_optional):
            object.__setattr__(params, name, _checked_number(row, value))
        elif row.kind is bool and not isinstance(value, bool):
            raise _refusal(name, f"is {value!r}; expected True or False")


def _check_lists(params: SamplingParams) -> None:
    for name in ("stop", "dry_sequence_breakers", "choice"):
        _texts(params, name)
    if len(params.dry_sequence_breakers) > MAX_BREAKERS:
        n = len(params.dry_sequence_breakers)
        raise _refusal("dry_sequence_breakers", f"has {n} strings, but the limit is {MAX_BREAKERS}")
    for text in params.dry_sequence_breakers:
        if len(text.encode()) > 40:
            raise _refusal("dry_sequence_breakers", f"has {text!r}; expected strings of at most 40 bytes")
    _tuple(params, "samplers", "names")
    known = options_of(type(params))["samplers"].default
    for sampler in params.samplers:
        if sampler not in known and sampler not in installed_samplers():
            names = ", ".join((*known, *installed_samplers()))
            raise _refusal("samplers", f"has unknown sampler {sampler!r}; expected {names}")
        if params.samplers.count(sampler) > 1:
            raise _refusal("samplers", f"has {sampler!r} twice; remove one of them")
    _tuple(params, "stop_token_ids", "token ids")
    for token in params.stop_token_ids:
        if isinstance(token, bool) or not isinstance(token, numbers.Integral) or token < 0:
            raise _refusal("stop_token_ids", f"has {token!r}; expected token ids")
    object.__setattr__(params, "stop_token_ids", tuple(map(int, params.stop_token_ids)))
    _tuple(params, "logits_processors", "callables")
    if not all(callable(processor) for processor in params.logits_processors):
        raise _refusal("logits_processors", f"is {list(params.logits_processors)!r}; expected callables")
    if params.custom_sampler is not None and not callable(params.custom_sampler):
        raise _refusal("custom_sampler", f"is {params.custom_sampler!r}; expected a callable")
    if not isinstance(params.logit_bias, Mapping):
        raise _refusal("logit_bias", f"is {params.logit_bias!r}; expected a mapping of ids or strings to numbers")
    biases = {key: _bias(key, bias) for key, bias in params.logit_bias.items()}
    object.__setattr__(
        params, "logit_bias", {key if isinstance(key, str) else int(key): bias for key, bias in biases.items()}
    )


def _check_structure(params: SamplingParams) -> None:
    for name in ("regex", "lark", "grammar"):
        value = getattr(params, name)
        if value is not None and (not isinstance(value, str) or not value):
            raise _refusal(name, f"is {value!r}; expected a non-empty string")
    if params.json_schema is not None:
        object.__setattr__(params, "json_schema", _canonical_schema(params.json_schema))
    given = [name for name in _STRUCTURES if getattr(params, name) not in (None, False, ())]
    if len(given) > 1:
        raise _refusal(given[0], f"and {' and '.join(given[1:])} cannot be combined; use one of them")
    if not isinstance(message := params.reasoning_budget_message, (str, type(None))):
        raise _refusal("reasoning_budget_message", f"is {message!r}; expected a string")
    for name in ("ignore_eos", "min_tokens"):
        if given and (value := getattr(params, name)):
            raise _refusal(name, f"is {value!r}, but {given[0]} determines where the answer ends; remove one of them")


def _check_chain(params: SamplingParams) -> None:
    """Raise RequestError for an option without effect, because no parameter is silently ignored."""
    rows = options_of(type(params))
    if params.custom_sampler is not None and params.mirostat:
        raise _refusal("mirostat", f"is {params.mirostat}, but custom_sampler replaces it; remove one of them")
    for name, row in rows.items():
        value = getattr(params, name)
        masters = [rows[master] for master in row.needs]
        if masters and all(getattr(params, one.name) == one.off for one in masters) and not _is_usual(row, value):
            what = " and ".join(f"{one.name}={one.off!r}".removesuffix(".0") for one in masters)
            raise RequestError(
                f"{name} is {value!r}, but has no effect with {what}", field=name, names=(name, *row.needs)
            )
        if row.off is None or value in (row.off, row.default) or (reason := _why_unread(params, row)) is None:
            continue
        shown = list(value) if isinstance(value, tuple) else value
        raise _refusal(name, f"is {shown!r}, but {reason}", "mirostat")


def _why_unread(params: SamplingParams, row: Option) -> str | None:
    """Return the reason why an option has no effect, or None if it has an effect."""
    if row.sampler is None:
        return None
    if params.custom_sampler is not None:
        return "custom_sampler replaces the samplers"
    if params.mirostat:
        return None if row.runs_with_mirostat else f"mirostat={params.mirostat} replaces the samplers"
    return None if row.sampler in ("*", *params.samplers) else f"samplers does not include {row.sampler}"


def _tuple(params: SamplingParams, name: str, what: str) -> None:
    value = getattr(params, name)
    if isinstance(value, tuple):
        return
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise _refusal(name, f"is {value!r}; expected a list of {what}")
    object.__setattr__(params, name, tuple(value))


def _texts(params: SamplingParams, name: str) -> None:
    value = getattr(params, name)
    if isinstance(value, str):
        object.__setattr__(params, name, (value,))
    elif not isinstance(value, tuple):
        try:
            object.__setattr__(params, name, tuple(value))
        except TypeError:
            raise _refusal(name, f"is {value!r}; expected a string or a list of strings") from None
    if not all(isinstance(text, str) and text for text in getattr(params, name)):
        raise _refusal(name, f"is {list(getattr(params, name))!r}; expected non-empty strings")


def _bias(key: Any, value: Any) -> float:
    sound = not isinstance(key, bool) and isinstance(key, (numbers.Integral, str))
    if not sound or key == "" or (not isinstance(key, str) and not 0 <= key <= MAX_TOKEN_ID):
        raise _refusal("logit_bias", f"has key {key!r}; expected a token id from 0 to {MAX_TOKEN_ID} or a string")
    if value is False or value == -math.inf:
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not abs(float(value)) <= _F32_MAX:
        raise _refusal("logit_bias", f"of {key!r} is {value!r}; expected a number, or False to ban the token")
    return float(value)


def _is_usual(row: Option, value: Any) -> bool:
    """True if a value equals the default, within the precision of a float32 client."""
    if row.kind is float:
        return math.isclose(value, row.default, rel_tol=1e-6)
    return bool(value == row.default)


def _checked_number(row: Option, value: Any) -> float:
    """Return the value as an int or float within the row's range."""
    is_whole = row.kind is int
    widest = math.inf if is_whole else _F32_MAX
    low, high = -widest if row.low is None else row.low, widest if row.high is None else row.high
    sound = not isinstance(value, bool) and isinstance(value, numbers.Integral if is_whole else numbers.Real)
    if not sound or not low <= value <= high:
        lower = "" if row.low is None else f" of at least {row.low if is_whole else f'{row.low:g}'}"
        upper = "" if row.high is None else f" and at most {row.high if is_whole else f'{row.high:g}'}"
        what = "an integer" if is_whole else "a number"
        raise _refusal(row.name, f"is {value!r}; expected {what}{lower}{upper}")
    return int(value) if is_whole else value if isinstance(value, (int, float)) else float(value)


def _canonical_schema(schema: Any) -> str:
    """Return the schema as compact JSON. The key order is preserved because answers follow the order of properties."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else read_schema(schema)
        if not isinstance(value, (Mapping, bool)):
            raise ValueError
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=dict)
    except (ValueError, TypeError, RecursionError):
        problem = f"is {str(schema)[:80]!r}; expected a JSON schema (mapping or string) or a pydantic class"
        raise _refusal("json_schema", problem) from None


def _refusal(field: str, problem: str, *others: str) -> RequestError:
    """Return an error; `others` are further parameters in the message."""
    return RequestError(f"{field} {problem}", field=field, names=(field, *others))
