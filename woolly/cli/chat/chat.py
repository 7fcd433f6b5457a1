"""Chat: handles messages and commands, and shows answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woolly.cli.chat.conversation import with_parts
from woolly.cli.parse.template_options import keywords_of
from woolly.cli.terminal.progress import print_status
from woolly.errors import RequestError, TemplateError, WoollyError

if TYPE_CHECKING:
    from rich.console import Console

    from woolly.chat import ChatFormat, ToolCall
    from woolly.cli.chat.conversation import Conversation
    from woolly.cli.chat.tools import Tools
    from woolly.engine import Request
    from woolly.llm import LLM, ChatStream
    from woolly.sampling import SamplingParams

# Show the context use from this share on.
_NEARLY_FULL = 0.8
_SHORTER = "/compact makes a note of the turns so far, /forget N drops the N oldest"
_MAX_ROUNDS = 16  # maximum rounds of tool calls per turn, because a model may call tools forever


class Chat:
    """Conversation with a model."""

    def __init__(
        self,
        llm: LLM,
        conversation: Conversation,
        screen: Console | None,
        *,
        engine: Mapping[str, Any] | None = None,
        question: Callable[[str], str] | None = None,
        forgets: bool = False,
        compacts: bool = False,
        tools: Tools | None = None,
    ) -> None:
        """Create a chat. Without a `screen`, plain text is written to standard output.

        `/model` opens other models with the options of `engine`. `question` asks the user; None if there is no user.
        `forgets` drops old turns without asking, and `compacts` summarizes them first. `tools` are offered to the
        model.
        """
        self.llm = llm
        self.conversation = conversation
        self.forgets = forgets
        self.compacts = compacts
        self.template: dict[str, Any] = {}  # options of the chat template and of reasoning
        self.question = question
        self.tools = tools
        self.read_texts: list[str] = []  # contents of files to prepend to the next message
        self.images: list[str] = []  # paths of images for the next message
        self.audio: list[str] = []  # paths of audio files for the next message
        self.file: Path | None = None  # file that the conversation was saved to or loaded from
        self.last_facts: dict[str, Any] | None = None
        self.n_tokens = 0  # known length of the conversation
        self.is_over = False
        self._wants_note = False  # the user prefers a summary to forgetting
        self._screen = screen
        self._engine = engine or {}

    @property
    def meter(self) -> str:
        """Return the context use, or an empty string before the first question."""
        return f"context {self.n_tokens / self.llm.ctx:.0%} full" if self.n_tokens else ""

    def take(self, text: str) -> None:
        """Answer a message or run a command. Errors are printed, not raised, so that the chat continues."""
        from woolly.cli.chat.slash_commands import run_slash

        try:
            if text.startswith("/") and "\n" not in text:
                if shown := run_slash(self, text):
                    print_status(shown)
            elif text.strip():
                self.ask(text)
        except WoollyError as error:
            print_status(f"woolly: {error}")

    def ask(self, text: str) -> None:
        """Answer a question and store both. After Ctrl-C, store the part of the answer that had arrived.

        Runs tool calls if the user agrees, and continues with their results.
        """
        from woolly.cli.chat.tools import call_message
        from woolly.cli.terminal.answer import EMPTY, is_template_missing

        asked: dict[str, Any] = {"role": "user", "content": "\n\n".join([*self.read_texts, text])}
        if self.images:
            asked["images"] = list(self.images)
        if self.audio:
            asked["audio"] = list(self.audio)
        messages = self.conversation.messages
        n_before, stream = len(messages), self._begin(asked)
        messages.append(asked)
        try:
            for n_rounds in range(1, _MAX_ROUNDS + 1):
                ended, answer, calls = self._show(stream)
                messages.append(call_message(answer, calls))
                if not calls or self.tools is None:
                    break
                results, goes_on = self.tools.run(calls)
                messages += results
                if not goes_on or n_rounds == _MAX_ROUNDS:
                    if goes_on:
                        print_status(f"(ended: the model called tools {_MAX_ROUNDS} times without an answer)")
                    messages.append(call_message("", ()))  # templates require an answer between results and a question
                    break
                stream = self._begin(None)
        except WoollyError:
            del messages[n_before:]
            raise
        self.read_texts.clear()
        self.images.clear()
        self.audio.clear()
        if ended == "stop" and not calls and is_template_missing(self.llm.template, answer):
            print_status(f"woolly: {EMPTY}; `woolly run --raw` continues a text")
        self._print_end(ended)
        sys.stdout.flush()

    def _show(self, stream: ChatStream) -> tuple[str | None, str, tuple[ToolCall, ...]]:
        """Show an answer. Return its finish reason, its text, and its tool calls if the answer is complete."""
        from woolly.cli.terminal.answer import Timing, show_markdown, show_plain
        from woolly.cli.terminal.keyboard import no_echo

        timing = Timing.begin()
        kept: list[str] = []
        ended: str | None = None
        try:
            with no_echo():
                if self._screen is None:
                    ended = show_plain(stream, timing, kept=kept)
                else:
                    ended = show_markdown(stream, timing, self._screen, kept)
        except KeyboardInterrupt:
            stream.close()
            print_status("(stopped)")
        self.last_facts = timing.facts(stream.completion) if kept else None  # None after Ctrl-C before the first token
        if self.last_facts is not None:
            self.n_tokens = self.last_facts["prompt_tokens"] + self.last_facts["answer_tokens"]
        # A tool call that was cut by a limit or Ctrl-C must not run.
        return ended, "".join(kept), stream.completion.tool_calls if ended == "stop" else ()

    def forget(self, n_turns: int) -> None:
        """Stop sending the oldest turns to the model."""
        self.conversation.forget(n_turns)
        self.measure()

    def compact(self) -> None:
        """Replace all turns except the last (or a single turn) by a summary written by the model."""
        n_turns = self.conversation.n_turns
        if n_turns == 0:
            raise RequestError("there is no turn to compact")
        print_status("(summarizing the conversation ...)", dim=True)
        params = replace(self.conversation.params, max_tokens=None)
        messages = self.conversation.all_messages
        note = self.llm.compact(messages, params, tools=self._offered, split_reasoning=True)
        n = max(1, n_turns - 1)
        self.conversation.compact(note, n)
        self.measure()
        turns = "1 turn is" if n == 1 else f"{n} turns are"
        facts = [f"{turns} now this note", *([self.meter] if self.meter else []), "/compact undo brings them back"]
        print_status(f"{note}\n({'; '.join(facts)})")

    def measure(self) -> None:
        """Count the tokens of the conversation after a change. 0 if it has no turn, or if the template rejects it."""
        self.n_tokens = 0
        if self.conversation.n_turns == 0:
            return
        try:
            _, requests = self._prepared(self.conversation.all_messages, self.conversation.params)
            self.n_tokens = len(requests[0].prompt)
        except RequestError as error:
            self.n_tokens = int(error.given or 0)
        except TemplateError:
            return

    def open(self, name: str) -> None:
        """Continue with another model, or keep the current model if the other one cannot be opened."""
        from woolly.cli.commands.pull import fetched
        from woolly.llm import LLM

        other = writing(LLM(fetched(name), **self._engine))
        self.llm.close()
        self.llm, self.last_facts = other, None
        self.measure()

    def _begin(self, asked: dict[str, Any] | None) -> ChatStream:
        """Return the stream of an answer to `asked`, or to the results of tools if it is None.

        If the context is full, the oldest turns are forgotten if the user agrees.
        """
        is_tried = self.compacts and asked is not None and self.n_tokens >= _NEARLY_FULL * self.llm.ctx
        if is_tried:
            self._try_to_compact()
        try:
            return self._stream(asked)
        except RequestError as error:
            n = self._too_many(asked) if error.code == "context_length" and error.field != "n_keep" else 0
            if n == 0:
                raise
            turns = "the oldest turn" if n == 1 else f"the {n} oldest turns"
            if self.compacts and not is_tried and self._try_to_compact():
                return self._stream_after_note(asked)
            if not self.forgets and not self._may_forget(turns):
                if self._wants_note and self._try_to_compact():
                    return self._stream_after_note(asked)
                raise error.with_message(f"{error}; /forget {n} drops {turns}", RequestError) from None
        self.forget(n)
        print_status(f"(the context was full: {turns} {'is' if n == 1 else 'are'} forgotten)")
        return self._stream(asked)

    def _stream_after_note(self, asked: dict[str, Any] | None) -> ChatStream:
        """Return the stream like `_stream`, but omit summarized turns that do not fit next to their summary."""
        try:
            return self._stream(asked)
        except RequestError as error:
            if error.code != "context_length" or not (n := self._too_many(asked)):
                raise
        self.forget(n)
        return self._stream(asked)

    def _stream(self, asked: dict[str, Any] | None) -> ChatStream:
        messages = [*self.conversation.all_messages, *_listed(asked)]
        return self.llm.chat(
            messages,
            self.conversation.params,
            stream=True,
            split_reasoning=False,
            tools=self._offered,
            **keywords_of(self.template, self.llm),
        )

    @property
    def _offered(self) -> list[dict[str, Any]]:
        return [] if self.tools is None else self.tools.offered

    def _too_many(self, asked: dict[str, Any] | None) -> int:
        """Return how many of the oldest turns to forget to free a quarter of the context; 0 if that is impossible."""
        turns = range(1, self.conversation.n_turns + (asked is not None))  # never the current turn
        limit = self.conversation.params.max_tokens
        for room in {limit or self.llm.ctx // 4: None, limit or 1: None}:
            for n in turns:
                if self._fits([*self.conversation.without(n), *_listed(asked)], room):
                    return n
        return 0

    def _fits(self, messages: list[dict[str, Any]], room: int) -> bool:
        params = replace(self.conversation.params, max_tokens=max(1, room), context_shift=False)
        try:
            self._prepared(messages, params)
        except RequestError as error:
            if error.code == "context_length":
                return False
            raise
        return True

    def _prepared(self, messages: list[dict[str, Any]], params: SamplingParams) -> tuple[ChatFormat, list[Request]]:
        more = keywords_of(self.template, self.llm)
        return self.llm.prepare_chat(messages, params, split_reasoning=False, tools=self._offered, **more)

    def _try_to_compact(self) -> bool:
        """Summarize older turns. If this fails, print the reason and return False."""
        try:
            self.compact()
        except WoollyError as error:
            print_status(f"woolly: the conversation is not compacted: {error}")
            return False
        return True

    def _may_forget(self, turns: str) -> bool:
        self._wants_note = False
        if self.question is None:
            return False
        reply = self.question(
            f"The context of {self.llm.ctx} tokens is full. Forget {turns}? [Y/n/always/compact] "
        ).lower()
        self._wants_note = reply in ("c", "compact")
        self.forgets = reply in ("a", "always")
        return self.forgets or reply in ("", "y", "yes")

    def _print_end(self, ended: str | None) -> None:
        limit, n_answer = self.conversation.params.max_tokens, (self.last_facts or {}).get("answer_tokens", 0)
        if ended == "length" and limit is not None and n_answer >= limit:
            print_status("(cut: max_tokens is reached)")
        elif ended == "length":
            print_status(f"(cut: the context of {self.llm.ctx} tokens is full; {_SHORTER})")
        elif self.n_tokens >= _NEARLY_FULL * self.llm.ctx:
            print_status(f"({self.meter}; {_SHORTER})", dim=True)


def writing(llm: LLM) -> LLM:
    """Return the model if it generates text. Close other models and raise RequestError."""
    if llm.transcribes:
        from woolly.chat.media import CANNOT_CHAT

        llm.close()
        raise RequestError(CANNOT_CHAT, code="wrong_model")
    result = llm.plan.result
    if result == "logits":
        return llm
    name, verb = llm.path.stem, "embed" if result == "embeddings" else "rerank"
    llm.close()
    raise RequestError(f"{name} returns {result} and cannot chat; use `woolly {verb}`")


def _listed(asked: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [] if asked is None else [with_parts(asked)]
