"""What was typed wrongly: one sentence in one style for each mistake, with what may have been meant."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from woolly.cli.help import argument_name, write_parameters
from woolly.errors import RequestError

__all__ = ["Boxed", "Command", "Group", "UsageError", "near"]


class UsageError(RequestError):
    """What was typed cannot be meant: the exit code is 2, where that of other errors is 1."""


# typer brings click's classes along in some versions and imports them in others: reached by way of its own names.
_TYPED_WRONGLY: Any = typer.BadParameter.__mro__[1]

# What people call commands elsewhere.
_COMMANDS = {
    "ask": "run",
    "benchmark": "bench",
    "cli": "chat",
    "delete": "rm",
    "detokenize": "tokenize",
    "download": "pull",
    "generate": "run",
    "help": "--help",
    "info": "show",
    "inspect": "show",
    "install": "pull",
    "ls": "list",
    "models": "list",
    "ppl": "perplexity",
    "profile": "why",
    "prompt": "run",
    "remove": "rm",
    "server": "serve",
    "start": "serve",
    "version": "--version",
}

# llama.cpp's names of options that have another one here.
_ALIASES = {
    "--cache-type-k": "--kv-type",
    "--ctx-size": "--ctx",
    "--grammar-file": "--grammar",
    "--json-schema-file": "--json-schema",
    "--n-predict": "--max-tokens",
    "--predict": "--max-tokens",
    "--reverse-prompt": "--stop",
    "--system-prompt": "--system",
    "-j": "--json-schema",
    "-jf": "--json-schema",
}

_CPU = "Woolly computes on the CPU; leave it out"
_HUB = "name the model as hf:org/repo:QUANT, which `woolly pull` brings here"
# Options of llama.cpp's tools that have no counterpart, and what to do instead.
_HINTS = {
    **dict.fromkeys(("-ngl", "--gpu-layers", "--n-gpu-layers", "-dev", "--device", "-sm", "--split-mode"), _CPU),
    **dict.fromkeys(("-mg", "--main-gpu", "-ts", "--tensor-split", "-ot", "-nkvo", "-ncmoe", "-cmoe"), _CPU),
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url"), _HUB),
    **dict.fromkeys(("-cnv", "--conversation", "-i", "--interactive", "-if"), "`woolly chat` talks with a model"),
    **dict.fromkeys(("-no-cnv", "--no-conversation"), "--raw continues a prompt without a chat template"),
    **dict.fromkeys(("-st", "--single-turn"), "`woolly run` answers one prompt; leave it out"),
    **dict.fromkeys(("-fa", "--flash-attn"), "attention always works so; leave it out"),
    **dict.fromkeys(("-ctv", "--cache-type-v"), "keys and values are kept in one type, which --kv-type names"),
    **dict.fromkeys(("-tb", "--threads-batch"), "prompts and answers have the same threads, which --threads counts"),
    **dict.fromkeys(("--mmap", "--no-mmap", "--mlock"), "files are always mapped; leave it out"),
    "--format": "--json prints one JSON object, --json-schema holds the answer to a schema",
    **dict.fromkeys(("-v", "--verbose"), "--json has the timings, and `woolly why` explains them"),
    **dict.fromkeys(("-mm", "--mmproj", "--image", "--lora"), "images and adapters are not supported"),
}


def near(word: str, known: Iterable[str]) -> str:
    """`did you mean ...?`, or nothing where no name is near."""
    found = difflib.get_close_matches(word, sorted(known), n=2, cutoff=0.65)
    return f"did you mean {' or '.join(found)}?" if found else ""


class Group(TyperGroup):
    """The whole command line. Whatever is wrong with it is raised as UsageError, in one sentence."""

    def main(self, args: Sequence[str] | None = None, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """As click's, but errors are the caller's to show."""
        extra["prog_name"] = "woolly"  # also where Python was given a script, or -m
        try:
            result = super().main(args, standalone_mode=False, **extra)
        except _TYPED_WRONGLY as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(error.ctx.get_help(), err=True)
                sys.exit(2)
            raise UsageError(_sentence(error)) from None
        except typer.Abort:  # Ctrl-C, in some versions
            raise KeyboardInterrupt from None
        if standalone_mode:
            sys.exit(result if isinstance(result, int) else 0)
        return result

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that a word means; UsageError with the nearest where it is none."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            word = args[0]
            meant = _COMMANDS.get(word.lower())
            hint = f"did you mean {meant}?" if meant else near(word.lower(), [*self.commands, "--help", "--version"])
            raise UsageError(f"there is no command {word!r}: {hint or '`woolly --help` lists those there are'}")
        return super().resolve_command(ctx, args)


class Command(TyperCommand):
    """A command whose errors name what a person typed: `--top-p is -1`, where the library says `top_p is -1`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """[OPTIONS] and the arguments, as --help and errors show them."""
        return ["[OPTIONS]", *(argument_name(p) for p in self.params if p.param_type_name == "argument")]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, options, and groups of options."""
        write_parameters(self, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Take llama.cpp's names too, and tell which value of which option is wrong."""
        args[:] = self._renamed(args)
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            kind = re.search(r"integer|float|number", error.message)
            parameter: Any = error.param
            if kind is None or parameter is None:
                raise
            values = self.make_parser(ctx).parse_args(typed)[0]
            expected = "a whole number" if kind[0] == "integer" else "a number"
            name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or parameter.name
            raise UsageError(f"{name} is {values[parameter.name]!r}; {expected} was expected") from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and rename in its errors."""
        try:
            return super().invoke(ctx)
        except RequestError as error:
            flags = {p.name: p.opts[0] for p in self.params if p.name and p.param_type_name == "option"}
            text = str(error)
            found = re.match(r"(\w+)(?= (?:is|names|holds|of|'\w*' is)\b)", text)
            is_option = found is not None and found[1] in flags
            if found is not None and is_option:
                text = flags[found[1]] + text[found.end() :]
            text = re.sub(r"\braise ctx\b", f"raise {flags.get('ctx', 'ctx')}", text)
            text = re.sub(r"\b(\w+)=(?=\d)", lambda m: f"{flags[m[1]]} " if m[1] in flags else m[0], text)
            raise (UsageError if is_option else type(error))(text) from error

    def _renamed(self, args: Sequence[str]) -> list[str]:
        """Other names by ours. Click would read `-ngl` as -n with the value gl: it is refused here."""
        options = [p for p in self.params if p.param_type_name == "option"]
        known: dict[str, Any] = {name: p for p in options for name in (*p.opts, *p.secondary_opts)}
        known |= dict.fromkeys(("-h", "--help"))
        out: list[str] = []
        rest = iter(args)
        for word in rest:
            name, sign, value = word.partition("=")
            if name not in known and _ALIASES.get(name) in known:
                name = _ALIASES[name]
                word = name + sign + value
            out.append(word)
            if word == "--":
                break
            option: Any = known.get(name)
            if option is not None and not option.is_flag and not sign:
                out += [following for following in [next(rest, None)] if following is not None]
            elif option is None and re.fullmatch(r"-[A-Za-z][A-Za-z-]+", name):
                raise UsageError(_no_option(self.name or "", name, known))
        return [*out, *rest]


class Boxed(Command):
    """A command with very many settings: boxes around their groups in --help.

    Errors name a setting as it is called everywhere: it may come from a file or the environment.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.rich_markup_mode = "rich"

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its errors stay as they are."""
        return TyperCommand.invoke(self, ctx)


def _no_option(command: str, name: str, known: Iterable[str]) -> str:
    shown = command if command == "woolly" else f"woolly {command}"
    if hint := _HINTS.get(name):
        return f"{shown} has no option {name}: {hint}"
    likely = [other for other in known if other.startswith("--") == name.startswith("--")]
    return f"{shown} has no option {name}: {near(name, likely) or f'`{shown} --help` lists those there are'}"


def _sentence(error: Any) -> str:
    """What click says, in our words."""
    context = error.ctx
    command = context.command_path if context is not None else "woolly"
    usage = " ".join(context.get_usage().split()).partition(": ")[2] if context is not None else "woolly --help"
    kind = type(error).__name__
    if kind == "NoSuchOption":
        options = [] if context is None else [p for p in context.command.params if not getattr(p, "hidden", False)]
        return _no_option(command.removeprefix("woolly "), error.option_name, [n for p in options for n in p.opts])
    if kind == "MissingParameter":
        name = error.param.metavar or error.param.name.upper()
        return f"{command} lacks {name.removesuffix('...')}: {usage}"
    message: str = error.format_message().rstrip(".")
    if extra := re.match(r"Got unexpected extra argument(?:s|\(s\))? \((.+)\)", message):
        if command == "woolly serve":
            return f"woolly serve takes its model as an option: woolly serve -m {extra[1]}"
        return f"{command} has no use for {extra[1]!r}: {usage}"
    if kind == "BadOptionUsage" and "requires" in message:
        return f"{error.option_name} needs a value"
    return message[:1].lower() + message[1:]
