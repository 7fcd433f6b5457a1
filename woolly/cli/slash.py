"""The commands of `woolly chat`: lines that begin with a slash."""

from __future__ import annotations

import difflib
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from woolly.cli.conversation import changed_settings, find_setting, setting_names
from woolly.cli.sizes import counted
from woolly.errors import RequestError, WoollyError

if TYPE_CHECKING:
    from woolly.cli.chat import Chat

__all__ = ["COMMANDS", "Slash", "run_slash"]

# Settings that `/set` always shows.
_EXAMPLES = {"temperature": "0.2", "top_k": "40", "top_p": "0.9", "min_p": "0.1", "seed": "1", "max_tokens": "100"}
_USUAL = ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens")


@dataclass(frozen=True)
class Slash:
    """A command: what follows its name, what it does, and the function, whose text is shown."""

    argument: str
    about: str
    run: Callable[[Chat, str], str | None]


def run_slash(chat: Chat, line: str) -> str | None:
    """Run a line such as `/set temperature 0`; gives what to show. RequestError where there is no such command."""
    name, _, argument = line[1:].partition(" ")
    name = {"exit": "quit", "bye": "quit", "q": "quit", "?": "help", "retry": "regen"}.get(name, name)
    if name not in COMMANDS:
        raise RequestError(f"there is no /{name}: {_meant(name, argument.strip()) or '/help lists those there are'}")
    command = COMMANDS[name]
    if argument.strip() and not command.argument:
        raise RequestError(f"/{name} takes nothing after it")
    return command.run(chat, argument.strip())


def _meant(name: str, argument: str) -> str:
    """A setting by its exact name, or else the command or the setting that is nearest."""
    setting = find_setting(name)
    if setting is None:
        known = {f"/{command}": f"/{command}" for command in COMMANDS}
        known |= {f"/{other}": f"/set {other} {_EXAMPLES.get(other, 'VALUE')}" for other in setting_names()}
        found = difflib.get_close_matches(f"/{name}", known, n=1)
        return f"did you mean {known[found[0]]}?" if found else ""
    return f"did you mean /set {setting} {argument or _EXAMPLES.get(setting, 'VALUE')}?"


def _help(_: Chat, __: str) -> str:
    width = max(len(f"/{name} {command.argument}") for name, command in COMMANDS.items())
    lines = [f"{f'/{name} {command.argument}':<{width}}  {command.about}" for name, command in COMMANDS.items()]
    lines += [
        "",
        'Several lines: begin and end with """, or end a line with a backslash.',
        "Ctrl-C stops an answer, Ctrl-D ends the chat.",
    ]
    return "\n".join(lines)


def _system(chat: Chat, text: str) -> str:
    if text:
        chat.conversation.system = None if text in ("none", '""') else text
    return f"system prompt: {chat.conversation.system or '(none)'}"


def _clear(chat: Chat, _: str) -> str:
    chat.conversation.messages.clear()
    return "the conversation is forgotten; system prompt and settings stay"


def _regen(chat: Chat, _: str) -> None:
    before = list(chat.conversation.messages)
    question = chat.conversation.take_question()
    if question is None:
        chat.conversation.messages[:] = before
        raise RequestError("there is no question to answer again")
    try:
        chat.ask(question)
    except WoollyError:
        chat.conversation.messages[:] = before
        raise


def _save(chat: Chat, name: str) -> str:
    if not name:
        raise RequestError("say where to, for instance: /save chat.json")
    chat.conversation.save(Path(name))
    return f"saved {counted(len(chat.conversation.messages), 'message')} to {name}"


def _load(chat: Chat, name: str) -> str:
    if not name:
        raise RequestError("say what, for instance: /load chat.json")
    chat.conversation.load(Path(name))
    return f"loaded {counted(len(chat.conversation.messages), 'message')} from {name}"


def _set(chat: Chat, text: str) -> str:
    if text:
        name, _, value = text.replace("=", " ", 1).partition(" ")
        if not value.strip():
            raise RequestError("a name and a value were expected, for instance: /set temperature 0.2")
        chat.conversation.set(name, value.strip())
    params = chat.conversation.params
    shown = {**{name: getattr(params, name) for name in _USUAL}, **changed_settings(params)}
    lines = [f"{name} = {'(not set)' if value is None else value}" for name, value in shown.items()]
    if not text:
        others = ", ".join(name for name in setting_names() if name not in shown)
        width = min(100, shutil.get_terminal_size().columns)
        lines += ["", *textwrap.wrap(f"others: {others}", width, break_long_words=False)]
    return "\n".join(lines)


def _stats(chat: Chat, _: str) -> str:
    facts = chat.last_facts
    if facts is None:
        return "no answer yet"
    lines = [
        f"prompt   {counted(facts['prompt_tokens'], 'token')}, {facts['cached_tokens']} of them from the cache,"
        f" first token after {facts['first_token_s']:.2f} s",
        f"answer   {counted(facts['answer_tokens'], 'token')}"
        + (f", {facts['answer_tokens_per_second']:.1f} tokens/s" if facts["answer_tokens_per_second"] else ""),
        f"context  {facts['prompt_tokens'] + facts['answer_tokens']} of {chat.llm.ctx} tokens",
    ]
    return "\n".join(lines)


def _quit(chat: Chat, _: str) -> None:
    chat.is_over = True


COMMANDS = {
    "system": Slash("[TEXT]", "set the system prompt, or show it; `none` takes it away", _system),
    "clear": Slash("", "forget the conversation", _clear),
    "regen": Slash("", "answer the last question again", _regen),
    "save": Slash("FILE", "write the conversation to a JSON file", _save),
    "load": Slash("FILE", "go on with a conversation that was saved", _load),
    "set": Slash("[NAME VALUE]", "change how answers are sampled, or show it", _set),
    "stats": Slash("", "tokens and speed of the last answer", _stats),
    "help": Slash("", "this list", _help),
    "quit": Slash("", "end the chat", _quit),
}
