"""The layout of a chat: what the model is shown, what it may answer, and how the answer is read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from woolly.engine import SamplingParams
from woolly.errors import RequestError
from woolly.llm import LLM
from woolly.serving.admission import Place
from woolly.serving.errors import ApiError
from woolly.serving.generation import Generation, Generator, Running
from woolly.serving.openai.answer import Answer
from woolly.serving.openai.messages import template_messages
from woolly.serving.openai.schema import ChatRequest, refuse
from woolly.serving.openai.tools import read_choice
from woolly.serving.reasoning import ReasoningMarks, ReasoningSplitter, find_reasoning
from woolly.serving.tools import (
    Format,
    ToolChoice,
    ToolParser,
    answer_grammar,
    call_grammar,
    describe_tools,
    find_format,
    knows_tools,
    mark_ids,
    marks_of,
)

__all__ = ["Layout", "lay_out", "open_chat"]

_N_LAST = 16  # tokens that a mark at the end of a prompt may take


@dataclass(frozen=True)
class Layout:
    """A generation, and how its answers are read."""

    generation: Generation
    choice: ToolChoice
    format: Format | None  # None: no calls are looked for
    marks: ReasoningMarks | None
    has_logprobs: bool
    made_of: str | None = None  # the field of which a grammar was made

    def answer(self, running: Running) -> Answer:
        """A reader for one of the answers."""
        is_open = self.marks is not None and self.marks.is_open(running.tokenizer.decode(running.prompt_ids[-_N_LAST:]))
        parser = None
        if self.format is not None:
            names = [tool.name for tool in self.choice.callable]
            parser = ToolParser(self.format, names, max_calls=None if self.choice.is_parallel else 1)
        splitter = ReasoningSplitter(self.marks, is_open=is_open)
        shown = self.generation.shown
        return Answer(running.tokenizer, splitter, parser, logprobs=self.has_logprobs, shown=shown)

    def blame(self, error: RequestError) -> ApiError:
        """A refusal of the engine, with the field that it is about."""
        message = str(error)
        if self.made_of is not None and any(word in message for word in ("JSON schema", "Lark", "grammar")):
            return ApiError(400, "invalid_request", f"{self.made_of}: {message}", param=self.made_of)
        if "exceed the context" in message or "the context holds" in message:
            param = "max_tokens" if "max_tokens=" in message else "messages"
            return ApiError(400, "context_length_exceeded", message, param=param)
        return ApiError(400, "invalid_request", message)


async def open_chat(
    held: AsyncExitStack, state: Any, body: ChatRequest, place: Place, client: str
) -> tuple[Layout, Running]:
    """A conversation that is being answered until `held` is closed. `state` is the app's."""
    generator: Generator = state.generator
    slot = await held.enter_async_context(state.models.use(body.model))
    made: list[Layout] = []

    def make(llm: LLM) -> Generation:
        made.append(lay_out(body, llm, generator.defaults, client))
        return made[0].generation

    try:
        running = await held.enter_async_context(generator.open_made(make, place, slot))
    except RequestError as error:
        if not made:
            raise
        raise made[0].blame(error) from error
    return made[0], running


def lay_out(body: ChatRequest, llm: LLM, defaults: SamplingParams, client: str = "") -> Layout:
    """Reads the model's template and the request together; may take a while, so not for the event loop."""
    choice = read_choice(body.tools, body.tool_choice, body.parallel_tool_calls)
    source = llm.template.source if choice.mode == "none" else llm.template.tool_source
    messages = template_messages(body.messages)
    is_calling = choice.mode != "none"
    tools: tuple[Mapping[str, Any], ...] | None = None
    format = find_format(source) if is_calling else None
    if knows_tools(source):
        tools = tuple(tool.to_json() for tool in choice.tools) if is_calling else None
    elif is_calling or any("tool_calls" in message or message["role"] == "tool" for message in messages):
        messages = describe_tools(messages, choice.tools if is_calling else ())
    if format is not None and choice.is_enforced:
        format = replace(format, loose=())
    variables = _variables(body, source)
    marks = None if body.reasoning_format == "none" else find_reasoning(source)
    # A grammar begins where the reasoning does, whether or not it is split off.
    opening = _Opening(llm, messages, tools, variables, find_reasoning(source))
    overrides = _structure(body, llm, choice, format, opening)
    return Layout(
        Generation(
            params=body.make(
                defaults,
                max_tokens=body.max_completion_tokens,
                logprobs=(body.top_logprobs or 0) if body.wants_logprobs else None,
                **overrides,
            ),
            model=body.model,
            messages=tuple(messages),
            tools=tools,
            variables=variables,
            client=client,
            shown=mark_ids(llm.tokenizer, _shown_marks(format, marks)),
        ),
        choice,
        format,
        marks,
        bool(body.wants_logprobs),
        None if not overrides else "response_format" if format is None else "tools",
    )


def _shown_marks(format: Format | None, marks: ReasoningMarks | None) -> list[str]:
    return [*(() if format is None else marks_of(format)), *(() if marks is None else (marks.start, marks.end))]


@dataclass(frozen=True)
class _Opening:
    """Where an answer begins: in the middle of reasoning, or before it."""

    llm: LLM
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]
    marks: ReasoningMarks | None

    @property
    def is_open(self) -> bool:
        """Renders the prompt to see, which only grammars need to know beforehand."""
        if self.marks is None:
            return False
        return self.marks.is_open(self.llm.template.render(self.messages, tools=self.tools, **self.variables))


def _structure(
    body: ChatRequest, llm: LLM, choice: ToolChoice, format: Format | None, opening: _Opening
) -> dict[str, Any]:
    """The grammar that tools or response_format ask for, as a field of SamplingParams."""
    wanted = None if body.response_format is None else body.response_format.wanted
    own = [name for name in ("json_schema", "grammar", "regex", "choice", "lark") if getattr(body, name) is not None]
    if own and wanted is not None:
        raise refuse(own[0], "it is given together with response_format; an answer can have one structure")
    if format is not None and (choice.is_enforced or wanted is not None):
        if own:
            raise refuse(own[0], "it is given together with tools that must be called or are strict; leave one out")
        marks, is_open = opening.marks, opening.is_open
        return {"lark": call_grammar(choice, format, llm.tokenizer, marks=marks, is_open=is_open, answer=wanted)}
    if wanted is None:
        return {}
    if opening.marks is None:
        return {"json_schema": wanted}
    return {"lark": answer_grammar(wanted, llm.tokenizer, marks=opening.marks, is_open=opening.is_open)}


def _variables(body: ChatRequest, template: str) -> dict[str, Any]:
    variables = dict(body.chat_template_kwargs or {})
    effort = body.reasoning_effort
    if effort is not None:
        if effort != "none" and re.search(r"\breasoning_effort\b", template):
            variables.setdefault("reasoning_effort", effort)
        elif re.search(r"\benable_thinking\b", template):
            variables.setdefault("enable_thinking", effort != "none")
        elif effort != "none" or find_reasoning(template) is not None:
            raise refuse("reasoning_effort", "the model's chat template has no such switch; leave it out")
    for name in ("messages", "tools", "documents", "add_generation_prompt"):
        if name in variables:
            raise refuse(f"chat_template_kwargs.{name}", "it is no switch of a template; leave it out")
    return variables
