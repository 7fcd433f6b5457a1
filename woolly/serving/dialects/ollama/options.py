"""Conversion of Ollama's options to sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from woolly.sampling import SamplingParams
from woolly.serving.dialects.sampling_parameters import Sampling
from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore

_WHOLE = ("top_k", "repeat_last_n", "seed", "mirostat")
_SAME = (
    *_WHOLE, "temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty",
    "stop", "mirostat_tau", "mirostat_eta",
)  # fmt: skip


def read_derived_options(options: Mapping[str, Any], defaults: SamplingParams, n_ctx: int) -> dict[str, Any]:
    """Return the options of a derived model as keys of a preset, validated as in a request."""
    context = _as_int("num_ctx", options.get("num_ctx") or 0)
    if context < 0:
        raise invalid_param("options.num_ctx", f"expected a positive integer, but got {context}")
    params = read_options({**options, "num_ctx": None}, defaults, n_ctx)
    sent = {"max_tokens" if name == "num_predict" else name for name, value in options.items() if value is not None}
    found = {name: getattr(params, name) for name in (*_SAME, "max_tokens") if name in sent}
    return {name: value for name, value in found.items() if value is not None} | ({"ctx": context} if context else {})


def read_options(options: Mapping[str, Any] | None, defaults: SamplingParams, n_ctx: int) -> SamplingParams:
    """Return the engine's parameters. Nulls are skipped, and unsupported options are recorded as ignored.

    `n_ctx` is the context size of the loaded model, which a request cannot change.
    """
    sent = {name: value for name, value in (options or {}).items() if value is not None}
    limit = _as_int("num_predict", sent.pop("num_predict", -1))
    context = _as_int("num_ctx", sent.pop("num_ctx", 0))
    if context > n_ctx:
        ignore(f"options.num_ctx (the context size is {n_ctx})")
    fields = {name: _as_int(name, sent[name]) if name in _WHOLE else sent[name] for name in _SAME if name in sent}
    for name in sent.keys() - fields.keys():
        ignore(f"options.{name}")
    try:
        # -1 and -2 mean no limit in Ollama.
        return Sampling.model_validate(fields).params(defaults, max_tokens=limit if limit >= 0 else None)
    except ValidationError as error:
        first = error.errors()[0]
        raise invalid_param(f"options.{first['loc'][0]}", first["msg"][:1].lower() + first["msg"][1:]) from None


def _as_int(name: str, value: Any) -> int:
    """Return an integer; some clients send 40.0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        raise invalid_param(f"options.{name}", f"expected an integer, but got {str(value)[:40]!r}")
    return int(value)
