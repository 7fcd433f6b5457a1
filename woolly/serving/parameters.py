"""Sampling: the parameters of a generation as clients send them, under llama-server's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from woolly.engine import SamplingParams
from woolly.serving.errors import ApiError

__all__ = ["Items", "Sampling"]

Item = TypeVar("Item")

# A list of which the first wrong item is told: an error for each of many would take longer than the answer.
Items = Annotated[list[Item], Field(fail_fast=True)]

_FIELDS = frozenset(field.name for field in fields(SamplingParams))

# Of the server's defaults, those that hold whatever chooses the tokens.
_ALWAYS = ("max_tokens", "seed", "temperature")

# Every token of an answer is looked through for each of them.
_MOST_STOPS = 256
_MOST_STOP_BYTES = 64 * 1024

_RANDOM_SEEDS = (-1, 2**32 - 1)  # both mean "any" to llama-server


class Sampling(BaseModel):
    """What every dialect takes; a field that is not sent, or is null, keeps the server's default.

    A subclass adds the fields of its dialect; a name that it does not know is refused.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    seed: int | None = Field(None, description="The same seed gives the same answer; -1 for any.")
    temperature: float | None = Field(None, description="0 takes the likeliest token each time.")
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    min_keep: int | None = None
    samplers: Items[str] | None = Field(None, description="The samplers that run, in order.")
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_last_n: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: Items[str] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    logit_bias: dict[str, float | bool] | Items[Items[int | str | float | bool]] | None = Field(
        None, description="Token ids or texts and what is added to their logits; false for never."
    )
    ignore_eos: bool | None = None
    stop: str | Items[str] | None = Field(None, description="Texts that end the answer.")
    stop_token_ids: Items[int] | None = None
    min_tokens: int | None = None
    n_keep: int | None = None
    context_shift: bool | None = Field(None, description="Drop old tokens when the context is full, instead of ending.")
    grammar: str | None = Field(None, description="GBNF that the answer must follow.")
    json_schema: dict[str, Any] | bool | None = Field(None, description="JSON schema that the answer must follow.")
    regex: str | None = None
    choice: Items[str] | None = None
    lark: str | None = None
    cache_prompt: bool | None = Field(None, description="Prefixes are always reused, which changes no answer.")

    def params(self, defaults: SamplingParams, **overrides: Any) -> SamplingParams:
        """What the engine takes. `defaults` is `app.state.generator.defaults`; `overrides` are SamplingParams fields.

        An override of None asks for nothing. RequestError where a value is out of range or contradicts another.
        """
        if self.cache_prompt is False:
            raise ApiError(
                400,
                "unsupported_parameter",
                "cache_prompt is false, but prefixes are always reused here, which changes no answer; leave it out",
                param="cache_prompt",
            )
        sent = {name: value for name in _FIELDS if (value := getattr(self, name, None)) is not None}
        sent |= {name: value for name, value in overrides.items() if value is not None}
        if sent.get("seed") in _RANDOM_SEEDS:
            sent["seed"] = None
        for name in ("samplers", "dry_sequence_breakers", "stop_token_ids", "choice"):
            if name in sent:
                sent[name] = tuple(sent[name])
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
    if len(stops) > _MOST_STOPS or n_bytes > _MOST_STOP_BYTES:
        raise ApiError(
            400,
            "invalid_request",
            f"stop has {len(stops)} texts of {n_bytes} bytes together; at most {_MOST_STOPS} texts and"
            f" {_MOST_STOP_BYTES} bytes are taken",
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
                f"logit_bias holds {list(pair)!r}; pairs of a token id or a text and a number were expected",
                param="logit_bias",
            )
        key, value = pair
        if isinstance(key, str) and key.isascii() and key.isdigit():
            key = int(key)
        found[key] = value
    return found
