"""`woolly chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woolly.cli.options import (
    Backend,
    Ctx,
    KvType,
    MaxTokens,
    ModelOption,
    System,
    Threads,
    WeightMemory,
    answer_limit,
    one_model,
)
from woolly.cli.progress import tell
from woolly.cli.pull import fetched
from woolly.cli.sampling import sampling_params, takes_sampling
from woolly.errors import WoollyError
from woolly.store import DEFAULT_MODEL, models_folder

if TYPE_CHECKING:
    from rich.console import Console

    from woolly.cli.conversation import Conversation
    from woolly.llm import LLM

__all__ = ["Chat", "chat"]


@takes_sampling
def chat(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A GGUF file or a model's name.", show_default=DEFAULT_MODEL)
    ] = None,
    named: ModelOption = None,
    system: System = None,
    max_tokens: MaxTokens = None,
    ctx: Ctx = None,
    threads: Threads = None,
    kv_type: KvType = None,
    weight_memory: WeightMemory = None,
    backend: Backend = "auto",
    plain: Annotated[bool, typer.Option("--plain", help="Show answers as they are, not as Markdown.")] = False,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Remember what you type for the arrow keys of the next chat.")
    ] = True,
    *,
    sampling: dict[str, Any],
) -> None:
    """Talk with a model. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends the chat.

    Standard input that is no terminal is answered line by line, in plain text.
    """
    # Imported late, so that --help answers at once.
    from rich.console import Console

    from woolly.cli.conversation import Conversation
    from woolly.cli.typing_in import Keyboard
    from woolly.llm import LLM

    params = sampling_params(sampling, max_tokens=answer_limit(max_tokens))
    name = one_model("chat", model, named, DEFAULT_MODEL)
    path = fetched(name)
    keyboard = Keyboard(models_folder().parent / "chat_history" if history else None)
    with LLM(path, ctx=ctx, threads=threads, backend=backend, kv_type=kv_type, weight_memory=weight_memory) as llm:
        screen = Console(markup=False, highlight=False) if keyboard.is_terminal and not plain else None
        talk = Chat(llm, Conversation(params, system), screen)
        if keyboard.is_terminal:
            name = llm.path.name if Path(name).is_file() else name
            tell(f"{name}, {llm.ctx} tokens of context; /help lists the commands", style="dim")
        try:
            while not talk.is_over:
                try:
                    text = keyboard.read("> ", ". ")
                    if text is None:
                        if keyboard.is_terminal:
                            typer.echo()
                        break
                    talk.take(text)
                except KeyboardInterrupt:
                    typer.echo("\n(Ctrl-D or /quit ends the chat)", err=True)
        finally:
            keyboard.close()


class Chat:
    """One conversation with one model."""

    def __init__(self, llm: LLM, conversation: Conversation, screen: Console | None) -> None:
        self.llm = llm
        self.conversation = conversation
        self.last_facts: dict[str, Any] | None = None
        self.is_over = False
        self._screen = screen  # None: plain text on standard output

    def take(self, text: str) -> None:
        """Answer a message or run a command. Errors are told, not raised: the chat goes on."""
        from woolly.cli.slash import run_slash

        try:
            if text.startswith("/") and "\n" not in text:
                if shown := run_slash(self, text):
                    tell(shown)
            elif text.strip():
                self.ask(text)
        except WoollyError as error:
            typer.echo(f"woolly: {error}", err=True)

    def ask(self, text: str) -> None:
        """Answer, and keep question and answer; Ctrl-C keeps what had come by then."""
        from woolly.cli.answer import Timing, show_markdown, show_plain
        from woolly.cli.typing_in import no_echo
        from woolly.engine import Stream

        asked = {"role": "user", "content": text}
        (request,) = self.llm.prepare_chat([*self.conversation.all_messages, asked], self.conversation.params)
        self.conversation.messages.append(asked)
        timing, stream = Timing.begin(), Stream(self.llm.driver, [request])
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
            typer.echo("(stopped)", err=True)
        except WoollyError:
            self.conversation.messages.pop()
            raise
        self.conversation.messages.append({"role": "assistant", "content": "".join(kept)})
        self.last_facts = timing.facts(request)
        if ended == "length":
            full = self.conversation.params.max_tokens is None
            why = (
                f"the context of {self.llm.ctx} tokens is full; /clear forgets it" if full else "max_tokens is reached"
            )
            typer.echo(f"(cut: {why})", err=True)
        sys.stdout.flush()
