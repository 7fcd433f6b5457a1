"""Commands: a function, its options, and errors that name the option as typed."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from woolly.cli.parse.help import write_commands, write_sections
from woolly.cli.parse.llama_flags import LLAMA_FLAGS, LlamaFlag
from woolly.cli.parse.parameter import TYPED, Bundle, shown_name, typed_name
from woolly.cli.parse.usage_errors import UsageError, duplicate_value, format_error, unknown_command, unknown_option
from woolly.errors import RequestError, WoollyError


def command(
    *parameters: click.Parameter | Bundle, kind: type[Command] | None = None, common: str = ""
) -> Callable[[Callable[..., None]], Command]:
    """Make a function the command of its file. The file name is the command's name, the docstring its help.

    `common` lists the parameters of the options that --help shows first, separated by spaces.
    """

    def declare(function: Callable[..., None]) -> Command:
        bundles = [parameter for parameter in parameters if isinstance(parameter, Bundle)]

        @functools.wraps(function)
        def call(**given: Any) -> None:
            for bundle in bundles:
                bundle.collect(given)
            function(**given)

        listed = [p for one in parameters for p in (one.options if isinstance(one, Bundle) else (one,))]
        name, text = function.__module__.rpartition(".")[2], inspect.cleandoc(function.__doc__ or "")
        made = (kind or Command)(name, params=listed, callback=call, help=text)
        made.common = common.split()
        made.sections = {str(p.name): bundle.section for bundle in bundles if bundle.section for p in bundle.options}
        return made

    return declare


class Command(click.Command):
    """Command that also accepts llama.cpp's option names.

    `common` and `sections` determine where --help shows an option: first, or under the title of its bundle.
    """

    common: Sequence[str] = ()
    sections: Mapping[str, str] = {}

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return [OPTIONS] and the arguments, as shown by --help and errors."""
        return ["[OPTIONS]", *(shown_name(p) for p in self.params if isinstance(p, click.Argument))]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write arguments, options, and sections of options."""
        write_sections(self, ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words. Raise UsageError for unexpected arguments."""
        ctx.allow_extra_args = True  # reported here, since click's message is hard to reword
        try:
            # Completion parses incomplete lines, so they are not rejected.
            rest = super().parse_args(ctx, args if ctx.resilient_parsing else self._translated(ctx, args))
        except click.UsageError as error:
            raise format_error(error, ctx) from None
        if rest and not ctx.resilient_parsing:
            raise self.too_many(ctx, " ".join(rest))
        return rest

    def too_many(self, ctx: click.Context, words: str) -> UsageError:
        """Return the error for unexpected arguments."""
        usage = " ".join(self.collect_usage_pieces(ctx))
        return UsageError(f"unexpected argument {words!r}: {ctx.command_path} {usage}")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Errors about a parameter name the flag, not the field of the library."""
        from woolly.cli.terminal.log import print_warnings  # not needed for --help

        print_warnings(ctx.meta.get(TYPED, {}))
        try:
            return super().invoke(ctx)
        except UsageError:
            raise
        except RequestError as error:
            raise self.flagged(error, ctx) from error
        except WoollyError as error:
            error.args = (error.advised(self.flags(ctx)),)
            raise

    def flagged(self, error: RequestError, ctx: click.Context) -> RequestError:
        """Return the error with flags instead of field names, as a UsageError if the invalid field has a flag."""
        flags = self.flags(ctx)
        kind = UsageError if error.field in flags else type(error)
        return error.with_message(error.worded(flags), kind)

    def flags(self, ctx: click.Context) -> dict[str, str]:
        """Return the flag of each parameter, as typed."""
        flags = {p.name: typed_name(p, ctx) for p in self.params if p.name and isinstance(p, click.Option)}
        if ("device" in flags or "backend" not in flags) and "backend" not in ctx.meta.get(TYPED, {}):
            flags["backend='cpu'"] = "--device cpu"  # form used in the docs
        return flags

    def _translated(self, ctx: click.Context, args: Sequence[str]) -> list[str]:
        """Return the words with llama.cpp's flags replaced by Woolly's, dropped, or rejected with a UsageError."""
        options: dict[str, click.Option] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option):
                options |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), parameter)
        out: list[str] = []
        given: dict[str, tuple[str, str]] = {}  # parameter to its value and the flag as typed
        typed: dict[str, str] = ctx.meta.setdefault(TYPED, {})
        rest = deque(args)
        while rest:
            word = rest.popleft()
            if word == "--":
                return [*out, word, *rest]
            name, equals, value = word.partition("=")
            spelled, flag = name, None if name in options else LLAMA_FLAGS.get(name)
            if flag is not None and flag.ours in options:
                name = flag.ours
            elif flag is not None and not flag.ours:
                if flag.takes_value and not equals:
                    value = _value_of(flag, rest)
                if notice := flag.notice(ctx.command_path, name, value):
                    click.echo(f"woolly: {notice}", err=True)
                continue
            elif name not in options and re.fullmatch(r"-[A-Za-z][A-Za-z-]+", name):
                raise unknown_option(ctx, name, options)  # click would parse -nope as -n with the value ope
            out.append(name + equals + value)
            if name not in options and name[:2] in options and not options[name[:2]].is_flag:  # -n5
                name, spelled, value, equals = name[:2], name[:2], name[2:], "="
            if name not in options:
                continue
            option = options[name]
            if not option.is_flag and not equals:
                words = [rest.popleft()] if rest else []
                if words and rest and getattr(option, "is_pair", False) and not _is_pair(words[0]):
                    words = [f"{words[0]}:{rest.popleft()}"]
                out += words
                value = words[0] if words else ""
            typed[str(option.name)] = spelled
            whole = spelled if option.is_flag else f"{spelled} {value}"
            meant = str(name in option.opts) if option.is_flag else value
            before = given.setdefault(str(option.name), (meant, whole))
            if before[0] != meant and not option.multiple:
                raise duplicate_value(ctx.command_path, before[1], whole)
        return out


def _is_pair(value: str) -> bool:
    """True if a value is A:B with a number B."""
    return re.fullmatch(r".+:[-+]?[\d.]+(e[-+]?\d+)?", value) is not None


def _value_of(flag: LlamaFlag, rest: deque[str]) -> str:
    """Return the value of a flag from the following words. If the value is optional, only a matching word is used."""
    if flag.bare and (not rest or rest[0].lower() not in flag.values):
        return flag.bare
    return rest.popleft() if rest else ""


# Aliases of commands, not listed in --help.
_ALIASES = {"ls": "list"}


class Group(click.Group):
    """All commands, each imported from its file when needed. Errors are UsageErrors."""

    def __init__(
        self,
        briefs: Mapping[str, str],
        titles: Mapping[str, str],
        package: str,
        help: str,
        params: list[click.Parameter],
    ) -> None:
        super().__init__("woolly", help=help, params=params, context_settings={"help_option_names": ["-h", "--help"]})
        self._briefs, self._package = briefs, package  # help line of each command; package of the commands
        self._titles = titles  # titles of the groups, by their first command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of --help."""
        return list(self._briefs)

    def get_command(self, ctx: click.Context, name: str) -> Command | None:
        """Return the command declared in the file with this name, or None."""
        if name not in self._briefs:
            return None
        declared = vars(import_module(f"{self._package}.{name}")).values()
        return next(value for value in declared if isinstance(value, Command))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command for a word. Raise UsageError with the most similar name for an unknown word."""
        if args[0] == "help":  # `woolly help`, `woolly help run`
            args = [*args[1:2], "--help"]
        if args == ["--help"]:
            click.echo(ctx.get_help())
            ctx.exit()
        args = [_ALIASES.get(args[0], args[0]), *args[1:]]
        if not args[0].startswith("-") and args[0] not in self._briefs:
            raise unknown_command(args[0], self._briefs)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words. Without words, --help is printed."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise format_error(error, ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in groups, then the options."""
        write_commands(self._briefs, self._titles, formatter)
        write_sections(self, ctx, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ctrl-C ends it with 130, without click's empty line."""
        try:
            return super().invoke(ctx)
        except click.UsageError:  # `woolly --`
            raise UsageError("missing command; `woolly --help` lists the commands") from None
        except KeyboardInterrupt:
            ctx.exit(130)

    def main(self, args: Sequence[str] | None = None, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Run like click's `main`, but raise errors for the caller."""
        if "_WOOLLY_COMPLETE" in os.environ:  # completion: registers our bash class with click
            import_module("woolly.cli.parse.completion")
        # Set the name, because Python may have been given a script or -m.
        result = super().main(args, standalone_mode=False, **{**extra, "prog_name": "woolly"})
        if standalone_mode:
            sys.exit(result if isinstance(result, int) else 0)
        return result
