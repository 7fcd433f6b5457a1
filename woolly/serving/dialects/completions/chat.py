"""Chat completions: complete replies and streams of chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from fastapi import Request
from fastapi.responses import Response

from woolly.chat import CallArguments, CallStart, Event, Finished, Reasoning, Text, ToolCall, gather
from woolly.llm import ChatChunk
from woolly.serving.dialect import ReplyContext, dialect_of
from woolly.serving.dialects.completions.bodies import ChatBody
from woolly.serving.dialects.completions.custom_calls import CustomCallStream, custom_call
from woolly.serving.dialects.completions.envelope import Envelope, timings_of, usage_of
from woolly.serving.dialects.completions.logprobs import LogprobTrack, PlacedLogprob, chat_logprobs, prompt_logprobs
from woolly.serving.dialects.completions.tools import custom_names
from woolly.serving.dialects.heartbeat import with_heartbeats
from woolly.serving.dialects.reply import answer_chat
from woolly.serving.generation.token_constraints import UNCONSTRAINED, TokenConstraints
from woolly.serving.sse import TextFrame, sse_event

DONE = "[DONE]"

FIELDS = {
    "schema": "response_format",
    "continue_final": "continue_final_message",
    "adapters": "lora",
}  # the body's names for fields of ChatRequest

Delta = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """Options of a body that affect its reply."""

    usage: Literal["none", "own", "last"] = "none"  # in a stream: none, in a separate chunk, or in the last chunk
    has_timings: bool = False  # in every chunk of a stream
    has_logprobs: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)  # additional fields of a reply and of each chunk
    is_verbose: bool = False  # the reply includes the rendered prompt
    has_progress: bool = False  # chunks report the prefill progress
    token_constraints: TokenConstraints = UNCONSTRAINED
    has_usage_always: bool = False  # current usage in every chunk of a stream
    has_token_ids: bool = False  # token ids of the prompt and the answer
    has_prompt_logprobs: bool = False
    names_ids: bool = False  # log-probabilities name tokens by id
    has_stop_text: bool = False  # the answer includes its stop string
    echo: str = ""  # text before the answer
    is_old: bool = False  # legacy format: function_call instead of tool_calls
    customs: frozenset[str] = frozenset()  # names of tools with free text input

    @classmethod
    def of(cls, body: ChatBody, **more: Any) -> Form:
        """Create the form from OpenAI's fields of a body."""
        usage: Literal["none", "own"] = "own" if body.includes_usage else "none"
        return cls(
            usage,
            bool(body.timings_per_token),
            bool(body.wants_logprobs),
            more,
            token_constraints=body.token_constraints,
            has_usage_always=body.has_continuous_usage,
            has_token_ids=bool(body.return_token_ids),
            has_prompt_logprobs=body.prompt_logprobs is not None,
            names_ids=bool(body.return_tokens_as_token_ids),
            has_stop_text=bool(body.include_stop_str_in_output),
            is_old=body.functions is not None,
            customs=custom_names(body.tools),
        )


async def chat_completions(body: ChatBody, request: Request) -> Response:
    """Answer a chat; `stream` selects server-sent events."""
    state = request.app.state
    dialect = dialect_of(request)
    chat = body.to_chat(await state.generator.defaults_for(body.model))
    is_verbose = state.settings.verbose if body.verbose is None else body.verbose
    echo = chat.messages[-1].text if body.echo and chat.continue_final else ""
    form = replace(Form.of(body), is_verbose=is_verbose, has_progress=bool(body.return_progress), echo=echo)
    return await answer_chat(
        request, dialect, chat, model=body.model, stream=bool(body.stream), form=form, id_slot=body.id_slot
    )


class Choice:
    """Events and log-probabilities of one of the n answers."""

    def __init__(self, head: ReplyContext) -> None:
        self._tokenizer = head.running.tokenizer
        self._track: LogprobTrack | None = None
        if head.form.has_logprobs:
            self._track = LogprobTrack(self._tokenizer, shown=head.layout.shown)
        self._is_old = head.form.is_old
        self._names_ids = head.form.names_ids
        self._customs = head.form.customs
        self._custom_calls = CustomCallStream(head.form.customs)
        self._token_ids: list[int] | None = [] if head.form.has_token_ids else None  # token ids not sent yet
        self._placed: list[PlacedLogprob] = []  # log-probabilities not sent yet
        self._events: list[Event] = []

    def push(self, chunk: ChatChunk) -> None:
        """Add a chunk."""
        if self._track is not None:
            self._placed += self._track.push(chunk.raw, chunk.logprobs)
        if self._token_ids is not None:
            self._token_ids += (one.token for one in chunk.logprobs)
        self._events += chunk.events

    @property
    def finish_reason(self) -> str | None:
        """Finish reason, or None before the end."""
        last = self._events[-1] if self._events else None
        return _reason(last, is_old=self._is_old) if isinstance(last, Finished) else None

    @property
    def reasoning_text(self) -> str:
        """Reasoning text so far."""
        return "".join(event.text for event in self._events if isinstance(event, Reasoning))

    def take_logprobs(self) -> dict[str, Any] | None:
        """Return the log-probabilities since the last call, if requested."""
        placed, self._placed = self._placed, []
        return None if self._track is None else chat_logprobs(self._tokenizer, placed, as_ids=self._names_ids)

    def take_ids(self) -> dict[str, list[int]]:
        """Return the token ids since the last call as a field of a choice, if requested."""
        if self._token_ids is None:
            return {}
        ids, self._token_ids = self._token_ids, []
        return {"token_ids": ids}

    def deltas(self, event: Event) -> Iterator[Delta]:
        """Yield the deltas of an event of a stream."""
        for told in self._custom_calls.push(event) if self._customs else (None,):
            usual = delta(event) if told is None else told
            yield _old(usual) if self._is_old else usual

    def message(self) -> dict[str, Any]:
        """Return the answer so far."""
        message = message_of(self._events)
        if self._customs and "tool_calls" in message:
            message["tool_calls"] = [custom_call(call, self._customs) for call in message["tool_calls"]]
        if self._is_old and (calls := message.pop("tool_calls", None)):
            message["function_call"] = calls[0]["function"]
        return message


async def full_reply(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> dict[str, Any]:
    """Return the reply."""
    choices = _choices(head)
    async for chunk in _dressed(chunks, head.form):
        choices[chunk.index].push(chunk)
    listed = [
        {
            "index": index,
            "message": choice.message(),
            "logprobs": choice.take_logprobs(),
            "finish_reason": choice.finish_reason,
            **choice.take_ids(),
        }
        for index, choice in enumerate(choices)
    ]
    envelope = Envelope("chatcmpl", "chat.completion", head.running)
    return envelope.around(listed, **head.form.more, **_of_prompt(head), **_figures(head, choices), **_verbose(head))


async def _dressed(chunks: AsyncIterator[ChatChunk], form: Form) -> AsyncIterator[ChatChunk]:
    """Yield the chunks, with the echoed text before each answer and the stop string after it."""
    begun: set[int] = set()
    async for chunk in chunks:
        events = chunk.events
        if form.echo and events and chunk.index not in begun:
            begun.add(chunk.index)
            events = (Text(form.echo), *events)
        is_stopped = chunk.finish_reason == "stop" and isinstance(chunk.stop_reason, str)
        if form.has_stop_text and is_stopped and isinstance(events[-1], Finished):
            events = (*events[:-1], Text(str(chunk.stop_reason)), events[-1])
        yield chunk if events is chunk.events else replace(chunk, events=events)


def _of_prompt(head: ReplyContext) -> dict[str, Any]:
    """Return the fields about the prompt's tokens."""
    form: Form = head.form
    found: dict[str, Any] = {}
    if form.has_token_ids:
        found["prompt_token_ids"] = list(head.running.prompt_ids)
    if form.has_prompt_logprobs:
        first = head.running.requests[0]
        found["prompt_logprobs"] = prompt_logprobs(head.running.tokenizer, first.prompt_logprobs)
    return found


def frames(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
    """Yield server-sent events: the chunks, [DONE], and empty chunks as heartbeats.

    SSE comments as heartbeats break some clients, and others do not count them as data.
    """
    envelope = Envelope("chatcmpl", "chat.completion.chunk", head.running)
    empty = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}
    beat = sse_event(envelope.around([empty], **head.form.more))
    return with_heartbeats(_frames(chunks, head, envelope), lambda: beat)


async def _frames(chunks: AsyncIterator[ChatChunk], head: ReplyContext, envelope: Envelope) -> AsyncIterator[bytes]:
    async for chunk in _stream(chunks, head, envelope):
        yield chunk if isinstance(chunk, bytes) else sse_event(chunk)
    yield sse_event(DONE)


async def _stream(
    chunks: AsyncIterator[ChatChunk], head: ReplyContext, envelope: Envelope
) -> AsyncIterator[dict[str, Any] | bytes]:
    """Yield the chunks. Each answer's last chunk has a finish reason, and the last chunk of the stream has the timings.

    Most chunks differ only in their text and are yielded as bytes.
    """
    form: Form = head.form
    is_plain = not (form.has_timings or form.has_usage_always or form.has_logprobs or form.has_token_ids)
    texts: dict[int, TextFrame] = {}
    choices = _choices(head)
    # If usage has a separate chunk, OpenAI adds a null to all other chunks.
    always: dict[str, Any] = {**form.more, "usage": None} if form.usage == "own" else dict(form.more)

    def chunk_of(index: int, told: Delta, **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": told, "logprobs": None, "finish_reason": None, **more}
        has_begun = "role" not in told
        timed = {"timings": timings_of([head.running])} if form.has_timings and has_begun else {}
        used = {"usage": usage_of([head.running])} if form.has_usage_always else {}
        return envelope.around([choice], **{**always, **timed, **used})

    def text_frame(index: int, text: str) -> bytes:
        return sse_event(chunk_of(index, {"content": text}))

    for index in range(len(choices)):
        ids = _of_prompt(head) if index == 0 and form.has_token_ids else {}
        yield {**chunk_of(index, {"role": "assistant", "content": None, "refusal": None}), **ids}
    n_open = len(choices)
    async for chunk in _dressed(chunks, form):
        index, choice = chunk.index, choices[chunk.index]
        choice.push(chunk)
        if chunk.n_computed is not None:
            for done, timings in head.running.advance(chunk.n_computed):
                timed = {"timings": timings} if form.has_timings else {}
                yield {**chunk_of(index, {}), "prompt_progress": done, **timed}
        for one in chunk.events:
            if is_plain and isinstance(one, Text):
                if index not in texts:
                    texts[index] = TextFrame(partial(text_frame, index))
                yield texts[index](one.text)
                continue
            logprobs = _some(choice.take_logprobs())
            ids = choice.take_ids()
            for told in choice.deltas(one):
                if told:  # empty for the end
                    yield chunk_of(index, told, logprobs=logprobs, **ids)
                    logprobs, ids = None, {}
            if not isinstance(one, Finished):
                continue
            n_open -= 1
            reason = _reason(one, is_old=form.is_old)
            last = chunk_of(index, {}, logprobs=logprobs, finish_reason=reason, **ids)
            if n_open == 0:
                last |= _verbose(head)
                last |= _figures(head, choices) if form.usage == "last" else {"timings": timings_of([head.running])}
                last |= {"cache_note": note} if (note := head.running.cache_note()) else {}
            yield last
    if form.usage == "own":
        yield envelope.around([], **form.more, **_figures(head, choices))


def _reason(end: Finished, *, is_old: bool) -> str:
    return "function_call" if is_old and end.reason == "tool_calls" else end.reason


def _old(told: Delta) -> Delta:
    """Convert a delta to OpenAI's legacy format, with one call without an id."""
    calls = told.get("tool_calls")
    return told if calls is None else {"function_call": calls[0]["function"]}


def delta(event: Event) -> Delta:
    """Return the delta of an event; empty for the end."""
    if isinstance(event, Text):
        return {"content": event.text}
    if isinstance(event, Reasoning):
        return {"reasoning_content": event.text}
    if isinstance(event, CallStart):
        function = {"name": event.name, "arguments": ""}
        return {"tool_calls": [{"index": event.index, "id": event.id, "type": "function", "function": function}]}
    if isinstance(event, CallArguments):
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
    return {}


def message_of(events: Iterable[Event]) -> dict[str, Any]:
    """Return the message built from the events of an answer."""
    parts = gather(events)
    content = parts.text if parts.text or not parts.tool_calls else None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if parts.reasoning:
        message["reasoning_content"] = parts.reasoning
    if parts.tool_calls:
        message["tool_calls"] = [_call(call) for call in parts.tool_calls]
    return message


def figures(head: ReplyContext) -> dict[str, Any]:
    """Return the current token counts and timings."""
    return {"usage": usage_of([head.running]), "timings": timings_of([head.running])}


def _figures(head: ReplyContext, choices: Iterable[Choice]) -> dict[str, Any]:
    """Return token counts and timings of finished answers, with reasoning tokens if there are any."""
    found = figures(head)
    if thoughts := [choice.reasoning_text for choice in choices if choice.reasoning_text]:
        n_thought = sum(head.count_thoughts(thought) for thought in thoughts)
        found["usage"]["completion_tokens_details"] = {"reasoning_tokens": n_thought}
    return found


def _verbose(head: ReplyContext) -> dict[str, Any]:
    """Return llama-server's verbose fields."""
    if not head.form.is_verbose:
        return {}
    running = head.running
    return {"__verbose": {"prompt": running.prompt_pieces, "id_slot": running.id_slot, "timings": running.timings()}}


def _choices(head: ReplyContext) -> list[Choice]:
    return [Choice(head) for _ in head.running.requests]


def _some(logprobs: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the log-probabilities, or None if they are empty; the first delta of a chunk has all of them."""
    return logprobs if logprobs is not None and logprobs["content"] else None


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
