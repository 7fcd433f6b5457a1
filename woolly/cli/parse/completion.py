"""Tab completion: click's scripts for bash, zsh and fish, printed or installed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from woolly.cli.parse.usage_errors import UsageError

# By shell: the script file, and the file that must load it.
_PLACES = {
    "bash": ("~/.bash_completions/woolly.sh", "~/.bashrc"),
    "fish": ("~/.config/fish/completions/woolly.fish", None),
    "zsh": ("~/.zfunc/woolly.zsh", "~/.zshrc"),
}


class _Bash(BashComplete):
    """Completion in bash of names with a colon, where bash ends a word and only replaces the text after it."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the current word, and the complete current word."""
        args, incomplete = super().get_completion_args()
        words = [*args, incomplete]
        while len(words) > 1 and (words[-1].startswith(":") or words[-2] == ":"):  # bash passes qwen3 : 4
            words[-2:] = ["".join(words[-2:])]
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """Return a line for bash: the kind, and the replacement of the word."""
        head = re.match(r".*:", self.get_completion_args()[1])
        if head is not None and item.type == "plain":
            item = CompletionItem(str(item.value).removeprefix(head[0]), type=item.type)
        return super().format_completion(item)


add_completion_class(_Bash)


def show_completion() -> None:
    """Print the script."""
    click.echo(_script()[1])


def install_completion() -> None:
    """Write the script, and add a line to the shell's startup file."""
    shell, script = _script()
    place, start = _PLACES[shell]
    path = Path(place).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script + "\n", encoding="utf-8")
    if start is not None:
        file, line = Path(start).expanduser(), f"source '{path}'"
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        if line not in text.splitlines():
            # zsh defines functions used by the script only after compinit, which may run twice.
            line = f"autoload -Uz compinit && compinit\n{line}" if shell == "zsh" and "compinit" not in text else line
            with file.open("a", encoding="utf-8") as end:
                end.write(f"\n{line}\n")
    click.echo(f"{shell} completion is in {path}; open another terminal to use it")


def _script() -> tuple[str, str]:
    shell = Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(shell) if shell in _PLACES else None
    if kind is None:
        raise UsageError(f"SHELL is {shell or 'not set'}; completion supports bash, fish and zsh")
    return shell, kind(click.Group(), {}, "woolly", "_WOOLLY_COMPLETE").source()
