"""Body of POST /completion, and the settings that its reply echoes, with llama-server's names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import Field

from woolly.sampling import SamplingParams, options_of
from woolly.serving.dialects.adapter_scales import adapter_scales
from woolly.serving.dialects.llama.media_markers import MarkedPrompt, read_marked
from woolly.serving.dialects.sampling_parameters import Items, Sampling
from woolly.serving.errors import ApiError

# A string, token ids, a mix of both, or an object for multimodal prompts.
Prompt = str | Items[int | str] | dict[str, Any]

_RANDOM_SEED = 2**32 - 1

# Checked before any prompt is read; the queue limit is checked per request.
_MAX_PROMPTS = 256

# The probabilities of all tokens would take megabytes per generated token.
_MAX_PROBS = 100


class CompletionBody(Sampling):
    """llama-server's completion fields. Unsupported fields are rejected unless their value has no effect.

    `n_keep` has no effect without `context_shift`.
    """

    prompt: Prompt | Items[Prompt | Items[int | str]] = Field(
        description="A string, token ids, a mix of both, or a list of prompts."
    )
    model: str | None = None
    n_predict: int | None = Field(None, description="Maximum tokens of the answer; -1: no limit; 0: none.")
    max_tokens: int | None = Field(None, description="Same as n_predict.")
    n_cmpl: int | None = Field(None, ge=1, description="Answers to each prompt.")
    stream: bool = False
    n_probs: int = Field(0, ge=0, le=_MAX_PROBS, description="Number of top alternatives to return for each token.")
    return_tokens: bool = False
    timings_per_token: bool = False
    response_fields: Items[str] | None = Field(
        None, description="Fields of the reply to keep, such as timings/predicted_n."
    )
    id_slot: int = Field(-1, ge=-1, description="Slot that records the request's tokens; -1: any.")
    t_max_predict_ms: int | None = Field(None, description="Must be 0; use --request-timeout.")
    n_indent: int | None = Field(None, description="Must be 0.")
    n_discard: int | None = Field(None, description="Must be 0; a context shift drops the older half.")
    n_cache_reuse: int | None = Field(None, description="Must be 0.")
    return_progress: bool | None = Field(None, description="Send the prompt progress in a stream.")
    backend_sampling: bool | None = Field(None, description="Accepted without effect.")
    lora: Items[dict[str, Any]] | None = Field(None, description="Scales of adapters: objects with id and scale.")
    adaptive_target: float | None = Field(None, description="Must be below 0 (off).")
    adaptive_decay: float | None = Field(None, description="Accepted without effect.")

    def to_params(self, defaults: SamplingParams) -> SamplingParams:
        """Return the engine's parameters. The caller must handle a limit of 0, because the engine's minimum is 1."""
        self.check_text()
        for name in ("t_max_predict_ms", "n_indent", "n_discard", "n_cache_reuse"):
            self._only(name, 0)
        if self.adaptive_target is not None and self.adaptive_target >= 0:
            self._only("adaptive_target", -1.0)
        body = self.model_copy(update={"grammar": self.grammar or None})
        if not self.context_shift:
            body = body.model_copy(update={"n_keep": None})
        with_ids = self.n_probs > 0 or self.stream  # a stream sends the ids of each chunk
        params = body.params(
            defaults, n=self.n_cmpl, logprobs=self.n_probs if with_ids else None, adapters=self._adapters()
        )
        limit = self.limit
        return replace(params, max_tokens=limit if limit is not None and limit > 0 else params.max_tokens)

    @property
    def limit(self) -> int | None:
        """Maximum tokens of the answer; None selects the server's limit."""
        for name in ("n_predict", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < -2:
                raise ApiError(
                    400,
                    "invalid_request",
                    f"{name} is {value}; expected a number of tokens, or -1 for no limit",
                    param=name,
                )
        if self.n_predict is not None and self.max_tokens is not None and self.n_predict != self.max_tokens:
            raise ApiError(
                400,
                "invalid_request",
                f"n_predict is {self.n_predict} and max_tokens is {self.max_tokens}; send one of them",
                param="n_predict",
            )
        limit = self.max_tokens if self.n_predict is None else self.n_predict
        return None if limit is None or limit < 0 else limit

    def _adapters(self) -> dict[str | int, float] | None:
        """Scales by adapter id, 0 for unlisted adapters; None selects the server's scales."""
        return None if self.lora is None else adapter_scales(self.lora, "lora")

    def _only(self, name: str, nothing: Any) -> None:
        value = getattr(self, name)
        if value is not None and value != nothing:
            raise ApiError(
                400,
                "unsupported_parameter",
                f"{name} {value!r} is not supported; remove it or send {nothing!r}",
                param=name,
            )


def prompts_of(body: CompletionBody) -> tuple[list[str | list[int | str] | MarkedPrompt], bool]:
    """Return the prompts, and True if the body has a list of them; the reply is then a list, too."""
    prompt = body.prompt
    if not isinstance(prompt, list) or all(isinstance(part, int) for part in prompt):
        return [_one(prompt)], False
    is_mixed = any(isinstance(part, int) for part in prompt)
    if is_mixed and all(isinstance(part, (int, str)) for part in prompt):
        return [_one(prompt)], False
    if len(prompt) > _MAX_PROMPTS:
        raise ApiError(
            400,
            "invalid_request",
            f"expected at most {_MAX_PROMPTS} prompts, but got {len(prompt)}",
            param="prompt",
        )
    return [_one(part) for part in prompt], True


def _one(prompt: Any) -> str | list[int | str] | MarkedPrompt:
    if isinstance(prompt, dict):
        text = prompt.get("prompt_string")
        unknown = sorted(set(prompt) - {"prompt_string", "multimodal_data"})
        if not isinstance(text, str) or unknown:
            raise ApiError(
                400,
                "invalid_request",
                "expected an object with the string prompt_string and optionally multimodal_data",
                param="prompt",
            )
        data = prompt.get("multimodal_data")
        return text if data is None or data == [] else read_marked(text, data)
    if isinstance(prompt, bool) or not isinstance(prompt, (str, list)):
        raise ApiError(400, "invalid_request", "expected a string, or a list of token ids and strings", param="prompt")
    if not prompt:
        raise ApiError(400, "invalid_request", "the prompt is empty; send at least one token", param="prompt")
    return prompt


def generation_settings(params: SamplingParams, *, limit: int | None, **given: Any) -> dict[str, Any]:
    """Return the effective parameters with llama-server's names; `given` has parameters of the server."""
    n_predict = -1 if limit is None else limit
    rows = [row for row in options_of(SamplingParams).values() if row.group and row.kind in (int, float, bool)]
    return {
        **{row.name: getattr(params, row.name) for row in rows},
        "seed": _RANDOM_SEED if params.seed is None else params.seed,
        "dry_sequence_breakers": list(params.dry_sequence_breakers),
        "stop": list(params.stop),
        "max_tokens": n_predict,
        "n_predict": n_predict,
        "n_discard": 0,
        "logit_bias": [
            {"token": token, "bias": None if bias == float("-inf") else bias}
            for token, bias in params.logit_bias.items()
        ],
        "grammar": params.grammar or "",
        "samplers": list(params.samplers),
        "stream": False,
        "n_probs": 0,
        "timings_per_token": False,
        "post_sampling_probs": params.post_sampling_probs,
        "lora": [{"id": number, "scale": scale} for number, scale in (params.adapters or {}).items()],
        "adaptive_target": -1.0,  # off
        "adaptive_decay": 0.9,
        **given,
    }
