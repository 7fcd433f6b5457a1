"""Request bodies of Gemini's API. Each field is supported, ignored or rejected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import Field

from woolly.chat import ChatRequest, ReasoningOptions
from woolly.sampling import SamplingParams
from woolly.serving.dialects.gemini.contents import Camel, Content, read_contents
from woolly.serving.dialects.gemini.schema import json_schema
from woolly.serving.dialects.gemini.tools import ToolConfig, ToolSpec, read_choice
from woolly.serving.dialects.reasoning_terms import read_thinking
from woolly.serving.dialects.sampling_parameters import Items, Sampling
from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore

MAX_CANDIDATES = 8  # Google's limit
MAX_TOP = 20
_JSON, _ENUM, _PLAIN = "application/json", "text/x.enum", "text/plain"
_HARMLESS = "Accepted without effect."
_LEVELS = ("minimal", "low", "medium", "high")


class ThinkingConfig(Camel):
    """Reasoning switch, budget, and visibility in the reply."""

    include_thoughts: bool | None = None
    thinking_budget: int | None = Field(None, description="Maximum reasoning tokens; 0: none, -1: no limit.")
    thinking_level: str | None = None


class GenerationConfig(Camel):
    """Sampling options and output format."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    seed: int | None = None
    max_output_tokens: int | None = None
    stop_sequences: Items[str] | None = None
    candidate_count: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_mime_type: str | None = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    internal_json_schema: dict[str, Any] | None = Field(None, alias="_responseJsonSchema")
    response_logprobs: bool | None = None
    logprobs: int | None = None
    response_modalities: list[str] | None = None
    thinking_config: ThinkingConfig | None = None
    media_resolution: str | None = Field(None, description=_HARMLESS)
    speech_config: Any = None
    image_config: Any = None

    @property
    def thinking(self) -> ThinkingConfig:
        """Return the reasoning options; empty if none are sent."""
        return self.thinking_config or ThinkingConfig.model_validate({})

    def check(self) -> None:
        """Raise ApiError for unsupported values, by field name."""
        for name, given in (("speechConfig", self.speech_config), ("imageConfig", self.image_config)):
            if given is not None:
                raise invalid_param(f"generationConfig.{name}", "image and audio output are not supported; remove it")
        if self.response_modalities and [one.upper() for one in self.response_modalities] != ["TEXT"]:
            raise invalid_param("generationConfig.responseModalities", "only ['TEXT'] is supported")
        if self.candidate_count is not None and not 1 <= self.candidate_count <= MAX_CANDIDATES:
            message = f"expected 1 to {MAX_CANDIDATES}, but got {self.candidate_count}"
            raise invalid_param("generationConfig.candidateCount", message)
        if self.logprobs is not None:
            if not self.response_logprobs:
                raise invalid_param("generationConfig.logprobs", "needs responseLogprobs true")
            if not 0 <= self.logprobs <= MAX_TOP:
                raise invalid_param("generationConfig.logprobs", f"expected 0 to {MAX_TOP}, but got {self.logprobs}")
        if self.response_mime_type not in (None, _PLAIN, _JSON, _ENUM):
            raise invalid_param(
                "generationConfig.responseMimeType",
                f"expected {_JSON}, {_ENUM} or {_PLAIN}, but got {self.response_mime_type[:40]!r}",
            )

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """JSON schema of the answer; None for plain text."""
        json = self.response_json_schema or self.internal_json_schema
        if json is not None and self.response_schema is not None:
            raise invalid_param(
                "generationConfig.responseJsonSchema", "cannot be combined with responseSchema; remove one of them"
            )
        wanted = json
        if self.response_schema is not None:
            wanted = json_schema(self.response_schema, "generationConfig.responseSchema")
        if self.response_mime_type == _JSON:
            return {"type": ["object", "array"]} if wanted is None else wanted
        if self.response_mime_type == _ENUM:
            return None
        if wanted is not None:
            raise invalid_param("generationConfig.responseMimeType", f"a schema needs {_JSON} or {_ENUM}")
        return None

    @property
    def choices(self) -> tuple[str, ...] | None:
        """Allowed answers of an enum; None without an enum."""
        if self.response_mime_type != _ENUM:
            return None
        given = self.response_schema or self.response_json_schema or self.internal_json_schema or {}
        texts = given.get("enum")
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise invalid_param("generationConfig.responseSchema", f"{_ENUM} needs a schema with an enum of strings")
        return tuple(texts)

    def params(self, defaults: SamplingParams) -> SamplingParams:
        """Return the engine's parameters."""
        sent: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else int(self.top_k),
            "seed": None if self.seed is None else self.seed % 2**32,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "stop": self.stop_sequences or None,
        }
        return Sampling(**sent).params(
            defaults,
            max_tokens=self.max_output_tokens,
            n=self.candidate_count,
            choice=self.choices,
            logprobs=(self.logprobs or 0) if self.response_logprobs else None,
        )


class CountBody(Camel):
    """Body of :countTokens: the fields of a prompt."""

    contents: Items[Content] = Field(default_factory=list)
    system_instruction: Content | str | None = None
    tools: Items[ToolSpec] | None = None
    tool_config: ToolConfig | None = None
    generation_config: GenerationConfig | None = None
    safety_settings: list[Any] | None = Field(None, description="Accepted without effect.")
    cached_content: str | None = None
    labels: dict[str, str] | None = Field(None, description=_HARMLESS)
    service_tier: Any = Field(None, description=_HARMLESS)
    store: bool | None = Field(None, description=_HARMLESS)
    model: str | None = Field(None, description="Accepted; the path determines the model.")
    generate_content_request: GenerateBody | None = Field(None, description="Complete request, for countTokens.")

    @property
    def config(self) -> GenerationConfig:
        """Generation options; empty if none are sent."""
        return self.generation_config or GenerationConfig.model_validate({})

    def to_chat(self, defaults: SamplingParams) -> ChatRequest:
        """Return the body as a ChatRequest."""
        config = self.config
        config.check()
        if self.cached_content:
            raise invalid_param(
                "cachedContent", "stored contents are not supported; send the contents, whose prefixes are cached"
            )
        if not self.contents:
            raise invalid_param("contents", "missing; expected at least one message")
        talk, schema = read_contents(self.system_instruction, self.contents), config.answer_schema
        choice = read_choice(self.tools or (), self.tool_config)
        last = talk[-1]
        is_bound = schema is not None or choice.is_enforced or config.choices is not None
        thinking = config.thinking
        wanted = read_thinking(None, self._effort(thinking), thinking.thinking_budget)
        params = config.params(defaults)
        if wanted.budget is not None:
            params = replace(params, reasoning_budget=wanted.budget)
        return ChatRequest(
            talk,
            params,
            choice,
            schema,
            ReasoningOptions(wanted.effort),
            continue_final=last.role == "assistant" and not last.calls and bool(last.content) and not is_bound,
        )

    def _effort(self, thinking: ThinkingConfig) -> str | None:
        level = (thinking.thinking_level or "").lower()
        if level in ("", "thinking_level_unspecified"):
            return None
        if level not in _LEVELS:
            ignore("generationConfig.thinkingConfig.thinkingLevel")
            return None
        return level


class GenerateBody(CountBody):
    """Body of :generateContent and :streamGenerateContent."""


class EmbedBody(Camel):
    """Body of :embedContent."""

    content: Content
    model: str | None = Field(None, description="Accepted; the path determines the model.")
    task_type: str | None = None
    title: str | None = None
    output_dimensionality: int | None = None
    auto_truncate: bool | None = None


class EmbedBodies(Camel):
    """Body of :batchEmbedContents."""

    requests: Items[EmbedBody] = Field(min_length=1)


CountBody.model_rebuild()
