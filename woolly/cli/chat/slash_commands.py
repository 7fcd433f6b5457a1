"""Slash commands of `woolly chat`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from woolly.cli.chat.attachments import attach_audio, attach_image, attach_text
from woolly.cli.chat.conversation import changed_settings, find_setting, setting_names
from woolly.cli.parse.options import complete_model
from woolly.cli.terminal.answer import stats_of
from woolly.cli.terminal.human_readable import plural
from woolly.errors import RequestError, WoollyError

if TYPE_CHECKING:
    from woolly.cli.chat.chat import Chat

# Settings that `/set` always shows.
_EXAMPLES = {"temperature": "0.2", "top_k": "40", "top_p": "0.9", "min_p": "0.1", "seed": "1", "max_tokens": "100"}
_USUAL = ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens")

# Names of commands in other programs.
_OTHER_NAMES = {"exit": "quit", "bye": "quit", "q": "quit", "?": "help", "retry": "regen"}


@dataclass(frozen=True)
class Slash:
    """Slash command: argument, description, and a function that returns the text to show."""

    argument: str
    about: str
    run: Callable[[Chat, str], str | None]


_NONE = Slash("", "", lambda *_: None)
_OVER = "!"  # prefix of the file of /save to overwrite it


def run_slash(chat: Chat, line: str) -> str | None:
    """Run a line such as `/set temperature 0` and return the text to show. Raise RequestError for unknown commands."""
    name, _, argument = line[1:].partition(" ")
    name = _OTHER_NAMES.get(name, name)
    if name == "save!":
        name, argument = "save", f"{_OVER}{argument}"
    if name not in COMMANDS:
        raise RequestError(f"unknown command /{name}: {_meant(name, argument.strip()) or '/help lists the commands'}")
    command = COMMANDS[name]
    if argument.strip() and not command.argument:
        raise RequestError(f"/{name} takes no argument")
    return command.run(chat, argument.strip())


def complete(line: str) -> list[str]:
    """Return Tab completions of the last word of a line: commands, settings, models and files."""
    words = line.split(" ")
    word = words[-1]
    if not line.startswith("/"):
        return []
    if len(words) == 1:
        return [f"/{name}" for name in COMMANDS if f"/{name}".startswith(word)]
    if words[0] == "/set" and (len(words) == 2 or words[1:-1] == ["parameter"]):
        return [name for name in setting_names() if name.startswith(word)]
    if words[0] == "/model":
        return [*complete_model(word), *_files(word)]
    return _files(word) if COMMANDS.get(words[0][1:].rstrip("!"), _NONE).argument == "FILE" else []


def _files(word: str) -> list[str]:
    folder, _, begun = word.rpartition("/")
    try:
        found = sorted(Path(f"{folder}/" if "/" in word else ".").expanduser().iterdir())
    except (OSError, RuntimeError):
        return []
    head = word[: len(word) - len(begun)]
    names = (f"{path.name}/" if path.is_dir() else path.name for path in found if path.name.startswith(begun))
    return [f"{head}{name}" for name in names if begun or not name.startswith(".")]


def _meant(name: str, argument: str) -> str:
    """Return `did you mean ...?` with the setting of this name, or else with the most similar command or setting."""
    setting = find_setting(name)
    if setting is None:
        known = {command: f"/{command}" for command in COMMANDS}
        known |= {other: f"/set {other} {_EXAMPLES.get(other, 'VALUE')}" for other in setting_names()}
        found = difflib.get_close_matches(name, known, n=1)
        return f"did you mean {known[found[0]]}?" if found else ""
    return f"did you mean /set {setting} {argument or _EXAMPLES.get(setting, 'VALUE')}?"


def _help(_: Chat, __: str) -> str:
    width = max(len(f"/{name} {command.argument}") for name, command in COMMANDS.items())
    lines = [f"{f'/{name} {command.argument}':<{width}}  {command.about}" for name, command in COMMANDS.items()]
    lines += [
        "",
        'Several lines: paste them, press Alt-Enter, begin and end with """, or end a line with a backslash.',
        "Tab completes commands and settings, Ctrl-C stops an answer, Ctrl-D ends the chat.",
    ]
    return "\n".join(lines)


def _system(chat: Chat, text: str) -> str:
    if text:
        chat.conversation.system = None if text in ("none", '""') else text
        chat.measure()
    return f"system prompt: {chat.conversation.system or '(none)'}"


def _clear(chat: Chat, _: str) -> str:
    chat.conversation.messages.clear()
    chat.conversation.notes.clear()
    chat.forget(0)
    return "the conversation is forgotten; system prompt and settings stay"


def _forget(chat: Chat, text: str) -> str:
    if text in ("auto", "ask"):
        chat.forgets = text == "auto"
        return f"if the context is full, the oldest turns are forgotten{'' if chat.forgets else ' only if you agree'}"
    n_turns = chat.conversation.n_turns
    if not text.isdecimal() or not 1 <= int(text) <= n_turns:
        if n_turns == 0:
            raise RequestError("there is no turn to forget")
        raise RequestError(f"expected a number of turns from 1 to {n_turns}, auto or ask: /forget 1")
    chat.forget(int(text))
    return f"{plural(int(text), 'turn')} forgotten, {chat.conversation.n_turns} left"


def _undo(chat: Chat, _: str) -> str:
    question = chat.conversation.take_question()
    if question is None:
        raise RequestError("there is no turn to undo")
    chat.last_facts = None
    chat.measure()
    return f"the last turn is removed, {chat.conversation.n_turns} left; its question: {question}"


def _compact(chat: Chat, text: str) -> str | None:
    if text in ("auto", "ask"):
        chat.compacts = text == "auto"
        return (
            f"if the context is nearly full, a note stands for older turns{'' if chat.compacts else ' only if you ask'}"
        )
    if text == "undo":
        if not chat.conversation.expand():
            raise RequestError("there is no compaction to undo")
        chat.measure()
        return f"the turns are sent again; {chat.meter}"
    if text:
        raise RequestError("expected auto, ask, undo or no argument: /compact undo")
    chat.compact()
    return None


def _regen(chat: Chat, _: str) -> None:
    before = list(chat.conversation.messages)
    asked = [message for message in before if message["role"] == "user"]
    question = chat.conversation.take_question()
    if question is None:
        chat.conversation.messages[:] = before
        raise RequestError("there is no question to answer again")
    saved = chat.images, chat.audio
    chat.images, chat.audio = (list(asked[-1].get(name, ())) for name in ("images", "audio"))
    try:
        chat.ask(question)
    except WoollyError:
        chat.conversation.messages[:] = before
        raise
    finally:
        chat.images, chat.audio = saved


def _save(chat: Chat, name: str) -> str:
    force, name = name.startswith(_OVER), name.removeprefix(_OVER).strip()
    if not name:
        raise RequestError("missing file name, for instance: /save chat.json")
    path = Path(name)
    if not force and path != chat.file and path.expanduser().exists():
        reply = chat.question(f"{name} exists. Write over it? [y/N] ") if chat.question else ""
        if reply.lower() not in ("y", "yes"):
            raise RequestError(f"{name} already exists; /save! {name} overwrites it")
    chat.conversation.save(path)
    chat.file = path
    return f"saved {plural(len(chat.conversation.messages), 'message')} to {name}"


def _load(chat: Chat, name: str) -> str:
    if not name:
        raise RequestError("missing file name, for instance: /load chat.json")
    chat.conversation.load(Path(name))
    chat.file = Path(name)
    chat.forget(0)
    return f"loaded {plural(len(chat.conversation.messages), 'message')} from {name}"


def _edit(chat: Chat, text: str) -> None:
    if chat.question is None:
        raise RequestError("/edit needs a terminal")
    try:
        written = click.edit(text, require_save=True)
    except click.ClickException as error:
        raise RequestError(f"{error.message}; set EDITOR to an installed editor") from None
    if written is None or not written.strip():
        raise RequestError("nothing was saved in the editor, so no message is sent")
    chat.ask(written.strip("\n"))


def _model(chat: Chat, name: str) -> str:
    if name:
        chat.open(name)
    return f"model: {chat.llm.path.name}, {chat.llm.ctx} tokens of context"


def _lora(chat: Chat, text: str) -> str:
    if chat.conversation.params.adapters is not None:  # set by --lora-scaled
        chat.llm.scale_adapters(chat.conversation.params.adapters)
        chat.conversation.params = replace(chat.conversation.params, adapters=None)
    what, _, rest = text.partition(" ")
    name, _, number = rest.rpartition(" ")
    if what == "add" and rest:
        chat.llm.add_adapter(Path(rest.strip()).expanduser())
    elif what == "remove" and rest:
        chat.llm.remove_adapter(rest.strip())
    elif what == "scale" and name:
        try:
            scale = float(number)
        except ValueError:
            raise RequestError(f"expected a number as the scale, not {number!r}: /lora scale {name} 0.5") from None
        scales: dict[str | int, float] = dict(chat.llm.adapter_scales.items())
        chat.llm.scale_adapters(scales | {name.strip(): scale})
    elif text:
        raise RequestError("expected /lora add FILE, /lora scale NAME NUMBER or /lora remove NAME")
    lines = [f"{name}  {scale:g}" for name, scale in chat.llm.adapter_scales.items()]
    return "\n".join(lines) or "no adapters; /lora add FILE takes a LoRA file in GGUF"


def _show(chat: Chat, what: str) -> str:
    if what == "system":
        return _system(chat, "")
    if what in ("parameters", "settings"):
        return _set(chat, "")
    if what not in ("", "info"):
        raise RequestError(f"unknown argument {what!r}; expected info, system or parameters")
    params = sum(math.prod(weight.shape) for weight in chat.llm.plan.weights.values())
    lines = [
        f"model         {chat.llm.path}",
        f"architecture  {chat.llm.plan.architecture}, {params / 1e6:.0f} M parameters",
        f"context       {chat.llm.ctx} tokens" + (f", {chat.meter.split(' ', 1)[1]}" if chat.meter else ""),
        f"turns         {chat.conversation.n_turns}",
        f"system        {chat.conversation.system or '(none)'}",
    ]
    return "\n".join(lines)


def _set(chat: Chat, text: str) -> str:
    text = text.removeprefix("parameter ").strip()  # Ollama's syntax
    if text.partition(" ")[0] == "system":
        return _system(chat, text.partition(" ")[2].strip())
    if text:
        name, _, value = text.replace("=", " ", 1).partition(" ")
        if not value.strip():
            raise RequestError("missing name or value, for instance: /set temperature 0.2")
        chat.conversation.set(name, value.strip())
    params = chat.conversation.params
    shown = {**{name: getattr(params, name) for name in _USUAL}, **changed_settings(params)}
    lines = [f"{name} = {'(not set)' if value is None else value}" for name, value in shown.items()]
    if not text:
        others = ", ".join(name for name in setting_names() if name not in shown)
        lines += ["", f"others: {others}"]
    return "\n".join(lines)


def _stats(chat: Chat, _: str) -> str:
    facts = chat.last_facts
    if facts is None:
        return "no answer yet"
    return f"{stats_of(facts)}\ncontext  {chat.n_tokens} of {chat.llm.ctx} tokens"


def _tools(chat: Chat, _: str) -> str:
    if chat.tools is None:
        raise RequestError("this chat has no tools; woolly chat --mcp mcp.json adds tools of MCP servers")
    return chat.tools.shown


def _quit(chat: Chat, _: str) -> None:
    chat.is_over = True


COMMANDS = {
    "system": Slash("[TEXT]", "set the system prompt, or show it; `none` removes it", _system),
    "clear": Slash("", "forget the conversation", _clear),
    "regen": Slash("", "answer the last question again", _regen),
    "undo": Slash("", "remove the last question and its answer", _undo),
    "forget": Slash("N", "drop the N oldest turns; `auto` does so if the context is full, `ask` asks before", _forget),
    "compact": Slash(
        "[undo]", "let a note stand for older turns; `auto` does so if the context is nearly full", _compact
    ),
    "read": Slash("FILE", "put a file before the next message", attach_text),
    "image": Slash("FILE", "put an image, a PDF file or a video before the next message", attach_image),
    "audio": Slash("FILE", "put an audio file before the next message", attach_audio),
    "edit": Slash("[TEXT]", "write a message in an editor, the one that EDITOR names", _edit),
    "save": Slash("FILE", "write the conversation to a JSON file; /save! writes over another", _save),
    "load": Slash("FILE", "continue a saved conversation", _load),
    "model": Slash("[NAME]", "go on with another model, or show which one answers", _model),
    "lora": Slash("[WHAT]", "show adapters; `add FILE`, `scale NAME NUMBER`, `remove NAME`", _lora),
    "show": Slash("[WHAT]", "show the model and its context; `system`, `parameters`", _show),
    "set": Slash("[NAME VALUE]", "change how answers are sampled, or show it", _set),
    "tools": Slash("", "list the tools of MCP servers, and whether a call asks you first", _tools),
    "stats": Slash("", "tokens and speed of the last answer", _stats),
    "help": Slash("", "this list", _help),
    "quit": Slash("", "end the chat", _quit),
}
