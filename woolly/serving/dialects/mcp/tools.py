"""Tools of this server for MCP clients: answers, embeddings, ranking, token counts and the list of models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from woolly.chat import ChatRequest, Message
from woolly.llm import LLM
from woolly.serving.dialect import dialect_of
from woolly.serving.dialects.embeddings.bodies import RerankBody
from woolly.serving.dialects.embeddings.embeddings import embed_texts
from woolly.serving.dialects.embeddings.ranking import rank
from woolly.serving.dialects.reply import open_chat
from woolly.serving.generation.generator import Generator
from woolly.serving.generation.thread_pool import run_in_thread
from woolly.serving.model_manager.manager import ModelManager

_Model = Annotated[str | None, Field(description="Name of a model of list_models; default: the loaded model.")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: _Model = None


class _Answer(_Body):
    json_schema: dict[str, Any] | None = Field(default=None, description="JSON schema of the answer.")
    max_tokens: int | None = Field(default=None, ge=1, description="Maximum tokens of the answer.")
    temperature: float | None = Field(default=None, ge=0, le=100, description="Temperature; 0: greedy sampling.")


class GenerateBody(_Answer):
    """Arguments of generate."""

    prompt: str = Field(description="Task for the model, including all necessary text.")
    system: str | None = Field(default=None, description="System prompt.")


class TurnBody(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: str


class ChatBody(_Answer):
    """Arguments of chat."""

    messages: list[TurnBody] = Field(min_length=1, description="Messages of the chat, oldest first.")


class EmbedBody(_Body):
    """Arguments of embed."""

    texts: list[str] = Field(min_length=1)
    dimensions: int | None = Field(default=None, ge=1, description="Length of the embeddings; default: the model's.")


class OrderBody(_Body):
    """Arguments of rerank."""

    query: str
    documents: list[str] = Field(min_length=1)
    top_n: int | None = Field(default=None, ge=1, description="Maximum number of results; default: all.")


class CountBody(_Body):
    """Arguments of count_tokens."""

    text: str


class ListBody(BaseModel):
    """Arguments of list_models, which must be empty."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class ServerTool:
    """A tool with the pydantic model of its arguments and its function."""

    about: str
    body: type[BaseModel]
    run: Callable[[Request, Any], Awaitable[str | Mapping[str, Any]]]


async def _generate(request: Request, body: GenerateBody) -> str:
    system = () if body.system is None else (Message("system", body.system),)
    return await _answer(request, body, (*system, Message("user", body.prompt)))


async def _chat(request: Request, body: ChatBody) -> str:
    return await _answer(request, body, tuple(Message(turn.role, turn.content) for turn in body.messages))


async def _answer(request: Request, body: _Answer, messages: tuple[Message, ...]) -> str:
    generator: Generator = request.app.state.generator
    params = await generator.defaults_for(body.model)
    if body.max_tokens is not None:
        params = replace(params, max_tokens=body.max_tokens)
    if body.temperature is not None:
        params = replace(params, temperature=body.temperature)
    dialect = dialect_of(request)
    async with AsyncExitStack() as stack:
        admitted = stack.enter_context(generator.admit())
        chat = ChatRequest(messages, params, schema=body.json_schema)
        head, chunks = await open_chat(stack, request, dialect, chat, admitted, model=body.model, form=None)
        return str((await dialect.full_reply(chunks, head))["text"])


async def _embed(request: Request, body: EmbedBody) -> Mapping[str, Any]:
    read = await embed_texts(
        request, body.model, body.texts, lambda rows: rows.tolist(), field="texts", dimensions=body.dimensions
    )
    return {"model": read.model.name, "vectors": read.result}


async def _rerank(request: Request, body: OrderBody) -> Mapping[str, Any]:
    asked = RerankBody.model_validate(body.model_dump())
    read, order = await rank(request, asked, body.documents)
    results = [{"index": index, "score": score, "document": body.documents[index]} for index, score in order]
    return {"model": read.model.name, "results": results}


async def _count(request: Request, body: CountBody) -> Mapping[str, Any]:
    generator: Generator = request.app.state.generator
    models: ModelManager = request.app.state.models
    async with models.use(body.model) as slot:
        generator.check_characters(slot.model, (body.text,))
        chat = ChatRequest((Message("user", body.text),))
        async with generator.texts:
            layout = await generator.format_chat(chat, slot, body.model)
            n_message, n_text = await run_in_thread(_lengths, slot.model, layout.text, body.text)
    return {"text_tokens": n_text, "message_tokens": n_message, "context": slot.model.ctx, "model": slot.info.name}


def _lengths(model: LLM, message: str, text: str) -> tuple[int, int]:
    n_message = len(model.tokenize(message, add_special=False))
    return n_message, len(model.tokenize(text, add_special=False, parse_special=False))


async def _list(request: Request, _: ListBody) -> Mapping[str, Any]:
    models: ModelManager = request.app.state.models
    listed = [
        {
            "name": info.name,
            "loaded": info.loaded,
            "parameters": info.parameters,
            "context_length": info.context_length,
            "capabilities": list(info.capabilities),
        }
        for info in await models.list()
        if not info.unsupported
    ]
    return {"models": listed}


TOOLS = {
    "generate": ServerTool(
        "Run a task on a local language model and return its answer, such as a summary, a translation, a"
        " classification, or data with a JSON schema.",
        GenerateBody,
        _generate,
    ),
    "chat": ServerTool("Answer a chat with a local language model.", ChatBody, _chat),
    "embed": ServerTool("Compute normalized embeddings of texts with a local embedding model.", EmbedBody, _embed),
    "rerank": ServerTool(
        "Rank documents by relevance to a query with a local reranking model, best first.",
        OrderBody,
        _rerank,
    ),
    "count_tokens": ServerTool(
        "Count the tokens of a text, alone and as a message, and return the model's context size.",
        CountBody,
        _count,
    ),
    "list_models": ServerTool("List the models that this server can run.", ListBody, _list),
}
