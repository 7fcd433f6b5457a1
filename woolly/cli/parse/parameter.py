"""Options and arguments of commands: click's classes with readable defaults and sections of --help."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from woolly.cli.parse.usage_errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Completer = Callable[[str], list[str]]

TYPED = "woolly.typed"  # key of a context's meta: names of options as typed, by parameter


class _Number(click.ParamType):  # type: ignore[type-arg]  # generic only in late versions of click
    """Converts text to an int or a float. Errors name the parameter and quote the text."""

    def __init__(self, kind: type[int] | type[float], metavar: str, expected: str) -> None:
        self.name, self._kind, self._expected = metavar, kind, expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._kind(value)
        except ValueError:
            raise UsageError(f"{typed_name(param, ctx)} is {value!r}; expected {self._expected}") from None


_TYPES: dict[Any, Any] = {
    int: _Number(int, "N", "an integer"),
    float: _Number(float, "X", "a number"),
    str: click.STRING,
    list: click.STRING,
    tuple: click.STRING,
}


def _type(kind: type) -> Any:
    """Return click's type for a Python type. All other types are paths: pathlib takes 9 ms to import."""
    assert kind in _TYPES or issubclass(kind, os.PathLike), kind
    return _TYPES[kind] if kind in _TYPES else click.Path(path_type=kind)


class Option(click.Option):
    """Option such as `--model -m`, with its help and type.

    `shown` is a readable default. A `list` may be repeated. `bool` makes a switch: `--on` or `--on/--off`. A pair is
    typed as A:B or, in llama.cpp's earlier syntax, as two words.
    """

    def __init__(
        self,
        names: str,
        help: str,
        kind: type = str,
        *,
        to: str = "",
        default: Any = None,
        shown: str = "",
        section: str = "",
        metavar: str | None = None,
        complete: Completer | None = None,
        is_pair: bool = False,
    ) -> None:
        self.shown, self.section, self.is_pair = shown, section, is_pair
        super().__init__(
            [*names.split(), *([to] if to else [])],
            help=help,
            type=click.BOOL if kind is bool else _type(kind),
            is_flag=kind is bool,
            multiple=kind in (list, tuple),
            default=default,
            metavar=metavar,
            shell_complete=_completing(complete),
        )


class Argument(click.Argument):
    """Argument with help."""

    def __init__(
        self,
        name: str,
        metavar: str,
        help: str,
        kind: type = str,
        *,
        shown: str = "",
        required: bool = False,
        complete: Completer | None = None,
    ) -> None:
        super().__init__(
            [name],
            metavar=metavar,
            type=_type(kind),
            nargs=-1 if kind is list else 1,
            required=required,
            shell_complete=_completing(complete),
        )
        self.about, self.shown = help, shown  # not `help`, for which click 8.5 writes a separate section


class Bundle:
    """Options that a command receives as one dict in its parameter `name`, without options that were not typed.

    `finish` converts the dict. `section` is the title in --help.
    """

    def __init__(
        self,
        name: str,
        options: tuple[Option, ...],
        finish: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        section: str = "",
    ) -> None:
        self.name, self.options, self.section, self._finish = name, options, section, finish

    def collect(self, given: dict[str, Any]) -> None:
        """Replace the values of the options in `given` by the dict."""
        typed = {option.name: given.pop(str(option.name)) for option in self.options}
        given[self.name] = self._finish({str(n): value for n, value in typed.items() if value not in (None, ())})


def shown_name(parameter: click.Parameter) -> str:
    """Return `-m, --model MODEL` for an option, MODEL for an argument, [MODEL] for an optional argument."""
    if isinstance(parameter, click.Option):
        yes, _ = click.formatting.join_options(parameter.opts)
        if parameter.secondary_opts:
            return f"{yes} / {click.formatting.join_options(parameter.secondary_opts)[0]}"
        return yes if parameter.is_flag else f"{yes} {parameter.metavar or parameter.type.name.upper()}"
    name = parameter.metavar or str(parameter.name).upper()
    return name if parameter.required or name.startswith("[") else f"[{name}]"


def typed_name(parameter: click.Parameter | None, context: click.Context | None) -> str:
    """Return an option's name as typed (--temp, not --temperature), else its first name, or an argument's name."""
    if not isinstance(parameter, click.Option):
        return shown_name(parameter) if parameter else "the value"
    typed: dict[str, str] = context.meta.get(TYPED, {}) if context else {}
    return typed.get(str(parameter.name), parameter.opts[0])


def shown_help(parameter: click.Parameter) -> str:
    """Return the help text of an option or an argument."""
    return str(getattr(parameter, "about", None) or getattr(parameter, "help", None) or "")


def shown_default(parameter: click.Parameter) -> str:
    """Return the readable default, empty if there is none."""
    if shown := getattr(parameter, "shown", ""):
        return str(shown)
    default = parameter.default
    if isinstance(default, bool):
        return parameter.opts[0] if default and parameter.secondary_opts else ""
    if isinstance(default, (list, tuple)):
        return ",".join(map(str, default))
    return str(default) if isinstance(default, (str, int, float)) else ""


def _completing(complete: Completer | None) -> Any:
    """Return click's shell completion: names, and matching files."""
    if complete is None:
        return None

    def found(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        # Files first, because click's script for bash forgets earlier items and offers files if there is no name.
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file"), *map(CompletionItem, complete(incomplete))]

    return found
