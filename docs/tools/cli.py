"""docs/reference/cli.md, made from the commands themselves: `python docs/tools/cli.py > docs/reference/cli.md`."""

from __future__ import annotations

import click

from woolly.cli.app import app
from woolly.cli.parse.command import Command
from woolly.cli.parse.help import sections_of
from woolly.cli.parse.parameter import shown_default, shown_help, shown_name

_HEAD = """# The command line

Made from the commands' own help by `python docs/tools/cli.py > docs/reference/cli.md`; a test holds it to that.

Results go to standard output, everything else to standard error. `--json` prints one JSON value: a list from
`list` and `rerank`, an object from other commands; `embed` prints an object per line without it. Long work shows a
progress bar with its rate and the time left if standard error is a terminal, and nothing otherwise.

A model is the path of a GGUF file, or a name: one of [the catalogue](models.md) (`smollm2`, `qwen3:4b`), one of
`woolly list`, `org/repo` or `hf:org/repo:Q4_K_M` of the Hugging Face hub, or the address that it was pulled from.

| exit code | |
|---|---|
| 0 | success |
| 1 | an error that the message explains: a file, a model, the network, the disk, a file of settings |
| 2 | a mistake on the command line: an unknown command or option, a missing prompt, a value out of range |
| 130 | Ctrl-C (`woolly serve` ends with 0: that is how one stops it) |
| any | `woolly launch` ends with the code of the agent |

Errors are one line on standard error, `woolly: error:` and a sentence that says what would be right. Options have
llama.cpp's names if it has the same thing, and its other names for them are understood: `--ctx-size`, `--predict`,
`--n-predict`, `--cache-type-k`, `--system-prompt`, `--reverse-prompt`, `--grammar-file`, `-j`, `-jf`. A llama.cpp flag
that Woolly does not have is taken if it asks for what Woolly does anyway (`-fa on`, `--mmap`), or, with a line that it
has no effect, if it can change no answer (`--mlock`, `-tb 4`). All others are refused with the reason.
Every command that takes one model takes it as `-m MODEL` too.

`woolly --install-completion` adds completion to your shell.
"""


def reference() -> str:
    """The page as Markdown."""
    context = click.Context(app)
    commands = [command for name in app.list_commands(context) if (command := app.get_command(context, name))]
    rows = "".join(f"\n| [`{c.name}`](#woolly-{c.name}) | {_cell(_first(c))} |" for c in commands)
    parts = [_HEAD, f"| command | |\n|---|---|{rows}", *map(_section, commands)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _first(command: Command) -> str:
    return str(command.help).partition("\n\n")[0]


def _section(command: Command) -> str:
    usage = " ".join(["woolly", str(command.name), *command.collect_usage_pieces(click.Context(command))])
    text = f"## woolly {command.name}\n\n```\n{usage}\n```\n\n{command.help}"
    groups = {title: [p for p in listed if "--help" not in p.opts] for title, listed in _groups(command).items()}
    if not command.common:  # few options: one table
        groups = {"": [p for listed in groups.values() for p in listed]}
    return text + "".join(_table(title, listed) for title, listed in groups.items() if listed)


def _groups(command: Command) -> dict[str, list[click.Parameter]]:
    return sections_of(command, click.Context(command))


def _table(title: str, listed: list[click.Parameter]) -> str:
    rows = [f"\n| {_names(p)} | {_cell(shown_help(p))}{_default(p)} |" for p in listed]
    return f"\n\n| {title} | |\n|---|---|" + "".join(rows)


def _names(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return f"`{_cell(shown_name(parameter))}`"
    names = sorted(parameter.opts, key=lambda name: (not name.startswith("--"), name)) + parameter.secondary_opts
    return " ".join(f"`{name}`" for name in names)


def _default(parameter: click.Parameter) -> str:
    default = shown_default(parameter)
    return f" Default: {_cell(default)}." if default else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    print(reference(), end="")
