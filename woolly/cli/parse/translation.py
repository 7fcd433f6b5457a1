"""Translation of a command line: flags of other programs become Woolly's, are dropped, or are rejected."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from woolly.cli.parse.parameter import TYPED
from woolly.cli.parse.usage_errors import UsageError, duplicate_value, unknown_option

if TYPE_CHECKING:
    from woolly.cli.parse.flags.foreign_flag import ForeignFlag

# Beginnings of the variables of other programs. The table of flags is imported late, because most lines need none.
_VARIABLES = ("LLAMA_", "OLLAMA_", "MTMD_")

# Commands for which a single word next to -m is a text, not a model.
_WITH_TEXT = ("run", "perplexity", "imatrix", "tokenize", "embed")


def translated(context: click.Context, args: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the words with flags of other programs replaced by Woolly's, dropped, or rejected with a UsageError."""
    line = _Line(context)
    line.read(args)
    line.read_environment(environment)
    return line.words()


class _Line:
    """Words of a command line while they are translated."""

    def __init__(self, context: click.Context) -> None:
        self.context, self.command = context, str(context.command.name)
        self.options: dict[str, click.Option] = {}
        for parameter in context.command.get_params(context):
            if isinstance(parameter, click.Option):
                self.options |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), parameter)
        self.typed: dict[str, str] = context.meta.setdefault(TYPED, {})
        self._given: dict[str, tuple[str, str]] = {}  # parameter to its value and the flag as typed
        self._out: list[str] = []
        self._rest: list[str] = []  # words after --
        self._weak: list[Sequence[str]] = []  # words that give way to the same option
        self._n_arguments = 0

    def words(self) -> list[str]:
        """Return the translated words."""
        for words in self._weak:
            if words and self.options[words[0]].name not in self.typed:
                self._read(deque(words))
        self._weak = []
        return [*self._out, *self._rest]

    def read(self, args: Sequence[str]) -> None:
        """Translate words as typed."""
        self._read(deque(args))

    def read_environment(self, environment: Mapping[str, str]) -> None:
        """Translate variables of llama.cpp, which give way to the same options, and report them."""
        if not any(name.startswith(_VARIABLES) for name in environment):
            return
        from woolly.cli.parse.flags.environment import ollama_notice, words_of

        read = []
        for variable, words in words_of(self.command, self.options, environment):
            option = self._option_of(words)
            is_set = option is not None and bool(environment.get(f"WOOLLY_{str(option.name).upper()}"))
            if option is not None and (option.name in self.typed or is_set or self._has_model(option)):
                continue
            try:
                self._read(deque(words))
            except UsageError as error:
                if self.command == "serve":
                    raise UsageError(f"{variable}: {error}") from None
                click.echo(f"woolly: {variable} has no effect: {error}", err=True)
            else:
                read.append(variable)
        if read:
            verb = "is" if len(read) == 1 else "are"
            click.echo(f"woolly: {', '.join(read)} {verb} read from the environment", err=True)
        if notice := ollama_notice(self.command, environment):
            click.echo(f"woolly: {notice}", err=True)

    def _option_of(self, words: Sequence[str]) -> click.Option | None:
        """Return the option that translated words would set, or None if there is none."""
        if not words:
            return None
        row = self._find(words[0])
        return self.options.get(row.ours if row is not None else words[0])

    def _has_model(self, option: click.Option) -> bool:
        """True if arguments name the model that an option names, too."""
        if not {"-m", "-hf"} & set(option.opts):
            return False
        if {"hf_repo", "named", "model"} & self.typed.keys():
            return True
        return self._n_arguments > (1 if self.command in _WITH_TEXT else 0)

    def _read(self, rest: deque[str]) -> None:
        while rest:
            word = rest.popleft()
            if word == "--":
                self._rest = [word, *rest]
                self._n_arguments += len(rest)
                return
            name, equals, value = word.partition("=")
            flag = self._find(name)
            if flag is not None and (flag.into is not None or not flag.ours):
                if flag.takes_value and not equals:
                    value = _value_of(flag, rest)
                self._replace(flag, name, value)
                continue
            spelled = name
            if flag is not None:
                if flag.noted:
                    click.echo(f"woolly: {flag.noted}", err=True)
                name = flag.ours
            elif name not in self.options and re.fullmatch(r"-[A-Za-z][A-Za-z-]+", name):
                # click would parse -nope as -n with the value ope
                raise unknown_option(self.context, name, self.options)
            self._own(name, spelled, equals, value, rest)

    def _replace(self, flag: ForeignFlag, name: str, value: str) -> None:
        """Replace a flag by other words, set its variable, or report that it has no effect."""
        if flag.sets:
            os.environ[flag.sets] = value if flag.takes_value else "1"
            return
        if flag.prints is not None:
            click.echo(flag.prints())
            self.context.exit()
        if flag.into is None:
            if notice := flag.notice(self.context.command_path, name, value):
                click.echo(f"woolly: {notice}", err=True)
            return
        words = flag.into(flag.value_of(name, value))
        if flag.noted:
            click.echo(f"woolly: {flag.noted}", err=True)
        if flag.is_weak:
            self._weak.append(words)
        else:
            self._read(deque(words))

    def _own(self, name: str, spelled: str, equals: str, value: str, rest: deque[str]) -> None:
        """Add one of Woolly's options with its value, or an argument."""
        options = self.options
        if name not in options and name[:2] in options and not options[name[:2]].is_flag:  # -n5
            name, spelled, value, equals = name[:2], name[:2], name[2:], "="
        if name not in options:
            self._out.append(name + equals + value)
            self._n_arguments += not name.startswith("-")
            return
        option = options[name]
        if not option.is_flag and not equals and rest:
            value, equals = rest.popleft(), " "
            if rest and getattr(option, "is_pair", False) and not _is_pair(value):
                value = f"{value}:{rest.popleft()}"
        if equals and option.name in _SPELLINGS:
            value = self._spelled(option, spelled, value)
        self._out += [name, value] if equals == " " else [name + equals + value]
        self.typed[str(option.name)] = spelled
        whole = spelled if option.is_flag else f"{spelled} {value}"
        meant = str(name in option.opts) if option.is_flag else value
        before = self._given.setdefault(str(option.name), (meant, whole))
        if before[0] != meant and not option.multiple:
            raise duplicate_value(self.context.command_path, before[1], whole)

    def _find(self, name: str) -> ForeignFlag | None:
        """Return the row of another program's flag, or None for Woolly's options and arguments."""
        if name in self.options or not name.startswith("-") or name == "-":
            return None
        from woolly.cli.parse.flags.table import find_flag

        return find_flag(self.command, name, self.options)

    def _spelled(self, option: click.Option, name: str, value: str) -> str:
        """Return Woolly's spelling of a value."""
        ours = _SPELLINGS[str(option.name)](value)
        if ours != value and option.name not in _QUIET_SPELLINGS:
            click.echo(f"woolly: {name} {value} is read as {ours}, the type of this size", err=True)
        return ours


def _is_pair(value: str) -> bool:
    """True if a value is A:B with a number B."""
    return re.fullmatch(r".+:[-+]?[\d.]+(e[-+]?\d+)?", value) is not None


def _value_of(flag: ForeignFlag, rest: deque[str]) -> str:
    """Return the value of a flag from the following words. If the value is optional, only a matching word is used."""
    if flag.bare and (not rest or rest[0].lower() not in flag.values):
        return flag.bare
    values = [rest.popleft()] if rest else [""]
    while flag.is_list and rest and not rest[0].startswith("-"):
        values.append(rest.popleft())
    return ",".join(values)


def _device(value: str) -> str:
    """Return `cuda:0,1` for llama.cpp's CUDA0,CUDA1."""
    kinds = {"cuda": "cuda", "vulkan": "vulkan", "metal": "metal", "mtl": "metal"}
    names = [name.strip().lower() for name in value.split(",")]
    if names == ["none"]:
        return "cpu"
    parts = [(name.rstrip("0123456789"), name[len(name.rstrip("0123456789")) :]) for name in names]
    found = {kind for kind, _ in parts}
    if found & {"rocm", "sycl", "cann", "opencl", "hip"}:
        raise UsageError(f"--device is {value}, which Woolly has no backend for; vulkan:N uses these GPUs")
    if not found <= kinds.keys() or not any(number for _, number in parts):
        return value
    if len(found) > 1:
        raise UsageError(f"--device is {value}; the GPUs of a model must be of one kind, such as CUDA0,CUDA1")
    return f"{kinds[found.pop()]}:{','.join(number or '0' for _, number in parts)}"


def _cache_type(value: str) -> str:
    return "/".join("q4" if part == "q4_0" else part for part in value.lower().split("/"))


def _layers(value: str) -> str:
    return {"-1": "auto", "-2": "all"}.get(value.strip(), value)


def _pooling(value: str) -> str:
    if value in ("none", "rank"):
        raise UsageError(
            f"--pooling is {value}; expected mean, cls or last, and a reranking model needs no flag"
            if value == "rank"
            else "--pooling is none; expected mean, cls or last, because a text has one embedding"
        )
    return value


# Spellings of values by parameter: the function returns Woolly's value.
_SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "device": _device,
    "kv_type": _cache_type,
    "cache_type_k": _cache_type,
    "cache_type_v": _cache_type,
    "gpu_layers": _layers,
    "pooling": _pooling,
}
# Values whose other spelling means exactly the same and needs no notice.
_QUIET_SPELLINGS = frozenset({"device", "gpu_layers"})
