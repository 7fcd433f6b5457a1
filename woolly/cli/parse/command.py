"""Commands: a function, its options, and errors that name the option as typed."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from woolly.cli.parse.help import write_commands, write_sections
from woolly.cli.parse.parameter import TYPED, Bundle, shown_name, typed_name
from woolly.cli.parse.translation import translated
from woolly.cli.parse.usage_errors import UsageError, format_error, unknown_command
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
    """Command that also accepts the option names of llama.cpp, vLLM and Ollama.

    `common` and `sections` determine where --help shows an option: first, or under the title of its bundle.
    """

    common: Sequence[str] = ()
    sections: Mapping[str, str] = {}

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return [OPTIONS] and the arguments, as shown by --help and errors."""
        return ["[OPTIONS]", *(shown_name(p) for p in self.params if isinstance(p, click.Argument))]

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Return the names of the help option in any context, because click keeps the option of the first one."""
        return ["-h", "--help"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write arguments, options, and sections of options."""
        write_sections(self, ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words. Raise UsageError for unexpected arguments."""
        ctx.allow_extra_args = True  # reported here, since click's message is hard to reword
        try:
            # Completion parses incomplete lines, so they are not rejected.
            rest = super().parse_args(ctx, args if ctx.resilient_parsing else translated(ctx, args))
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
