"""Vocabulary and chat template of a model file, read without loading the model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from woolly.chat import Message, ToolCall
from woolly.chat.tools.prompt import renders_tools
from woolly.errors import WoollyError
from woolly.gguf import open_gguf
from woolly.serving.errors import ApiError
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.settings.table import Settings
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """Special tokens as text, and the chat template."""

    model: str  # tokenizer type
    n_tokens: int
    bos: str | None
    eos: str | None
    pad: str | None
    unk: str | None
    adds_bos: bool
    adds_eos: bool
    template: str
    caps: dict[str, bool]  # capabilities of the template, with llama-server's names


async def read_vocabulary(info: ModelInfo, models: ModelManager, settings: Settings) -> Vocabulary:
    """Return the vocabulary of a loaded model or a model file. Raises ApiError 422 for an invalid file."""
    slot = models.ready(info.name)
    if slot is not None and slot.llm is not None:  # not with `use`, which would keep an idle model loaded
        return await asyncio.to_thread(_vocabulary, slot.llm.tokenizer, slot.llm.template)
    try:
        return await asyncio.to_thread(partial(_of_file, info, settings.template_source))
    except WoollyError as error:
        message = str(error).replace(str(info.path), info.path.name)
        raise ApiError(422, "invalid_model", message, param="model") from None


def _of_file(info: ModelInfo, source: str | None) -> Vocabulary:
    with open_gguf(info.path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        bos, eos = (_text(tokenizer, id) or "" for id in (tokenizer.bos_id, tokenizer.eos_id))
        if source is not None:
            template = ChatTemplate(source, bos_token=bos, eos_token=eos)
        else:
            template = ChatTemplate.from_metadata(file.metadata, bos_token=bos, eos_token=eos)
        return _vocabulary(tokenizer, template)


def _vocabulary(tokenizer: Tokenizer, template: ChatTemplate) -> Vocabulary:
    ids = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.unk_id)
    bos, eos, pad, unk = (_text(tokenizer, id) for id in ids)
    return Vocabulary(
        tokenizer.model,
        tokenizer.n_vocab,
        bos,
        eos,
        pad,
        unk,
        tokenizer.add_bos,
        tokenizer.add_eos,
        template.source,
        _caps(template),
    )


def _text(tokenizer: Tokenizer, id: int | None) -> str | None:
    return None if id is None else tokenizer.token_bytes(id).decode("utf-8", "replace")


def _caps(template: ChatTemplate) -> dict[str, bool]:
    for_tools = template.for_tools
    return {
        "supports_string_content": template.takes_text,
        "supports_typed_content": template.takes_parts,
        "supports_system_role": template.takes("system", "user"),
        "supports_tools": renders_tools(for_tools.source),
        "supports_tool_calls": _shows_calls(for_tools, 1),
        "supports_parallel_tool_calls": _shows_calls(for_tools, 2),
        "supports_preserve_reasoning": "reasoning_content" in template.source,
    }


def _shows_calls(template: ChatTemplate, n: int) -> bool:
    """Return True if the template renders n calls in one message."""
    calls = tuple(ToolCall(f"call{i:05}", f"probe_{i}", "{}") for i in range(n))
    talk = (Message("user", "."), Message("assistant", "", calls=calls))
    try:
        shown = template.render([message.to_template() for message in talk], add_generation_prompt=False)
    except WoollyError:
        return False
    return all(call.name in shown for call in calls)
