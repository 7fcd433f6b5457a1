"""Interactive conversation in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from woolly.cli.terminal.progress import print_status
from woolly.errors import RequestError
from woolly.machine.blas import import_numpy
from woolly.store import models_folder

if TYPE_CHECKING:
    from woolly.llm import LLM
    from woolly.sampling import SamplingParams


@dataclass(frozen=True)
class ReplOptions:
    """Options of a chat at a terminal."""

    plain: bool = False  # print without formatting
    history: bool = True  # keep the typed lines for later chats
    forgets: bool = False  # drop the oldest turns when the context is full
    compacts: bool = False  # summarize the conversation when the context is full
    mcp: Path | None = None  # file of MCP servers whose tools the model may call
    approve: str = "ask"  # which of these calls run without asking


def run_repl(
    name: str,
    params_of: Callable[[LLM | None], SamplingParams],
    system: str | None,
    engine: Mapping[str, Any],
    options: ReplOptions = ReplOptions(),  # noqa: B008 - frozen
    *,
    template: Mapping[str, Any] | None = None,
    first: str | None = None,
) -> None:
    """Open a model, and answer messages and commands until the user ends the chat.

    `params_of` returns the sampling parameters for the model's preset. `template` has options of the chat template and
    of reasoning, and `first` is the first message.
    """
    import_numpy(engine.get("backend"))
    # Imported late, so that --help answers at once.
    from rich.console import Console

    from woolly.chat.media import CANNOT_CHAT
    from woolly.cli.chat.chat import Chat, writing
    from woolly.cli.chat.conversation import Conversation
    from woolly.cli.chat.slash_commands import complete
    from woolly.cli.chat.tools import open_tools
    from woolly.cli.commands.pull import fetched
    from woolly.cli.terminal.keyboard import Keyboard
    from woolly.cli.terminal.transcript import is_named_transcriber
    from woolly.llm import LLM

    if is_named_transcriber(name):
        raise RequestError(CANNOT_CHAT, field="model", code="wrong_model", names=())
    path = fetched(name)
    keyboard = Keyboard(models_folder().parent / "chat_history" if options.history else None, complete)
    screen = Console(markup=False, highlight=False) if keyboard.is_terminal and not options.plain else None
    question = keyboard.answer if keyboard.is_terminal else None
    if options.mcp is not None and question is None and options.approve == "ask":
        raise RequestError(
            "mcp_approve is ask, but standard input is not a terminal; choose read-only or all",
            field="mcp_approve",
        )
    tools = None if options.mcp is None else open_tools(options.mcp, options.approve, question)
    try:
        llm = writing(LLM(path, **engine))
    except BaseException:
        if tools is not None:
            tools.close()
        raise
    conversation = Conversation(params_of(llm), system)
    chat = Chat(llm, conversation, screen, engine=engine, question=question, forgets=options.forgets, tools=tools)
    chat.compacts, chat.template = options.compacts, dict(template or {})
    try:
        if keyboard.is_terminal:
            shown = chat.llm.path.name if Path(name).is_file() else name
            print_status(f"{shown}, {chat.llm.ctx} tokens of context; /help lists the commands", dim=True)
        if first is not None:
            chat.take(first)
        while not chat.is_over:
            try:
                text = keyboard.read("> ", ". ", chat.meter)
                if text is None:
                    if keyboard.is_terminal:
                        click.echo()
                    break
                chat.take(text)
            except KeyboardInterrupt:
                print_status("(Ctrl-D or /quit ends the chat)")
    finally:
        chat.llm.close()
        keyboard.close()
        if tools is not None:
            tools.close()
