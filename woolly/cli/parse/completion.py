"""Completion by the Tab key: click's scripts for bash, zsh and fish, printed or installed."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from woolly.cli.parse.usage import UsageError

__all__ = ["install_completion", "show_completion"]

# By shell: the file that holds the script, and the file that must load it.
_PLACES = {
    "bash": ("~/.bash_completions/woolly.sh", "~/.bashrc"),
    "fish": ("~/.config/fish/completions/woolly.fish", None),
    "zsh": ("~/.zfunc/woolly.zsh", "~/.zshrc"),
}


def show_completion() -> None:
    """Print the script."""
    click.echo(_script()[1])


def install_completion() -> None:
    """Write the script, and one line into the file with which the shell starts."""
    shell, script = _script()
    place, start = _PLACES[shell]
    path = Path(place).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script + "\n", encoding="utf-8")
    if start is not None:
        file, line = Path(start).expanduser(), f"source '{path}'"
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        if line not in text.splitlines():
            # zsh defines what the script calls only after compinit, which is harmless a second time.
            line = f"autoload -Uz compinit && compinit\n{line}" if shell == "zsh" and "compinit" not in text else line
            with file.open("a", encoding="utf-8") as end:
                end.write(f"\n{line}\n")
    click.echo(f"{shell} completion is in {path}: open another terminal to use it")


def _script() -> tuple[str, str]:
    shell = Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(shell) if shell in _PLACES else None
    if kind is None:
        raise UsageError(f"SHELL names {shell or 'no shell'}; completion is for bash, fish and zsh")
    return shell, kind(click.Group(), {}, "woolly", "_WOOLLY_COMPLETE").source()
