"""POST /tokenize, /detokenize and /apply-template."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from woolly.llm import LLM
from woolly.serving.errors import ApiError
from woolly.serving.generation import Generator
from woolly.serving.holding import run_held
from woolly.serving.models import ModelManager
from woolly.serving.openai.messages import Message, template_messages
from woolly.serving.parameters import Items

__all__ = [
    "Detokenize",
    "Template",
    "Tokenize",
    "apply_template",
    "detokenize",
    "router",
    "tokenize",
]

router = APIRouter()


class Tokenize(BaseModel):
    """A text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    content: str
    add_special: bool = Field(False, description="Add BOS and EOS as the model's file says.")
    parse_special: bool = Field(True, description="Know control tokens that are written out.")
    with_pieces: bool = Field(False, description="Tell the text of each token, or its bytes where they are no text.")
    model: str | None = None


class Detokenize(BaseModel):
    """Token ids."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tokens: Items[int]
    model: str | None = None


class Template(BaseModel):
    """A conversation, as /v1/chat/completions takes it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    messages: Items[Message]
    tools: Items[dict[str, Any]] | None = None
    documents: Items[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, description="The template's own switches.")
    model: str | None = None


@router.post("/tokenize")
async def tokenize(body: Tokenize, request: Request) -> dict[str, Any]:
    """Text -> token ids."""
    models: ModelManager = request.app.state.models
    generator: Generator = request.app.state.generator
    async with models.use(body.model) as slot, generator.texts:
        generator.check_characters(slot.model, [body.content])
        return await run_held(_tokens, slot.model, body)


@router.post("/detokenize")
async def detokenize(body: Detokenize, request: Request) -> dict[str, str]:
    """Token ids -> text."""
    models: ModelManager = request.app.state.models
    generator: Generator = request.app.state.generator
    async with models.use(body.model) as slot, generator.texts:
        return {"content": await run_held(slot.model.detokenize, body.tokens)}


@router.post("/apply-template")
async def apply_template(body: Template, request: Request) -> dict[str, str]:
    """The prompt that the model's chat template makes of a conversation."""
    models: ModelManager = request.app.state.models
    generator: Generator = request.app.state.generator
    async with models.use(body.model) as slot, generator.texts:
        given = body.model_dump(include={"messages", "tools", "documents", "chat_template_kwargs"})
        generator.check_characters(slot.model, given.values())
        return {"prompt": await run_held(_prompt, slot.model, body)}


def _tokens(llm: LLM, body: Tokenize) -> dict[str, Any]:
    ids = llm.tokenize(body.content, add_special=body.add_special, parse_special=body.parse_special)
    return {"tokens": [{"id": id, "piece": _piece(llm, id)} for id in ids] if body.with_pieces else ids}


def _piece(llm: LLM, id: int) -> str | list[int]:
    data = llm.tokenizer.token_bytes(id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _prompt(llm: LLM, body: Template) -> str:
    for name in ("messages", "tools", "documents", "add_generation_prompt"):
        if name in body.chat_template_kwargs:
            raise ApiError(
                400,
                "invalid_request",
                f"chat_template_kwargs.{name} is a field of its own",
                param="chat_template_kwargs",
            )
    return llm.template.render(
        template_messages(body.messages),
        tools=body.tools,
        documents=body.documents,
        add_generation_prompt=body.add_generation_prompt,
        **body.chat_template_kwargs,
    )
