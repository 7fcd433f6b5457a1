"""Keyword options of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from woolly.sampling.params import SamplingOptions

if TYPE_CHECKING:
    from woolly.chat.tools.tool import ToolSource
    from woolly.engine import Hook


class SharedOptions(SamplingOptions, total=False):
    """Options of `generate` and `chat`; a sampling option overrides `params`."""

    timeout: float | None  # seconds after which the request ends as cancelled, with its partial text
    priority: int  # requests with higher priority run first
    replay_tokens: Sequence[int]  # leading token ids of the answer, replayed from an interrupted answer


class GenerateOptions(SharedOptions, total=False):
    """Options of `generate`."""

    hooks: Mapping[str | int, Hook] | None  # called with (positions, values) of the named steps, see `LLM.hidden`


class ChatOptions(SharedOptions, total=False):
    """Options of `chat`."""

    schema: Mapping[str, Any] | type | None  # JSON schema or pydantic class of the answer; reasoning may precede it
    tell_schema: bool  # True: the system message includes the schema
    tools: Sequence[ToolSource] | None  # Python functions, or mappings in OpenAI's format
    tool_choice: str | None  # none, auto (default), required, or the name of the tool that must be called
    parallel_tool_calls: bool  # False: at most one tool call
    reasoning_effort: str | None  # "none", or a value that the template supports
    split_reasoning: bool  # False: reasoning stays in the text, with its markers
    continue_final: bool  # True: the answer continues the last message, which must be the assistant's
    documents: Sequence[Mapping[str, Any]] | None  # for templates that support documents
    variables: Mapping[str, Any] | None  # template variables, such as enable_thinking
    images: Sequence[Any] | None  # images before the last message: paths, bytes, PIL images or arrays of uint8
    audio: Sequence[Any] | None  # audio before the last message: paths, bytes or arrays with a rate, (array, 16000)
