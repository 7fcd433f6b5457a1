"""POST /tokenize, /detokenize and /apply-template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from woolly.chat import ChatRequest, Modalities, render_prompt
from woolly.chat.files import open_files
from woolly.chat.media import has_media
from woolly.llm import LLM
from woolly.serving.dialects.completions.bodies import ChatBody
from woolly.serving.dialects.completions.messages import Message, read_messages
from woolly.serving.dialects.completions.tools import ToolSpec, read_choice
from woolly.serving.dialects.llama.media_markers import seen_prompt
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import invalid_param
from woolly.serving.generation.generator import Generator
from woolly.serving.generation.thread_pool import run_in_thread
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.router import APIRouter

router = APIRouter()


class Tokenize(BaseModel):
    """Text to tokenize, in the format of llama-server (`content`) or vLLM (`prompt` or `messages`)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    content: str | None = None
    add_special: bool = Field(False, description="Add BOS and EOS as configured in the model file.")
    parse_special: bool = Field(True, description="Parse control tokens in the text.")
    with_pieces: bool = Field(False, description="Return each token's text, or its bytes if they are not valid UTF-8.")
    prompt: str | None = Field(None, description="Text (vLLM).")
    messages: Items[Message] | None = Field(None, description="Chat (vLLM).")
    tools: Items[ToolSpec] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = Field(False, description="Leave the last message open.")
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool = Field(True, description="Same as add_special (vLLM).")
    return_token_strs: bool | None = Field(None, description="Return each token's text (vLLM).")
    model: str | None = None


class Detokenize(BaseModel):
    """Token ids to convert to text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tokens: Items[int]
    model: str | None = None


class Template(ChatBody):
    """Body of /chat/completions with additional fields for templates."""

    documents: Items[dict[str, Any]] | None = None


@router.post("/tokenize")
async def tokenize(body: Tokenize, request: Request) -> dict[str, Any]:
    """Tokenize text. With `prompt` or `messages`, the reply has vLLM's format."""
    given = [name for name in ("content", "prompt", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise invalid_param(given[1] if given else "content", "expected one of content, prompt and messages")
    models: ModelManager = request.app.state.models
    generator: Generator = request.app.state.generator
    async with models.use(body.model) as slot, generator.texts:
        generator.check_characters(slot.model, body.model_dump(include={*given, "tools"}).values())
        if given == ["content"]:
            return await run_in_thread(_tokens, slot.model, body)
        chat = None
        if body.messages is not None:
            choice = read_choice(body.tools, None, None)
            begins = body.add_generation_prompt and "add_generation_prompt" in body.model_fields_set
            if body.continue_final_message and begins:
                raise invalid_param(
                    "continue_final_message", "cannot be combined with add_generation_prompt; set one of them"
                )
            asked = ChatRequest(
                read_messages(body.messages),
                tools=choice,
                variables=body.chat_template_kwargs or {},
                continue_final=body.continue_final_message,
            )
            chat = generator.with_defaults(asked, slot)
        pool = generator.media_pool if chat is not None and has_media(chat.messages) else None
        check = partial(generator.check_text, slot.model)
        return await run_in_thread(
            _counted, slot.model, body, chat, generator.load_modalities(slot.model), check, pool=pool
        )


@router.post("/detokenize")
async def detokenize(body: Detokenize, request: Request) -> dict[str, str]:
    """Convert token ids to text, with the field names of llama-server and vLLM."""
    models: ModelManager = request.app.state.models
    generator: Generator = request.app.state.generator
    async with models.use(body.model) as slot, generator.texts:
        text = await run_in_thread(slot.model.detokenize, body.tokens)
        return {"content": text, "prompt": text}


@router.post("/apply-template")
async def apply_template(body: Template, request: Request) -> dict[str, str]:
    """Render a chat with the model's chat template."""
    models: ModelManager = request.app.state.models
    generator: Generator = request.app.state.generator
    is_open_end = body.add_generation_prompt is False and not body.continue_final_message
    asked = body.model_copy(update={"add_generation_prompt": None}) if is_open_end else body
    chat = asked.to_chat(await generator.defaults_for(body.model))
    documents = None if body.documents is None else tuple(body.documents)
    continues = chat.continue_final and not is_open_end
    chat = replace(chat, documents=documents, continue_final=continues)
    async with models.use(body.model) as slot, generator.texts:
        given = body.model_dump(include={"messages", "tools", "documents", "chat_template_kwargs"})
        generator.check_characters(slot.model, given.values())
        llm = slot.model
        render = partial(render_prompt, begins_answer=not is_open_end)
        shown, modalities = generator.with_defaults(chat, slot), generator.load_modalities(llm)
        pool = generator.media_pool if has_media(shown.messages) else None
        return {"prompt": await run_in_thread(render, shown, llm.template, llm.tokenizer, modalities, pool=pool)}


def _tokens(llm: LLM, body: Tokenize) -> dict[str, Any]:
    ids = llm.tokenize(body.content or "", add_special=body.add_special, parse_special=body.parse_special)
    return {"tokens": [{"id": id, "piece": _piece(llm, id)} for id in ids] if body.with_pieces else ids}


def _counted(
    llm: LLM, body: Tokenize, chat: ChatRequest | None, modalities: Modalities | None, check: Callable[[str], None]
) -> dict[str, Any]:
    """Return vLLM's reply.

    Each image counts as its number of embeddings, as in a prompt; `check` rejects texts that are too long.
    """
    if chat is None:
        ids = llm.tokenize(body.prompt or "", add_special=body.add_special_tokens)
    else:
        files = open_files(chat.messages, modalities, llm.tokenizer, chat.pdf_pages, allows_remote=chat.allows_remote)
        chat = replace(chat, messages=files)
        text = render_prompt(chat, llm.template, llm.tokenizer, modalities, begins_answer=body.add_generation_prompt)
        check(text)
        ids = llm.tokenize_layout(seen_prompt(text, chat.messages, chat.params, modalities))
    strings = [llm.tokenizer.token_bytes(id).decode("utf-8", "replace") for id in ids]
    return {
        "count": len(ids),
        "max_model_len": llm.ctx,
        "tokens": ids,
        "token_strs": strings if body.return_token_strs else None,
    }


def _piece(llm: LLM, id: int) -> str | list[int]:
    data = llm.tokenizer.token_bytes(id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
