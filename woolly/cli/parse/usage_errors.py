"""Usage errors: one sentence each, with a suggestion."""

from __future__ import annotations

from collections.abc import Iterable

import click

from woolly.errors import RequestError

# Command names of other programs.
_COMMANDS = {
    "ask": "run",
    "benchmark": "bench",
    "cli": "chat",
    "delete": "rm",
    "detokenize": "tokenize",
    "download": "pull",
    "generate": "run",
    "info": "show",
    "inspect": "show",
    "install": "pull",
    "models": "list",
    "ppl": "perplexity",
    "profile": "why",
    "prompt": "run",
    "remove": "rm",
    "server": "serve",
    "start": "serve",
    "version": "--version",
}

# Ollama commands without an equivalent command, and what to use instead.
_OTHERWISE = {
    "logs": "`woolly serve` writes its log to standard error, or to the file of --log-file",
    "push": "Woolly uploads no models",
}


class UsageError(RequestError):
    """Invalid command line. The exit code is 2; other errors have 1."""


def closest(word: str, known: Iterable[str]) -> str:
    """Return `did you mean ...?`, or an empty string if no name is similar."""
    import difflib

    found = difflib.get_close_matches(word, sorted(known), n=2, cutoff=0.65)
    return f"did you mean {' or '.join(found)}?" if found else ""


def unknown_command(word: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown command."""
    meant, hint = _COMMANDS.get(word.lower()), _OTHERWISE.get(word.lower())
    hint = hint or (f"did you mean {meant}?" if meant else closest(word.lower(), [*known, "--help", "--version"]))
    return UsageError(f"unknown command {word!r}: {hint or '`woolly --help` lists the commands'}")


def unknown_option(context: click.Context, name: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown option, with a command that has it or this command's most similar option."""
    path = context.command_path
    likely = [other for other in known if other.startswith("--") == name.startswith("--")]
    hint = _owners(context, name) or closest(name, likely) or f"`{path} --help` lists the options"
    return UsageError(f"unknown option {name} of {path}: {hint}")


def _owners(context: click.Context, name: str) -> str:
    """Return the first two commands with this option as `woolly serve has it`, or an empty string."""
    root = context.find_root()
    if not name.startswith("--") or not isinstance(root.command, click.Group):
        return ""
    found: list[str] = []
    for command in root.command.list_commands(root):
        made = root.command.get_command(root, command)
        if made is not None and any(name in (*one.opts, *one.secondary_opts) for one in made.params):
            found.append(f"`{root.command_path} {command}`")
    return f"{' and '.join(found[:2])} {'takes' if len(found) == 1 else 'take'} it" if found else ""


def duplicate_value(path: str, first: str, second: str) -> UsageError:
    """Return the error for two values of an option that takes one."""
    return UsageError(f"{path} takes one of {first} and {second}, but got both; omit one of them")


def format_error(error: click.UsageError, context: click.Context) -> UsageError:
    """Return a click error as one of Woolly's messages, derived from its class and not from its text."""
    options = [p for p in context.command.get_params(context) if isinstance(p, click.Option) and not p.hidden]
    match error:
        case click.NoSuchOption():
            known = [name for option in options for name in (*option.opts, *option.secondary_opts)]
            return unknown_option(context, error.option_name, known)
        case click.BadOptionUsage():
            is_switch = any(option.is_flag for option in options if error.option_name in option.opts)
            return UsageError(f"{error.option_name} {'takes no' if is_switch else 'needs a'} value")
        case click.MissingParameter(param=click.Argument() as argument):
            usage = " ".join(context.command.collect_usage_pieces(context))
            lacking = (argument.metavar or str(argument.name)).removesuffix("...")
            return UsageError(f"missing argument {lacking}: {context.command_path} {usage}")
    return UsageError(error.format_message())
