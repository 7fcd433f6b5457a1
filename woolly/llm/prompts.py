"""Parsing of prompts and conversations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from woolly import multimodal
from woolly.chat import (
    AudioPart,
    ChatRequest,
    FilePart,
    ImagePart,
    Message,
    ReasoningOptions,
    ToolChoice,
    VideoPart,
)
from woolly.chat.message import read_messages
from woolly.chat.tools.tool import ToolSource
from woolly.errors import RequestError
from woolly.sampling import SamplingParams, options_of
from woolly.sampling.schema import read_schema
from woolly.sampling.unknown_arguments import check_keywords

Messages = str | Sequence[Mapping[str, Any]]  # a string is a single user message
Chats = list[str] | Sequence[Sequence[Mapping[str, Any]]]

_NOT_VARIABLES = ("messages", "tools", "documents")  # separate arguments


def is_list_of_prompts(prompt: object) -> bool:
    """True for several prompts: a list that begins with a string, a list or an array of ids, or an empty list."""
    if isinstance(prompt, (str, bytes, bytearray)) or not isinstance(prompt, Sequence):
        return False
    return isinstance(prompt[0], (Sequence, np.ndarray)) if prompt else isinstance(prompt, list)


def read_ids(prompt: Any) -> Sequence[int]:
    """Return the token ids of a prompt, which may be a NumPy array; raise RequestError for anything else."""
    if isinstance(prompt, np.ndarray):
        if prompt.ndim == 1 and np.issubdtype(prompt.dtype, np.integer):
            ids: list[int] = prompt.tolist()
            return ids
        raise RequestError(
            f"the prompt is an array of {prompt.dtype} with shape {prompt.shape}; expected whole numbers in one"
            " dimension, or a list of such arrays"
        )
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
        raise RequestError(f"the prompt is of type {type(prompt).__name__}; expected text or a list of token ids")
    return prompt


def is_list_of_chats(messages: object) -> bool:
    """True for several conversations: a list that begins with a string or a list of messages."""
    return isinstance(messages, (list, tuple)) and isinstance(next(iter(messages), None), (str, list, tuple))


def split_options(
    call: str, options: Mapping[str, Any], known: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sampling options and the other options; raise KeywordError for an unknown option."""
    check_keywords(call, options, known)
    rows = options_of(SamplingParams)
    sampling = {name: value for name, value in options.items() if name in rows}
    return sampling, {name: value for name, value in options.items() if name not in rows}


def params_of_each(params: Any, n: int, sampling: Mapping[str, Any], defaults: SamplingParams) -> list[SamplingParams]:
    """Return the parameters of each of n prompts, overridden by `sampling`.

    `params` is one value for all prompts, or a list.
    """
    given = list(params) if isinstance(params, (list, tuple)) else [defaults if params is None else params] * n
    if len(given) != n:
        raise RequestError(f"got {len(given)} params for {n} prompts; expected one for all, or one per prompt")
    for one in given:
        if not isinstance(one, SamplingParams):
            raise RequestError(f"params is of type {type(one).__name__}; expected SamplingParams(...)")
    return [replace(one, **sampling) for one in given] if sampling else given


def read_chat(
    messages: Messages,
    params: SamplingParams,
    *,
    schema: Mapping[str, Any] | type | None = None,
    tell_schema: bool = False,
    tools: Sequence[ToolSource] | None = None,
    tool_choice: str | None = None,
    parallel_tool_calls: bool = True,
    reasoning_effort: str | None = None,
    split_reasoning: bool = True,
    continue_final: bool = False,
    documents: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    images: Sequence[Any] | None = None,
    audio: Sequence[Any] | None = None,
) -> ChatRequest:
    """Return the request for a conversation. Keywords are the fields of ChatOptions."""
    for name in _NOT_VARIABLES:
        if name in (variables or {}):
            raise RequestError(f"variables contains {name!r}, which is not a template variable; pass it as {name}=...")
    talk = read_messages([{"role": "user", "content": messages}] if isinstance(messages, str) else messages)
    return ChatRequest(
        _with_media(talk, images, audio),
        params,
        ToolChoice.of(tools or (), tool_choice, parallel_tool_calls),
        read_schema(schema),
        ReasoningOptions(reasoning_effort, split_reasoning),
        None if documents is None else tuple(documents),
        variables or {},
        continue_final,
        tell_schema,
    )


def _with_media(
    talk: tuple[Message, ...], images: Sequence[Any] | None, audio: Sequence[Any] | None
) -> tuple[Message, ...]:
    """Return the messages with images and audio before the text of the last message, which must be the user's."""
    parts: list[ImagePart | AudioPart | FilePart | VideoPart] = []
    for name, given, what in (("images", images, "images"), ("audio", audio, "audio clips")):
        if given is None:
            continue
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
            raise RequestError(f"{name} is of type {type(given).__name__}; expected a list of {what}", field=name)
        if talk[-1].role != "user":
            raise RequestError(f"{name}: the last message must have the role user, but it has {talk[-1].role[:40]!r}")
        for i, one in enumerate(given):
            where = f"{name}[{i}]"
            if name == "audio":
                parts.append(AudioPart(multimodal.AudioInput(one, where=where)))
            elif multimodal.is_pdf(one):
                parts.append(FilePart(multimodal.FileInput(one, where=where)))
            elif multimodal.is_video(one):
                parts.append(VideoPart(multimodal.VideoInput(one, where=where)))
            else:
                parts.append(ImagePart(multimodal.ImageInput(one, where=where)))
    return (*talk[:-1], replace(talk[-1], content=(*parts, *talk[-1].parts))) if parts else talk
