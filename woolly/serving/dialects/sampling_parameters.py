"""Sampling: the parameters of a generation as clients send them, under llama-server's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model

from woolly.sampling import SamplingParams, options_of
from woolly.sampling.checks import MAX_TOKEN_ID
from woolly.serving.errors import ApiError, invalid_param
from woolly.serving.observability.logs import ignore

Item = TypeVar("Item")

# A list whose first wrong item is the error: one error for each of many would take longer than the answer.
Items = Annotated[list[Item], Field(fail_fast=True)]

# What a client may attach to an object that the server keeps, within OpenAI's bounds.
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16, description="16 pairs at most, of 64 and 512 characters."),
]

_ROWS = options_of(SamplingParams)

# Each dialect has its own names and types for these; `stop` may also be one text.
_BY_DIALECT = frozenset({"json_object", "logprobs", "max_tokens", "n", "prompt_logprobs", "stop"})

# The server's defaults that apply to every way of choosing tokens.
_ALWAYS = ("max_tokens", "reasoning_budget", "reasoning_budget_message", "seed", "temperature")

# Every token of an answer is looked through for each of them.
_MAX_STOPS = 256
_MAX_STOP_BYTES = 64 * 1024

_RANDOM_SEEDS = (-1, 2**32 - 1)  # both mean "any" to llama-server


def body_of(params: type) -> type[BaseModel]:
    """A body with the options of SamplingParams, or of a class derived from it, that have a plain type."""
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
    """Sampling fields of every dialect; a field that is missing or null keeps the server's default.

    A subclass adds the fields of its dialect; an unknown name is rejected.
    """

    logit_bias: dict[str, float | bool] | Items[Items[int | str | float | bool]] | None = Field(
        None, description="Token ids or texts and what is added to their logits; false for never."
    )
    stop: str | Items[str] | None = Field(None, description=_ROWS["stop"].help)
    json_schema: dict[str, Any] | bool | None = Field(None, description=_ROWS["json_schema"].help)
    cache_prompt: bool | None = Field(None, description="Prefixes are always reused, which changes no answer.")

    def check_text(self) -> None:
        """Raise ApiError for chat-only fields in another body."""
        if self.reasoning_budget is not None and self.reasoning_budget >= 0:
            raise invalid_param("reasoning_budget", "it belongs to conversations: POST /v1/chat/completions")

    def params(self, defaults: SamplingParams, **overrides: Any) -> SamplingParams:
        """Return the engine's parameters from `Generator.defaults_for`; `overrides` are fields of SamplingParams.

        An override of None asks for nothing. RequestError where a value is out of range or contradicts another.
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
            # The server's defaults for samplers that do not run are nothing that this request asked for.
            defaults = SamplingParams(**{name: getattr(defaults, name) for name in _ALWAYS})
        return replace(defaults, **sent)


def _stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    n_bytes = sum(len(one.encode("utf-8", "surrogatepass")) for one in stops)
    if len(stops) > _MAX_STOPS or n_bytes > _MAX_STOP_BYTES:
        raise ApiError(
            400,
            "invalid_request",
            f"stop has {len(stops)} texts of {n_bytes} bytes together; at most {_MAX_STOPS} texts and"
            f" {_MAX_STOP_BYTES} bytes are allowed",
            param="stop",
        )
    return stops


def _bias(bias: Any) -> dict[int | str, float | bool]:
    """Pairs or a mapping -> a mapping; keys that are numbers are token ids, whatever JSON made of them."""
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
        # Before it becomes a key: Python's hashes of large numbers collide, and a dict of them takes quadratic time.
        if isinstance(key, int) and not 0 <= key <= MAX_TOKEN_ID:
            raise ApiError(
                400,
                "invalid_request",
                f"logit_bias has token id {key}; expected ids from 0 to {MAX_TOKEN_ID}",
                param="logit_bias",
            )
        found[key] = value
    return found
