"""docs/reference/cli.md, from the help texts of the commands."""

from __future__ import annotations

import click

from woolly.cli.app import app
from woolly.cli.parse.command import Command
from woolly.cli.parse.help import sections_of
from woolly.cli.parse.parameter import shown_default, shown_help, shown_name

_HEAD = """# The command line

Generated from the help texts of the commands by `scripts/generate`.

- Results go to standard output, everything else to standard error.
- `--json` prints one JSON value: an array for `list` and `rerank`, an object for other commands. Without it, `embed`
  prints one object per line.
- Long tasks show a progress bar if standard error is a terminal.
- Errors are one line on standard error: `woolly: error:`, what is wrong, what to do.
- A model is the path of a GGUF file or a name: of [the catalogue](models.md) (`smollm2`, `qwen3:4b`), of
  `woolly list`, of the Hugging Face hub (`org/repo`, `hf:org/repo:Q4_K_M`), or the URL it was pulled from. Every
  command that takes one model also accepts `-m MODEL`.
- Options have the names of llama.cpp, with its aliases (`--ctx-size`, `--predict`, `--n-predict`, `--cache-type-k`,
  `--system-prompt`, `--reverse-prompt`, `--grammar-file`, `-j`, `-jf`). llama.cpp flags that Woolly lacks are
  accepted if they ask for what is always on here (`-fa on`, `--mmap`), accepted with a warning if they cannot change
  an answer (`--mlock`, `-tb 4`), and rejected otherwise.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | an error explained by the message: a file, a model, the network, the disk, a configuration file |
| 2 | a usage error: an unknown command or option, a missing prompt, a value out of range |
| 130 | interrupted by Ctrl-C (`woolly serve` exits with 0) |
| other | `woolly launch` exits with the code of the agent |

`woolly --install-completion` installs shell completion.
"""


def reference() -> str:
    """The page as Markdown."""
    commands = commands_of(app)
    rows = "".join(f"\n| [`{c.name}`](#woolly-{c.name}) | {_cell(_first(c))} |" for c in commands)
    parts = [_HEAD, f"| command | |\n|---|---|{rows}", *map(_section, commands)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def commands_of(group: click.Group) -> list[Command]:
    """Return the commands that the help lists, in its order."""
    context = click.Context(group)
    return [command for name in group.list_commands(context) if (command := group.get_command(context, name))]


def _first(command: Command) -> str:
    return str(command.help).partition("\n\n")[0]


def _section(command: Command) -> str:
    usage = " ".join(["woolly", str(command.name), *command.collect_usage_pieces(click.Context(command))])
    text = f"## woolly {command.name}\n\n```\n{usage}\n```\n\n{command.help}"
    groups = {title: [p for p in listed if "--help" not in p.opts] for title, listed in groups_of(command).items()}
    if not command.common:  # few options: one table
        groups = {"": [p for listed in groups.values() for p in listed]}
    return text + "".join(_table(title, listed) for title, listed in groups.items() if listed)


def groups_of(command: Command) -> dict[str, list[click.Parameter]]:
    """Return the parameters of a command by the title of their section."""
    return sections_of(command, click.Context(command))


def _table(title: str, listed: list[click.Parameter]) -> str:
    rows = [f"\n| {names_of(p)} | {_cell(shown_help(p))}{_default(p)} |" for p in listed]
    return f"\n\n| {title} | |\n|---|---|" + "".join(rows)


def names_of(parameter: click.Parameter) -> str:
    """Return the names of a parameter as code, long names first."""
    if isinstance(parameter, click.Argument):
        return f"`{_cell(shown_name(parameter))}`"
    names = sorted(parameter.opts, key=lambda name: (not name.startswith("--"), name)) + parameter.secondary_opts
    return " ".join(f"`{name}`" for name in names)


def _default(parameter: click.Parameter) -> str:
    default = shown_default(parameter)
    return f" Default: {_cell(default)}." if default else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
