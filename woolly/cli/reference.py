"""docs/cli.md, made from the commands themselves: `python -m woolly.cli.reference > docs/cli.md`."""

from __future__ import annotations

import inspect
from typing import Any

import typer

from woolly.cli.app import app
from woolly.cli.help import argument_name

__all__ = ["reference"]

_HEAD = """# The command line

Made from the commands' own help by `python -m woolly.cli.reference > docs/cli.md`; a test holds it to that.

Results go to standard output, everything else to standard error. `--json` prints one JSON object. Long work shows a
progress bar with its rate and the time left where standard error is a terminal, and nothing elsewhere.

A model is the path of a GGUF file, used where it lies, or a name: one of the catalogue (`smollm2`), one of
`woolly list`, `hf:org/repo:Q4_K_M` of the Hugging Face hub, or the address that it was pulled from.

| exit code | |
|---|---|
| 0 | success |
| 1 | an error that the message explains: a file, a model, the network, the disk, a setting of `serve` |
| 2 | what was typed cannot be meant: an unknown command or option, a missing prompt, a value out of range |
| 130 | Ctrl-C (`woolly serve` ends with 0: that is how one stops it) |

Errors are one line on standard error, `woolly: error:` and a sentence that says what would be right. Options have
llama.cpp's names where it has the same thing; its other names for them are taken too: `--ctx-size`, `--predict`,
`--n-predict`, `--cache-type-k`, `--system-prompt`, `--reverse-prompt`, `--grammar-file`, `-j`, `-jf`. An option of its
that has no meaning here is refused, never ignored. Every command that takes one model takes it as `-m MODEL` too.

`woolly --install-completion` adds completion to your shell.
"""


def reference() -> str:
    """The page as Markdown."""
    group: Any = typer.main.get_command(app)
    parts = [_HEAD, "| command | |\n|---|---|"]
    parts[-1] += "".join(f"\n| [`{name}`](#woolly-{name}) | {_first(command)} |" for name, command in _commands(group))
    parts += [_section(name, command) for name, command in _commands(group)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _commands(group: Any) -> list[tuple[str, Any]]:
    return [(name, group.commands[name]) for name in group.commands if not group.commands[name].hidden]


def _first(command: Any) -> str:
    return _cell(_text(command).split("\n\n")[0])


def _text(command: Any) -> str:
    return inspect.cleandoc(command.help or "")


def _section(name: str, command: Any) -> str:
    parameters = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    options = [p for p in parameters if p.param_type_name == "option"]
    usage = " ".join(argument_name(p) for p in arguments)
    parts = [
        f"## woolly {name}",
        f"```\nwoolly {name}{' [OPTIONS]' if options else ''}{' ' + usage if usage else ''}\n```",
    ]
    parts.append(_text(command))
    rows = [f"| `{argument_name(p)}` | {_cell(p.help or '')}{_default(p)} |" for p in arguments]
    rows += [f"| {_names(p)} | {_cell(p.help or '')}{_default(p)} |" for p in options]
    if rows:
        parts.append("| | |\n|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _names(parameter: Any) -> str:
    names = sorted(parameter.opts, key=lambda name: (not name.startswith("--"), name)) + sorted(
        parameter.secondary_opts
    )
    return " ".join(f"`{name}`" for name in names)


def _default(parameter: Any) -> str:
    """The default, where a person would want to know it."""
    if isinstance(parameter.show_default, str):
        return f" Default: {_cell(parameter.show_default)}."
    default = parameter.default
    if not parameter.show_default or default is None or default is False or default in ((), [], ""):
        return ""
    if default is True:
        return f" Default: `{parameter.opts[0]}`." if parameter.secondary_opts else ""
    shown = ",".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
    return f" Default: {_cell(shown)}."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    print(reference(), end="")
