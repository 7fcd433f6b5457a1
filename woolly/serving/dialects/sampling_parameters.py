"""Sampling parameters of requests, with llama-server's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model

from woolly.sampling import SamplingParams, options_of
from woolly.sampling.checks import MAX_TOKEN_ID
from woolly.sampling.params import SAMPLERS
from woolly.serving.errors import ApiError, invalid_param
from woolly.serving.observability.logs import ignore

Item = TypeVar("Item")

# List that stops at the first invalid item, because reporting thousands of errors takes longer than an answer.
Items = Annotated[list[Item], Field(fail_fast=True)]

# Client metadata of stored objects, within OpenAI's limits.
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16, description="At most 16 pairs, with keys of 64 and values of 512 characters."),
]

_ROWS = options_of(SamplingParams)

# Fields with different names and types in each dialect; `stop` may also be a single string.
_BY_DIALECT = frozenset({"json_object", "logprobs", "max_tokens", "n", "prompt_logprobs", "stop"})

# Server defaults that apply to every sampler.
_ALWAYS = tuple(
    name for name, row in _ROWS.items() if row.runs_with_mirostat and not name.startswith(("mirostat", "dynatemp"))
)
_STRUCTURES = ("json_schema", "json_object", "regex", "choice", "lark", "grammar")

# Each generated token is checked for every stop string.
_MAX_STOPS = 256
_MAX_STOP_BYTES = 64 * 1024

_RANDOM_SEEDS = (-1, 2**32 - 1)  # llama-server's values for a random seed


def body_of(params: type) -> type[BaseModel]:
    """Return a pydantic model with the options of SamplingParams (or a subclass) that have a plain type."""
    known: dict[str, Any] = {}
    for name, row in options_of(params).items():
        if row.kind is None or name in _BY_DIALECT:
            continue
        kind: Any = row.kind
        if get_origin(kind) is list:
            kind = Annotated[kind, Field(fail_fast=True)]
        known[name] = (kind | None, Field(None, description=row.help))
    return create_model("Options", __config__=ConfigDict(extra="forbid", strict=True), **known)


if TYPE_CHECKING:

    class _Options(BaseModel):
        seed: int | None
        temperature: float | None
        top_p: float | None
        context_shift: bool | None
        reasoning_budget: int | None
        grammar: str | None
else:
    _Options = body_of(SamplingParams)


class Sampling(_Options):
    """Sampling fields of every dialect. A missing field or null selects the server's default.

    Subclasses add the fields of a dialect and reject unknown names.
    """

    logit_bias: dict[str, float | bool] | Items[Items[int | str | float | bool]] | None = Field(
        None, description="Token ids or strings with a bias for their logits; false: never."
    )
    stop: str | Items[str] | None = Field(None, description=_ROWS["stop"].help)
    json_schema: dict[str, Any] | bool | None = Field(None, description=_ROWS["json_schema"].help)
    cache_prompt: bool | None = Field(
        None, description="Accepted; cached prefixes are always reused and do not change answers."
    )

    def check_text(self) -> None:
        """Raise ApiError for fields that only chats support."""
        if self.reasoning_budget is not None and self.reasoning_budget >= 0:
            raise invalid_param("reasoning_budget", "only chats support it; use POST /v1/chat/completions")

    def params(self, defaults: SamplingParams, **overrides: Any) -> SamplingParams:
        """Return the engine's parameters; `defaults` are from `Generator.defaults_for`.

        `overrides` are fields of SamplingParams; None values are ignored. Raises RequestError for invalid or
        contradictory values.
        """
        if self.cache_prompt is False:
            ignore("cache_prompt")
        sent = {name: value for name in _ROWS if (value := getattr(self, name, None)) is not None}
        sent |= {name: value for name, value in overrides.items() if value is not None}
        if sent.get("seed") in _RANDOM_SEEDS:
            sent["seed"] = None
        if "stop" in sent:
            sent["stop"] = _stops(sent["stop"])
        if "logit_bias" in sent:
            sent["logit_bias"] = _bias(sent["logit_bias"])
        if sent.get("mirostat") or "samplers" in sent:
            # Do not apply server defaults of samplers that will not run.
            defaults = SamplingParams(**{name: getattr(defaults, name) for name in _ALWAYS})
        sent = _running(defaults, sent)
        return replace(defaults, **_released(defaults, sent), **sent)


def _running(defaults: SamplingParams, sent: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without those of samplers that the server's --mirostat or --samplers replaces."""
    if "mirostat" in sent or "samplers" in sent or not (defaults.mirostat or defaults.samplers != SAMPLERS):
        return sent
    kept = {}
    for name, value in sent.items():
        row = _ROWS[name]
        runs = row.runs_with_mirostat if defaults.mirostat else row.sampler in (None, "*", *defaults.samplers)
        if runs:
            kept[name] = value
        else:
            ignore(name)
    return kept


def _released(defaults: SamplingParams, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server defaults that a request makes meaningless, with the values of no default."""
    released = {}
    has_structure = any(sent.get(name) not in (None, False, ()) for name in _STRUCTURES)
    for name, row in _ROWS.items():
        if name in sent or getattr(defaults, name) == row.default:
            continue
        masters = [(sent.get(one, getattr(defaults, one)), _ROWS[one].off) for one in row.needs]
        is_unread = bool(masters) and all(value == off for value, off in masters)
        if is_unread or (has_structure and name in (*_STRUCTURES, "ignore_eos", "min_tokens")):
            released[name] = row.default
    return released


def _stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    n_bytes = sum(len(one.encode("utf-8", "surrogatepass")) for one in stops)
    if len(stops) > _MAX_STOPS or n_bytes > _MAX_STOP_BYTES:
        raise ApiError(
            400,
            "invalid_request",
            f"stop has {len(stops)} strings with {n_bytes} bytes; the limit is {_MAX_STOPS} strings and"
            f" {_MAX_STOP_BYTES} bytes",
            param="stop",
        )
    return stops


def _bias(bias: Any) -> dict[int | str, float | bool]:
    """Convert a list of pairs or a mapping to a mapping. Numeric keys become token ids."""
    pairs = bias.items() if isinstance(bias, Mapping) else bias
    found: dict[int | str, float | bool] = {}
    for pair in pairs:
        if len(pair) != 2 or isinstance(pair[0], (bool, float)) or isinstance(pair[1], str):
            raise ApiError(
                400,
                "invalid_request",
                f"logit_bias has {list(pair)!r}; expected pairs of a token id or string and a number",
                param="logit_bias",
            )
        key, value = pair
        if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20:
            key = int(key)
        # Checked before the insertion, because hashes of large numbers collide and make the dict quadratic.
        if isinstance(key, int) and not 0 <= key <= MAX_TOKEN_ID:
            raise ApiError(
                400,
                "invalid_request",
                f"logit_bias has token id {key}; expected ids from 0 to {MAX_TOKEN_ID}",
                param="logit_bias",
            )
        found[key] = value
    return found
